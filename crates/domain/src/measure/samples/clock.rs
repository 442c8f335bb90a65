//! Times as programs write them: clocks, and seconds since the start.

use chrono::{DateTime, NaiveDateTime, Utc};

use super::cell::Cell;

/// 2010-01-01: an earlier time is a mistake of clock or unit, or a duration.
const EARLIEST: i64 = 1_262_304_000;
/// Numbers from here on count milliseconds, microseconds and nanoseconds: as seconds, the first would be the year 5138.
const MILLISECONDS_FROM: f64 = 1e11;
const MICROSECONDS_FROM: f64 = 1e14;
const NANOSECONDS_FROM: f64 = 1e17;

/// A point in time, and whether the text said in which zone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moment {
    pub(super) at: DateTime<Utc>,
    pub(super) has_zone: bool,
}

/// Reads a clock's time: a number since 1970, RFC 3339, or one of the forms in which Python, nvidia-smi and `ctime`
/// write it; without a zone it is taken as UTC.
pub(super) fn moment(cell: &Cell<'_>) -> Option<Moment> {
    match cell {
        Cell::Number(number) => of_number(*number).map(|at| Moment { at, has_zone: true }),
        Cell::Text(text) => of_text(text.trim()),
        Cell::Nested(_) | Cell::Nothing => None,
    }
}

/// Whether a time can be that of a training: from 2010 on.
pub(super) fn is_plausible(at: DateTime<Utc>) -> bool {
    at.timestamp() >= EARLIEST
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a float saturates; the range of times is checked"
)]
fn of_number(number: f64) -> Option<DateTime<Utc>> {
    let per_second = match number.abs() {
        size if size >= NANOSECONDS_FROM => 1e9,
        size if size >= MICROSECONDS_FROM => 1e6,
        size if size >= MILLISECONDS_FROM => 1e3,
        _ => 1.0,
    };
    DateTime::from_timestamp_micros((number / per_second * 1e6).round() as i64)
}

fn of_text(text: &str) -> Option<Moment> {
    if let Ok(at) = DateTime::parse_from_rfc3339(text) {
        return Some(Moment {
            at: at.with_timezone(&Utc),
            has_zone: true,
        });
    }
    // Python's logging separates milliseconds by a comma, nvidia-smi days by slashes.
    let text = text.replace(',', ".").replace('/', "-");
    for zoned in [
        "%Y-%m-%d %H:%M:%S%.f%:z",
        "%Y-%m-%d %H:%M:%S%.f%z",
        "%Y-%m-%dT%H:%M:%S%.f%z",
    ] {
        if let Ok(at) = DateTime::parse_from_str(&text, zoned) {
            return Some(Moment {
                at: at.with_timezone(&Utc),
                has_zone: true,
            });
        }
    }
    let bare = text.strip_suffix(" UTC").or_else(|| text.strip_suffix('Z'));
    let formats = [
        "%Y-%m-%dT%H:%M:%S%.f",
        "%Y-%m-%d %H:%M:%S%.f",
        "%a %b %e %H:%M:%S %Y",
    ];
    formats.iter().find_map(|format| {
        let at = NaiveDateTime::parse_from_str(bare.unwrap_or(&text), format).ok()?;
        Some(Moment {
            at: at.and_utc(),
            has_zone: bare.is_some(),
        })
    })
}

/// Reads a time since the start in seconds: a number, `0:00:20`, `1:02:03.5`, `02:03`, `1 day, 2:03:04` or `1500ms`.
pub(super) fn elapsed(cell: &Cell<'_>) -> Option<f64> {
    let seconds = match cell {
        Cell::Number(seconds) => *seconds,
        Cell::Text(text) => of_duration(text.trim())?,
        Cell::Nested(_) | Cell::Nothing => return None,
    };
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

fn of_duration(text: &str) -> Option<f64> {
    if let Some(milliseconds) = text.strip_suffix("ms") {
        return Some(milliseconds.trim_end().parse::<f64>().ok()? / 1e3);
    }
    let (days, clock) = match text.split_once(" day") {
        Some((days, rest)) => {
            let clock = rest.trim_start_matches('s').trim_start_matches(',').trim();
            (days.trim().parse::<f64>().ok()?, clock)
        }
        None => (0.0, text),
    };
    let parts: Option<Vec<f64>> = clock.split(':').map(|part| part.parse().ok()).collect();
    let seconds = match parts?.as_slice() {
        [hours, minutes, seconds] => hours * 3600.0 + minutes * 60.0 + seconds,
        [minutes, seconds] => minutes * 60.0 + seconds,
        _ => return None,
    };
    Some(days * 86_400.0 + seconds)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn text(text: &str) -> Cell<'_> {
        Cell::Text(Cow::Borrowed(text))
    }

    #[test]
    fn every_clock_is_read() {
        let expected: DateTime<Utc> = "2025-11-20T00:01:00.500Z".parse().unwrap();
        let seconds = 1_763_596_860.5;
        for number in [seconds, seconds * 1e3, seconds * 1e6, seconds * 1e9] {
            let at = moment(&Cell::Number(number)).unwrap().at;
            assert!(
                (at - expected).abs() < chrono::TimeDelta::microseconds(2),
                "{number}"
            );
        }
        for written in [
            "2025-11-20T00:01:00.500Z",
            "2025-11-20T01:01:00.5+01:00",
            "2025-11-20 01:01:00.5+0100",
            "2025-11-20 00:01:00,500",
            "2025/11/20 00:01:00.500",
            "2025-11-20 00:01:00.500 UTC",
        ] {
            assert_eq!(moment(&text(written)).unwrap().at, expected, "{written}");
        }
        assert_eq!(
            moment(&text("Thu Nov 20 00:01:00 2025")).unwrap().at,
            expected - chrono::TimeDelta::milliseconds(500)
        );
        assert!(!moment(&text("2025-11-20 00:01:00,500")).unwrap().has_zone);
        assert!(moment(&text("2025-11-20 00:01:00.5Z")).unwrap().has_zone);
        assert_eq!(moment(&text("soon")), None);
    }

    #[test]
    fn every_duration_is_read() {
        for (written, seconds) in [
            ("0:00:20", 20.0),
            ("1:02:03.5", 3723.5),
            ("02:03", 123.0),
            ("1 day, 2:03:04", 93_784.0),
            ("3 days, 0:00:01", 259_201.0),
            ("1500ms", 1.5),
        ] {
            assert_eq!(elapsed(&text(written)), Some(seconds), "{written}");
        }
        assert_eq!(elapsed(&text("20 s")), None);
        assert_eq!(elapsed(&Cell::Number(-1.0)), None);
    }
}
