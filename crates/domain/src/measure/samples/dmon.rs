//! The table of `nvidia-smi dmon`: cells between spaces, a header that comes again and again, `-` for what a device has not.

use std::borrow::Cow;

use super::LineError;
use super::cell::{Cell, Record};
use super::json::one_error;
use super::plan::Rows;
use super::report::Report;

const NO_CLOCK: &str = "it is nvidia-smi dmon's table, without date and time: record it with nvidia-smi dmon -o DT -s pum, or with \
                        nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used,power.draw --format=csv -l 10";

/// Its columns, under the names of `nvidia-smi --query-gpu` (nvidia-smi manual, "Device Monitoring"): `sm` is the share of
/// time that a kernel ran, `fb` the memory in use.
const COLUMNS: [(&str, &str); 5] = [
    ("gpu", "index"),
    ("pwr", "power.draw [W]"),
    ("gtemp", "temperature.gpu"),
    ("sm", "utilization.gpu [%]"),
    ("fb", "memory.used [MiB]"),
];

/// `None` if it is no such table.
pub(super) fn rows(
    text: &str,
    report: &mut Report,
) -> Option<Result<Rows<'static>, Vec<LineError>>> {
    let header: Vec<&str> = names(text.lines().next()?)?;
    if !header.contains(&"gpu") {
        return None;
    }
    if header.get(..2) != Some(&["Date", "Time"]) {
        return Some(Err(one_error(1, NO_CLOCK)));
    }
    let mut rows = Rows::default();
    for (line, at) in text.lines().zip(1..) {
        // The header again, and the units below it.
        if names(line).is_some() {
            continue;
        }
        let cells: Vec<&str> = line.split_whitespace().collect();
        if cells.len() != header.len() {
            let why = format!(
                "it has {} cells, and the header {}",
                cells.len(),
                header.len()
            );
            rows.push(at, Err(why));
            continue;
        }
        let mut record = Record::default();
        if let [date, time, ..] = cells.as_slice() {
            record.put(Cow::Borrowed("timestamp"), text_cell(&clock(date, time)));
        }
        for (name, cell) in header.iter().zip(&cells).skip(2) {
            let own = COLUMNS.iter().find(|(theirs, _)| theirs == name);
            let own = own.map_or_else(|| format!("dmon {name}"), |(_, own)| (*own).to_owned());
            if *cell != "-" {
                record.put(Cow::Owned(own), text_cell(cell));
            }
        }
        rows.push(at, Ok(record));
    }
    report.format = Some("nvidia-smi's dmon".to_owned());
    Some(Ok(rows))
}

/// The names in a header line, which begins with `#`.
fn names(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix('#')?.split_whitespace().collect())
}

/// `20251120` and `00:01:00`.
fn clock(date: &str, time: &str) -> String {
    match (date.get(..4), date.get(4..6), date.get(6..)) {
        (Some(year), Some(month), Some(day)) => format!("{year}-{month}-{day} {time}"),
        _ => format!("{date} {time}"),
    }
}

fn text_cell(text: &str) -> Cell<'static> {
    Cell::of_text(Cow::Owned(text.to_owned()))
}
