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

/// Forms that say their zone, and then those that do not: they are read as UTC. Python's logging separates milliseconds
/// by a comma, and nvidia-smi days by slashes: commas are points and slashes hyphens here.
const ZONED: [&str; 6] = [
    "%Y-%m-%d %H:%M:%S%.f%:z",
    "%Y-%m-%d %H:%M:%S%.f%z",
    "%Y-%m-%d %H:%M:%S%.f %z",
    "%Y-%m-%dT%H:%M:%S%.f%z",
    "%Y%m%dT%H%M%S%.f%z",
    "%d-%b-%Y:%H:%M:%S %z",
];
const BARE: [&str; 10] = [
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M",
    "%Y%m%dT%H%M%S%.f",
    "%a %b %e %H:%M:%S %Y",
    "%d-%b-%Y:%H:%M:%S",
    "%b %e. %Y. %I:%M:%S %p",
    "%b %e. %Y %I:%M:%S %p",
    "%b %e. %Y %H:%M:%S%.f",
];
/// Where the year comes last, what comes first is not said.
const MONTH_FIRST: [&str; 2] = ["%m-%d-%Y %I:%M:%S %p", "%m-%d-%Y %H:%M:%S%.f"];
const DAY_FIRST: [&str; 2] = ["%d-%m-%Y %I:%M:%S %p", "%d-%m-%Y %H:%M:%S%.f"];
/// With points, as in German, the day comes first.
const WITH_POINTS: &str = "%d.%m.%Y %H:%M:%S%.f";

fn of_text(text: &str) -> Option<Moment> {
    let zoned = |at: DateTime<chrono::FixedOffset>| Moment {
        at: at.with_timezone(&Utc),
        has_zone: true,
    };
    if let Ok(at) =
        DateTime::parse_from_rfc3339(text).or_else(|_| DateTime::parse_from_rfc2822(text))
    {
        return Some(zoned(at));
    }
    let text = text.replace(',', ".").replace('/', "-");
    let utc = ["Z", " UTC", " GMT"];
    let bare = utc.iter().find_map(|zone| text.strip_suffix(zone));
    // Go writes its zone twice: `+0000 UTC`.
    let of_zone = |form| DateTime::parse_from_str(bare.unwrap_or(&text), form).ok();
    if let Some(at) = ZONED.iter().find_map(|form| of_zone(form)) {
        return Some(zoned(at));
    }
    // `date` writes its zone before the year.
    let (bare, has_zone) = match bare {
        Some(bare) => (bare.to_owned(), true),
        None if text.contains(" UTC ") => (text.replace(" UTC ", " "), true),
        None => (text, false),
    };
    let first = |forms: &[&str]| {
        let parsed = |form| NaiveDateTime::parse_from_str(&bare, form).ok();
        forms.iter().find_map(|form| parsed(form))
    };
    let at = first(&BARE).or_else(|| first(&[WITH_POINTS])).or_else(|| {
        match (first(&MONTH_FIRST), first(&DAY_FIRST)) {
            (Some(one), Some(other)) => (one == other).then_some(one),
            (one, other) => one.or(other),
        }
    })?;
    Some(Moment {
        at: at.and_utc(),
        has_zone,
    })
}

/// Whether a time cannot be known because `11/12/2025` may be of November or of December.
pub(super) fn is_ambiguous(text: &str) -> bool {
    let text = text.trim().replace('/', "-");
    let is_one_of = |forms: &[&str]| {
        let mut forms = forms.iter();
        forms.any(|form| NaiveDateTime::parse_from_str(&text, form).is_ok())
    };
    of_text(&text).is_none() && is_one_of(&MONTH_FIRST) && is_one_of(&DAY_FIRST)
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
        for written in [
            "Thu, 20 Nov 2025 00:01:00 GMT",
            "Thu, 20 Nov 2025 01:01:00 +0100",
            "Thu Nov 20 00:01:00 UTC 2025",
            "2025-11-20 00:01:00 +0000 UTC",
            "20251120T000100Z",
            "2025-11-20T00:01",
            "20/Nov/2025:00:01:00 +0000",
            "Nov 20, 2025, 12:01:00 AM",
            "Nov 20, 2025 00:01:00",
            "11/20/2025 12:01:00 AM",
            "20.11.2025 00:01:00",
            "20/11/2025 00:01:00",
        ] {
            let at = moment(&text(written)).map(|moment| moment.at);
            assert_eq!(
                at,
                Some(expected - chrono::TimeDelta::milliseconds(500)),
                "{written}"
            );
        }
        assert!(!moment(&text("2025-11-20 00:01:00,500")).unwrap().has_zone);
        assert!(moment(&text("2025-11-20 00:01:00.5Z")).unwrap().has_zone);
        assert_eq!(moment(&text("soon")), None);
    }

    #[test]
    fn a_day_that_may_be_a_month_is_no_time() {
        for unclear in ["11/12/2025 00:01:00", "1/2/2025 12:01:00 AM"] {
            assert_eq!(moment(&text(unclear)), None, "{unclear}");
            assert!(is_ambiguous(unclear), "{unclear}");
        }
        assert!(moment(&text("12/12/2025 00:01:00")).is_some());
        assert!(!is_ambiguous("11/20/2025 00:01:00") && !is_ambiguous("soon"));
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
