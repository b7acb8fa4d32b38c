//! From rounds to what holds: medians, spreads, ratios, floors; and the page of all of it.
//!
//! Pure: rounds in, verdicts and text out.

use bench::report::{Page, Row as TableRow, Section, Table, aligned, units};
use bench::result::RunResult;
use serde_json::{Value, json};

use super::load::Measured;
use super::rows::{Figure, Floor, Row};

/// Figures of several rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// Of some figures; `None` of none.
    pub fn of(mut figures: Vec<f64>) -> Option<Spread> {
        figures.retain(|f| f.is_finite());
        if figures.is_empty() {
            return None;
        }
        let median = super::median(&mut figures);
        Some(Spread { median, least: figures[0], most: figures[figures.len() - 1] })
    }
}

/// One figure of one row on both sides, and whether its floor holds.
#[derive(Debug, Clone)]
pub struct Verdict {
    pub row: String,
    pub figure: &'static str,
    /// How its values are written.
    pub text: fn(f64) -> String,
    pub java: Option<Spread>,
    pub ours: Spread,
    /// What is demanded, in words.
    pub limit: Option<String>,
    pub holds: bool,
}

impl Verdict {
    /// A figure of RingMQ alone, at most so much.
    pub fn alone(row: &str, figure: &'static str, ours: Spread, limit: f64, text: fn(f64) -> String) -> Verdict {
        let holds = ours.median <= limit;
        Verdict { row: row.into(), figure, text, java: None, ours, limit: Some(format!("<= {}", text(limit))), holds }
    }

    /// Java's median over RingMQ's.
    pub fn ratio(&self) -> Option<f64> {
        self.java.as_ref().map(|java| java.median / self.ours.median)
    }

    /// The line of the results.
    pub fn json(&self) -> Value {
        let spread = |s: &Spread| json!({"median": s.median, "least": s.least, "most": s.most});
        json!({"verdict": self.row, "figure": self.figure, "java": self.java.as_ref().map(spread),
            "ringmq": spread(&self.ours), "java_over_ringmq": self.ratio(), "limit": self.limit, "holds": self.holds})
    }

    fn cells(&self) -> Vec<String> {
        let spread =
            |s: &Spread| format!("{} ({} to {})", (self.text)(s.median), (self.text)(s.least), (self.text)(s.most));
        let verdict = match (&self.limit, self.holds) {
            (None, _) => "",
            (_, true) => "holds",
            (_, false) => "MISSED",
        };
        vec![
            self.row.clone(),
            self.figure.into(),
            self.java.as_ref().map_or("-".into(), spread),
            spread(&self.ours),
            self.ratio().map_or("-".into(), units::number),
            self.limit.clone().unwrap_or_default(),
            verdict.into(),
        ]
    }
}

/// Head of the table of verdicts.
const HEAD: [&str; 7] =
    ["row", "figure", "Java: median (least to most)", "RingMQ", "Java / RingMQ", "demanded of RingMQ", ""];

/// Verdicts as lines for a terminal.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut rows = vec![HEAD.map(String::from).to_vec()];
    rows.extend(verdicts.iter().map(Verdict::cells));
    aligned(&rows)
}

/// How a figure's values are written.
pub fn text_of(figure: Figure) -> fn(f64) -> String {
    match figure {
        Figure::Cpu => |ns| format!("{} ns", units::number(ns)),
        Figure::Rate => |rate| format!("{}/s", units::number(rate)),
        _ => units::duration,
    }
}

/// All figures of a row. `disk_ns` is a write and fdatasync of this disk.
pub fn judge(row: &Row, java: &[Measured], ours: &[Measured], disk_ns: Option<f64>) -> Vec<Verdict> {
    let spread = |rounds: &[Measured], figure| Spread::of(rounds.iter().filter_map(|m| m.figure(figure)).collect());
    let verdict = |figure: Figure| {
        let (java, ours) = (spread(java, figure), spread(ours, figure)?);
        let floor = row.floors.iter().find(|f| floor_of(f) == figure);
        let (limit, holds) = match floor {
            None => (None, true),
            Some(floor) => {
                let (limit, holds) = check(floor, java.as_ref().map(|j| j.median), ours.median, disk_ns);
                (Some(limit), holds)
            }
        };
        Some(Verdict { row: row.name.clone(), figure: figure.name(), text: text_of(figure), java, ours, limit, holds })
    };
    Figure::ALL.into_iter().filter_map(verdict).collect()
}

fn floor_of(floor: &Floor) -> Figure {
    match floor {
        Floor::Cpu(_) => Figure::Cpu,
        Floor::Rate(_) => Figure::Rate,
        Floor::Latency(figure, _) | Floor::Within(figure, _) => *figure,
        Floor::OverDisk(_) => Figure::P50,
    }
}

/// What is demanded, and whether it holds; what cannot be told does not.
fn check(floor: &Floor, java: Option<f64>, ours: f64, disk_ns: Option<f64>) -> (String, bool) {
    match *floor {
        Floor::Cpu(times) => (format!("1/{times} of Java's at most"), java.is_some_and(|java| java >= ours * times)),
        Floor::Rate(times) => (format!("{times} times Java's at least"), java.is_some_and(|java| ours >= java * times)),
        Floor::Latency(_, part) => {
            (format!("{part:.2} of Java's at most"), java.is_some_and(|java| ours <= java * part))
        }
        Floor::Within(_, ns) => (format!("<= {}", units::duration(ns)), ours <= ns),
        Floor::OverDisk(more) => {
            let limit = disk_ns.map(|disk| disk + more);
            (
                format!("<= {}", limit.map_or("unknown".into(), units::duration)),
                limit.is_some_and(|limit| ours <= limit),
            )
        }
    }
}

