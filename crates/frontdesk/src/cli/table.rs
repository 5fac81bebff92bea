//! Tables without lines around them: one session a line, cut to the terminal's width.

use comfy_table::{Cell, ColumnConstraint, ContentArrangement, Row, Table as Grid, Width, presets};

use super::text;

/// Narrowest a column of free text gets, in columns.
const FLEXIBLE_COLUMNS_MIN: u16 = 8;

/// One column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Its heading.
    pub(crate) heading: &'static str,
    /// Whether it may be cut so that the others fit.
    pub(crate) flexible: bool,
}

/// A column that is always shown whole.
pub(crate) const fn fixed(heading: &'static str) -> Column {
    Column { heading, flexible: false }
}

/// A column that gives room to others.
pub(crate) const fn flexible(heading: &'static str) -> Column {
    Column { heading, flexible: true }
}

/// Lays rows out under their headings; the first line is the headings', then one line a row.
///
/// Cells must be harmless already (see [`text::line`]). Without a width nothing is cut.
pub(crate) fn lay_out(
    columns: &[Column],
    rows: &[Vec<String>],
    width_columns: Option<usize>,
) -> Vec<String> {
    let mut grid = Grid::new();
    grid.load_style(presets::NOTHING).set_truncation_indicator("…");
    let line = |cells: Vec<Cell>| {
        let mut row = Row::from(cells);
        row.max_height(1);
        row
    };
    grid.set_header(line(columns.iter().map(|column| Cell::new(column.heading)).collect()));
    for row in rows {
        grid.add_row(line(row.iter().map(Cell::new).collect()));
    }
    match width_columns.and_then(|width| u16::try_from(width).ok()) {
        Some(width) => {
            // One more than the terminal has: the padding behind the last column is trimmed.
            grid.set_width(width.saturating_add(2));
            grid.set_content_arrangement(ContentArrangement::Dynamic);
        }
        None => {
            grid.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    for (index, column) in columns.iter().enumerate() {
        if let Some(laid) = grid.column_mut(index) {
            laid.set_padding((0, 2));
            laid.set_constraint(if column.flexible {
                ColumnConstraint::LowerBoundary(Width::Fixed(FLEXIBLE_COLUMNS_MIN))
            } else {
                ColumnConstraint::ContentWidth
            });
        }
    }
    grid.lines()
        .map(|line| {
            let line = line.trim_end();
            width_columns.map_or_else(|| line.to_owned(), |width| text::cut(line, width))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthStr;

    const COLUMNS: &[Column] =
        &[fixed("ID"), fixed("STATUS"), flexible("FOLDER"), flexible("TITLE")];

    fn row(cells: [&str; 4]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn a_table_is_one_line_a_row() {
        let rows =
            [row(["1", "active", "~/a", "Fix the parser"]), row(["22", "inactive", "/", ""])];
        insta::assert_snapshot!(lay_out(COLUMNS, &rows, None).join("\n"), @r"
        ID  STATUS    FOLDER  TITLE
        1   active    ~/a     Fix the parser
        22  inactive  /
        ");
    }

    #[test]
    fn without_a_width_nothing_is_cut() {
        let long = "word ".repeat(100);
        let lines = lay_out(COLUMNS, &[row(["1", "active", &long, &long])], None);
        assert_eq!(lines.len(), 2);
        assert!(lines[1].len() > 900);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let long = "日本語 and words ".repeat(20);
        let rows = [row(["1", "active", &long, &long]), row(["2", "inactive", "~/a", &long])];
        for width in [0, 1, 5, 20, 40, 80, 200] {
            let lines = lay_out(COLUMNS, &rows, Some(width));
            assert_eq!(lines.len(), 3, "{width}");
            for line in &lines {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
        let lines = lay_out(COLUMNS, &rows, Some(80));
        assert!(lines[1].contains('…') && lines[1].starts_with("1   active"), "{lines:?}");
    }
}
