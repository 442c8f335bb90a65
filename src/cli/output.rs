//! The form in which a command prints what it has found.

use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use comfy_table::{Cell, Row, Table};
use serde::Serialize;

use super::tables;
use bakeoff_service::read::ci_report;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people, as wide as the terminal.
    Table,
    /// What the API answers, with every field.
    Json,
    /// The table's columns, for a spreadsheet.
    Csv,
    /// The table in Markdown, for an issue or a page.
    Md,
}

#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Output {
    /// How to print what is found.
    #[arg(long, value_enum, default_value = "table", value_name = "FORM")]
    output: Format,
    /// The same as `--output json`.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl Output {
    pub(super) fn format(self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    pub(super) fn is_table(self) -> bool {
        self.format() == Format::Table
    }

    /// Prints what was found: as JSON all of it, otherwise as this table has it.
    pub(super) fn print<T: Serialize + ?Sized>(
        self,
        found: &T,
        table: impl FnOnce() -> Table,
    ) -> anyhow::Result<()> {
        match self.format() {
            Format::Table => {
                let table = table();
                if table.row_count() == 0 {
                    println!("none found");
                } else {
                    tables::print(table);
                }
            }
            Format::Json => println!("{}", serde_json::to_string_pretty(found)?),
            Format::Csv => print!("{}", csv(&table())?),
            Format::Md => print!("{}", markdown(&table())),
        }
        Ok(())
    }
}

/// The header and the rows as text.
fn texts(table: &Table) -> Vec<Vec<String>> {
    let texts = |row: &Row| row.cell_iter().map(Cell::content).collect();
    let rows = table.row_iter().map(texts);
    table.header().map(texts).into_iter().chain(rows).collect()
}

fn csv(table: &Table) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in texts(table) {
        writer.write_record(row.into_iter().map(no_formula))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// A name that a spreadsheet would carry out as a formula is marked as text.
fn no_formula(text: String) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let figure = text.strip_suffix(" %").unwrap_or(&text);
    if is_formula && figure.parse::<f64>().is_err() {
        format!("'{text}")
    } else {
        text
    }
}

fn markdown(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells = cells.iter().map(|text| ci_report::plain(text));
        format!("| {} |\n", cells.collect::<Vec<String>>().join(" | "))
    };
    let rows = texts(table);
    let mut text = String::new();
    for (place, row) in rows.iter().enumerate() {
        text.push_str(&line(row));
        if place == 0 {
            let _ = writeln!(text, "|{}", " --- |".repeat(row.len()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_two() -> Table {
        let mut table = tables::table(&["name", "why"]);
        table.add_row(["=p5, spot", "a|b\nc \"d\""]);
        table
    }

    #[test]
    fn a_comma_a_quote_and_a_line_stay_in_their_cell() {
        let text = csv(&of_two()).unwrap();
        assert_eq!(text, "name,why\n\"'=p5, spot\",\"a|b\nc \"\"d\"\"\"\n");
        let mut read = csv::Reader::from_reader(text.as_bytes());
        let row = read.records().next().unwrap().unwrap();
        assert_eq!(
            row.iter().collect::<Vec<_>>(),
            ["'=p5, spot", "a|b\nc \"d\""]
        );
        assert_eq!(no_formula("-1.5".to_owned()), "-1.5");
    }

    #[test]
    fn a_bar_ends_no_cell_of_markdown() {
        assert_eq!(
            markdown(&of_two()),
            "| name | why |\n| --- | --- |\n| =p5, spot | a\\|b c \"d\" |\n"
        );
    }
}