/// What is demanded of a row, in words.
pub fn demands(floors: &[Floor]) -> String {
    let words = |floor: &Floor| match floor {
        Floor::OverDisk(more) => format!("p50 <= the disk's + {}", units::duration(*more)),
        floor => format!("{} {}", floor_of(floor).name(), check(floor, None, 0.0, None).0),
    };
    floors.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// The run of a side that stands for its row: the one whose main figure is the median.
pub fn typical(rounds: &[Measured]) -> Option<&RunResult> {
    let mut runs: Vec<(&RunResult, f64)> =
        rounds.iter().filter_map(|m| Some((m.run.as_ref()?, m.figure(Figure::Cpu).unwrap_or(f64::MAX)))).collect();
    runs.sort_by(|a, b| a.1.total_cmp(&b.1));
    runs.get(runs.len() / 2).map(|r| r.0)
}

/// A row as the page shows it: the typical run of each side.
#[derive(Debug, Clone)]
pub struct Shown {
    pub row: String,
    pub runs: Vec<RunResult>,
}

/// The page: first the table of all rows, then the plots of each.
pub fn page(machine: &Value, verdicts: &[Verdict], shown: &[Shown]) -> String {
    let text = |value: &Value| value.as_str().map_or(value.to_string(), String::from);
    let m = &machine["machine"];
    let notes = vec![
        format!(
            "{}, commit {}: cargo xtask {}",
            text(&machine["time"]),
            text(&machine["commit"]),
            text(&machine["command"])
        ),
        format!(
            "{} processors, {}, {}, Linux {}",
            m["processors"],
            text(&m["model"]),
            text(&m["memory"]),
            text(&m["kernel"])
        ),
        "The broker has one processor, the load the other. Plots show the round with the median processor time.".into(),
    ];
    let rows = verdicts.iter().map(|v| TableRow { cells: v.cells(), missed: !v.holds }).collect();
    let all = Table { head: HEAD.map(String::from).to_vec(), rows };
    let mut sections = vec![Section { title: "All rows".into(), tables: vec![all], ..Section::default() }];
    sections.extend(shown.iter().map(|s| Section {
        title: s.row.clone(),
        notes: s.runs.iter().map(|r| format!("{}: {}", r.label, r.command)).collect(),
        tables: Vec::new(),
        runs: s.runs.iter().collect(),
    }));
    Page { title: "RingMQ and the Java broker 5.4.0".into(), notes, sections }.html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rows::{Figure, both_sides};

    #[test]
    fn floors_hold_at_their_limit_and_not_beyond() {
        let holds = |floor, java, ours| check(&floor, Some(java), ours, Some(100_000.0)).1;
        assert!(holds(Floor::Cpu(25.0), 25_000.0, 1_000.0) && !holds(Floor::Cpu(25.0), 24_999.0, 1_000.0));
        assert!(holds(Floor::Rate(10.0), 1.0, 10.0) && !holds(Floor::Rate(10.0), 1.0, 9.9));
        let p50 = Floor::Latency(Figure::P50, 0.5);
        assert!(holds(p50, 90.0, 45.0) && !holds(p50, 90.0, 45.1));
        assert!(holds(Floor::OverDisk(80_000.0), 0.0, 180_000.0) && !holds(Floor::OverDisk(80_000.0), 0.0, 180_001.0));
        assert!(!check(&Floor::OverDisk(80_000.0), None, 1.0, None).1, "what cannot be told does not hold");
        assert!(!check(&Floor::Cpu(2.0), None, 1.0, None).1);
    }

    #[test]
    fn spreads_leave_out_what_is_no_number() {
        assert_eq!(Spread::of(vec![f64::NAN]), None);
        let spread = Spread::of(vec![3.0, f64::NAN, 1.0, 2.0]).unwrap();
        assert_eq!((spread.least, spread.median, spread.most), (1.0, 2.0, 3.0));
    }

    #[test]
    fn a_row_gives_all_figures_and_the_page_marks_what_is_missed() {
        let row = both_sides().into_iter().find(|r| r.name == "send 128 B, 8 x 64").unwrap();
        let rounds = |cpu: u64| {
            let line = json!({"rate": 1, "server_cpu_ns_per_request": cpu, "p50_us": 1, "p99_us": 2, "p999_us": 3,
                "max_us": 4, "failed": 0});
            vec![super::super::load::neutral(&line, &[]).unwrap()]
        };
        let verdicts = judge(&row, &rounds(20_000), &rounds(1_000), None);
        assert_eq!(verdicts.len(), Figure::ALL.len());
        assert!(!verdicts[0].holds && verdicts[1..].iter().all(|v| v.holds));
        assert_eq!(verdicts[0].json()["java_over_ringmq"], 20.0);
        assert!(table(&verdicts).contains("MISSED"));
        let html = page(&json!({"machine": {"model": "<x>"}}), &verdicts, &[]);
        assert_eq!(html.matches("<tr class=\"missed\">").count(), 1);
        assert!(html.contains("&lt;x&gt;"));
    }
}
