//! Rows, and the table of them.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::gauge::Spread;

/// What a number should be.
#[derive(Clone, Copy, Debug)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// At most so many times what is bare.
    Times(f64),
}

/// One measured thing.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    case: &'static str,
    what: String,
    unit: &'static str,
    ours: Spread,
    bare: Option<Spread>,
    target: Option<Target>,
}

impl Row {
    /// A measured thing.
    pub(crate) fn new(
        case: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        ours: Spread,
    ) -> Self {
        Self { case, what: what.into(), unit, ours, bare: None, target: None }
    }

    /// With its bare equivalent.
    pub(crate) fn beside(self, bare: Spread) -> Self {
        Self { bare: Some(bare), ..self }
    }

    /// It should be at most so much.
    pub(crate) fn target(self, most: f64) -> Self {
        Self { target: Some(Target::AtMost(most)), ..self }
    }

    /// It should be at least so much.
    pub(crate) fn target_at_least(self, least: f64) -> Self {
        Self { target: Some(Target::AtLeast(least)), ..self }
    }

    /// It should be at most so many times its bare equivalent.
    pub(crate) fn target_ratio(self, times: f64) -> Self {
        Self { target: Some(Target::Times(times)), ..self }
    }

    fn ratio(&self) -> Option<f64> {
        self.bare.map(|bare| self.ours.median / bare.median).filter(|ratio| ratio.is_finite())
    }

    fn is_met(&self) -> Option<bool> {
        Some(match self.target? {
            Target::AtMost(most) => self.ours.median <= most,
            Target::AtLeast(least) => self.ours.median >= least,
            Target::Times(times) => self.ratio()? <= times,
        })
    }

    fn json(&self) -> Value {
        let spread = |spread: Spread| json!({ "min": spread.min, "median": spread.median, "max": spread.max });
        let mut row = json!({
            "case": self.case, "what": self.what, "unit": self.unit, "ours": spread(self.ours),
        });
        if let Some(bare) = self.bare {
            row["bare"] = spread(bare);
            row["ratio"] = json!(self.ratio());
        }
        if let Some(target) = self.target {
            row["target"] = json!(text_of(target));
            row["met"] = json!(self.is_met());
        }
        row
    }
}

fn text_of(target: Target) -> String {
    match target {
        Target::AtMost(most) => format!("≤ {}", short(most)),
        Target::AtLeast(least) => format!("≥ {}", short(least)),
        Target::Times(times) => format!("≤ {times}×"),
    }
}

/// Three digits that count.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 99.95 || size == 0.0 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::new();
    for (at, character) in text.chars().enumerate() {
        if at > 0 && at < whole && (whole - at) % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(character);
    }
    grouped
}

/// All rows of a run, and what the machine did meanwhile.
pub(crate) struct Report {
    rows: Vec<Row>,
    load_before: String,
    load_after: String,
    took: Duration,
}

impl Report {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self {
            rows: Vec::new(),
            load_before: load(),
            load_after: String::new(),
            took: Duration::ZERO,
        }
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self, took: Duration) {
        self.took = took;
        self.load_after = load();
    }

    /// One JSON document.
    pub(crate) fn json(&self) -> String {
        json!({
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "loadBefore": self.load_before, "loadAfter": self.load_after,
            "cores": cores(), "seconds": self.took.as_secs_f64(),
        })
        .to_string()
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        let heads = [
            "case",
            "what",
            "unit",
            "median",
            "(min … max)",
            "bare",
            "(min … max)",
            "ratio",
            "target",
            "met",
        ];
        let mut lines = vec![heads.map(str::to_owned)];
        lines.extend(self.rows.iter().map(cells));
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; 10] = std::array::from_fn(width);
        let mut table = String::new();
        for line in &lines {
            let mut text = String::new();
            for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
                let fill = " ".repeat(width - cell.chars().count());
                let left = matches!(column, 0..=2 | 4 | 6);
                let _ = if left {
                    write!(text, "{cell}{fill}  ")
                } else {
                    write!(text, "{fill}{cell}  ")
                };
            }
            table.push_str(text.trim_end());
            table.push('\n');
        }
        let _ = write!(
            table,
            "\n{} cores, load {} before and {} after, {:.0} s",
            cores(),
            self.load_before,
            self.load_after,
            self.took.as_secs_f64()
        );
        table
    }
}

fn cells(row: &Row) -> [String; 10] {
    let range = |spread: Spread| {
        let one = spread.min.to_bits() == spread.max.to_bits();
        if one {
            String::new()
        } else {
            format!("({} … {})", short(spread.min), short(spread.max))
        }
    };
    [
        row.case.to_owned(),
        row.what.clone(),
        row.unit.to_owned(),
        short(row.ours.median),
        range(row.ours),
        row.bare.map_or_else(String::new, |bare| short(bare.median)),
        row.bare.map_or_else(String::new, range),
        row.ratio().map_or_else(String::new, |ratio| format!("{}×", short(ratio))),
        row.target.map_or_else(String::new, text_of),
        row.is_met().map_or_else(String::new, |met| if met { "yes" } else { "no" }.to_owned()),
    ]
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}
