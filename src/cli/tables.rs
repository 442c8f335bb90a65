//! Tables on the command line. They are as wide as the terminal, and no figure and no word is broken in two: where
//! the columns do not fit, each row becomes a card.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, Width};

/// Columns where there is no terminal to ask, such as in a file or a log.
const WIDTH: u16 = 140;
/// The longest text with a digit that counts as one figure, such as `207 (109–393)`: longer ones are sentences.
const FIGURE_MAX: usize = 24;

/// An empty table with these headers.
pub(super) fn table(headers: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headers.iter().copied());
    table
}

pub(super) fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Text of others, such as a name or a line of a log, without what a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    let is_order = |one: char| one.is_control() && !matches!(one, '\n' | '\t');
    text.replace(is_order, "\u{fffd}")
}

/// Prints a table.
pub(super) fn print(table: Table) {
    let table = without_orders(table);
    let width = table.width().unwrap_or(WIDTH);
    println!("{}", fitted(table, width));
}

/// The same table, each cell plain.
fn without_orders(mut table: Table) -> Table {
    for row in table.row_iter_mut() {
        let is_plain = |cell: &Cell| {
            let text = cell.content();
            plain(&text) == text
        };
        if !row.cell_iter().all(is_plain) {
            let texts: Vec<String> = row.cell_iter().map(|cell| plain(&cell.content())).collect();
            *row = Row::from(texts);
        }
    }
    table
}

/// The table within so many columns, or as cards.
fn fitted(mut table: Table, width: u16) -> String {
    let least: Vec<u16> = (0..table.column_count())
        .map(|column| {
            let cells = table.column_cells_with_header_iter(column).flatten();
            let widest = cells.map(|cell| unbreakable(&cell.content())).max();
            widest.unwrap_or_default()
        })
        .collect();
    // Each column has a space on either side and a line.
    let frames = u16::try_from(3 * least.len() + 1).unwrap_or(u16::MAX);
    let sum = least
        .iter()
        .fold(frames, |sum, own| sum.saturating_add(*own));
    if sum > width {
        return cards(&table);
    }
    for (column, least) in table.column_iter_mut().zip(least) {
        // A column's width counts its padding.
        let width = Width::Fixed(least.saturating_add(2));
        column.set_constraint(ColumnConstraint::LowerBoundary(width));
    }
    table.set_width(width);
    table.to_string()
}

/// Characters of the longest part of a text that must stay on one line.
fn unbreakable(text: &str) -> u16 {
    let length = text.chars().count();
    let is_figure = length <= FIGURE_MAX && text.chars().any(|one| one.is_ascii_digit());
    let longest = if is_figure {
        length
    } else {
        let words = text.split_whitespace().map(|word| word.chars().count());
        words.max().unwrap_or_default()
    };
    u16::try_from(longest).unwrap_or(u16::MAX)
}

/// One card a row: its first column, and under it the others by name.
fn cards(table: &Table) -> String {
    let texts = |row: &Row| -> Vec<String> { row.cell_iter().map(Cell::content).collect() };
    let headers = table.header().map(texts).unwrap_or_default();
    let names = headers.iter().map(|name| name.chars().count());
    let widest = names.max().unwrap_or_default();
    let card = |row: &Row| {
        let cells = texts(row);
        let mut lines: Vec<String> = cells.first().cloned().into_iter().collect();
        let others = headers.iter().zip(&cells).skip(1);
        let others = others.filter(|(_, text)| !text.is_empty());
        lines.extend(others.map(|(name, text)| format!("  {name:widest$}  {text}")));
        lines.join("\n")
    };
    let all: Vec<String> = table.row_iter().map(card).collect();
    all.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Table {
        let mut table = table(&["candidate", "instance", "tokens/s (90 %)", "why"]);
        table.add_row(vec![
            Cell::new("g5-12xl-spot"),
            Cell::new("ml.g5.12xlarge"),
            right("207 (109–393)"),
            Cell::new("it waits until likelier ones are measured"),
        ]);
        table
    }

    /// At any width, each figure and each word stands whole on some line.
    #[test]
    fn nothing_is_broken_at_any_width() {
        for width in 20..160 {
            let shown = fitted(plan(), width);
            for whole in [
                "207 (109–393)",
                "ml.g5.12xlarge",
                "g5-12xl-spot",
                "likelier",
            ] {
                assert!(shown.contains(whole), "{width}: {whole}\n{shown}");
            }
            let widest = shown.lines().map(|line| line.chars().count()).max();
            let is_table = shown.contains('│');
            assert!(
                !is_table || widest <= Some(usize::from(width)),
                "{width}\n{shown}"
            );
        }
    }

    #[test]
    fn what_others_have_written_moves_no_cursor() {
        let mut table = table(&["name"]);
        table.add_row(["a\u{1b}]0;x\u{7}\u{1b}[2J"]);
        let shown = fitted(without_orders(table), 80);
        assert!(
            !shown.contains('\u{1b}') && shown.contains("]0;x"),
            "{shown}"
        );
        assert_eq!(plain("two\nlines"), "two\nlines");
    }

    #[test]
    fn what_does_not_fit_is_a_card() {
        assert!(fitted(plan(), 80).contains('│'));
        insta::assert_snapshot!(fitted(plan(), 50), @r"
        g5-12xl-spot
          instance         ml.g5.12xlarge
          tokens/s (90 %)  207 (109–393)
          why              it waits until likelier ones are measured
        ");
    }
}
