//! One page of HTML with tables and plots of several results; it needs nothing but itself.
//!
//! Role: sections of runs that are compared, each with its table and its plots laid over one another. Invariants: no
//! address of any kind in it, no script; every name is escaped; light or dark as the reader's system is.

use std::fmt::Write;

use super::chart::{Axis, COLOURS, Chart, Line, Scale, Stroke, escape};
use super::text::{figures, latency_table, load};
use super::units::{duration, number, tick};
use crate::result::{RunResult, Sample};

const STYLE: &str = include_str!("page.css");
const MIB: f64 = 1048576.0;

/// A page.
#[derive(Debug, Clone, Default)]
pub struct Page<'a> {
    /// Its heading.
    pub title: String,
    /// Lines below the heading: machine, command, date.
    pub notes: Vec<String>,
    /// What follows.
    pub sections: Vec<Section<'a>>,
}

/// Runs that are compared.
#[derive(Debug, Clone, Default)]
pub struct Section<'a> {
    /// Its heading.
    pub title: String,
    /// Lines below the heading.
    pub notes: Vec<String>,
    /// Tables above the plots.
    pub tables: Vec<Table>,
    /// Runs whose plots are laid over one another; their labels make the legend.
    pub runs: Vec<&'a RunResult>,
}

/// A table.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// One text for each column.
    pub cells: Vec<String>,
    /// It misses what was demanded, and is shown so.
    pub missed: bool,
}

impl From<Vec<String>> for Row {
    fn from(cells: Vec<String>) -> Row {
        Row { cells, missed: false }
    }
}

/// The page of some runs that belong together, with a table of all their figures.
pub fn page_of(title: &str, runs: &[RunResult]) -> String {
    let mut section = Section { title: "Figures".into(), runs: runs.iter().collect(), ..Section::default() };
    section.notes =
        runs.iter().map(|r| format!("{}: {}; {}; {}", r.label, load(&r.options), r.started, r.command)).collect();
    section.tables = vec![figure_table(runs), latencies_of(runs)];
    Page { title: title.into(), notes: Vec::new(), sections: vec![section] }.html()
}

fn figure_table(runs: &[RunResult]) -> Table {
    let head = std::iter::once(String::new()).chain(runs.iter().map(|r| r.label.clone())).collect();
    let all: Vec<Vec<(&str, String)>> = runs.iter().map(figures).collect();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in all.iter().flatten() {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let value =
        |run: &Vec<(&str, String)>, name: &str| run.iter().find(|f| f.0 == name).map_or("-".into(), |f| f.1.clone());
    let row = |name: &&str| {
        let values = all.iter().map(|run| value(run, name));
        Row::from(std::iter::once(name.to_string()).chain(values).collect::<Vec<_>>())
    };
    Table { head, rows: names.iter().map(row).collect() }
}

fn latencies_of(runs: &[RunResult]) -> Table {
    let mut table = Table::default();
    for run in runs {
        let mut rows = latency_table(&run.latencies).into_iter();
        table.head = rows.next().unwrap_or_default();
        table.rows.extend(rows.map(|mut cells| {
            if let Some(first) = cells.first_mut() {
                *first = format!("{}, {first}", run.label);
            }
            Row::from(cells)
        }));
    }
    table
}

impl Page<'_> {
    /// The whole text of the page.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\n<style>\n{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        );
        notes(&mut html, &self.notes);
        for section in &self.sections {
            section.html(&mut html);
        }
        html.push_str("</body></html>\n");
        html
    }
}

fn notes(html: &mut String, notes: &[String]) {
    for note in notes {
        // A text always takes what is written.
        let _ = writeln!(html, "<p>{}</p>", escape(note));
    }
}

impl Section<'_> {
    fn html(&self, html: &mut String) {
        let _ = writeln!(html, "<h2>{}</h2>", escape(&self.title));
        notes(html, &self.notes);
        for table in &self.tables {
            table.html(html);
        }
        if self.runs.is_empty() {
            return;
        }
        html.push_str("<div class=\"legend\">");
        for (at, run) in self.runs.iter().enumerate() {
            let _ = write!(html, "<span class=\"k{}\">{}</span>", at % COLOURS, escape(&run.label));
        }
        html.push_str("</div>\n<div class=\"charts\">\n");
        for chart in charts(&self.runs) {
            let _ = writeln!(html, "<div>{}</div>", chart.svg());
        }
        html.push_str("</div>\n");
    }
}

impl Table {
    fn html(&self, html: &mut String) {
        html.push_str("<div class=\"scroll\"><table><tr>");
        for cell in &self.head {
            let _ = write!(html, "<th>{}</th>", escape(cell));
        }
        html.push_str("</tr>\n");
        for row in &self.rows {
            html.push_str(if row.missed { "<tr class=\"missed\">" } else { "<tr>" });
            for cell in &row.cells {
                let _ = write!(html, "<td>{}</td>", escape(cell));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</table></div>\n");
    }
}

/// The plots of runs laid over one another; those that nothing was measured for are left out.
fn charts(runs: &[&RunResult]) -> Vec<Chart> {
    let all = [rates(runs), latency_over_time(runs), percentiles(runs), processor(runs), memory(runs)];
    all.into_iter().filter(|chart| chart.lines.iter().any(|line| !line.points.is_empty())).collect()
}

const SECONDS: Axis = Axis { label: "seconds", scale: Scale::Linear, tick: plain };
const LATENCY: Axis = Axis { label: "latency, logarithmic", scale: Scale::Log, tick: |ns| tick(&duration(ns)) };

fn plain(value: f64) -> String {
    tick(&number(value))
}

/// A line for each run: of each sample what there is.
fn series(runs: &[&RunResult], what: &str, stroke: Stroke, of: impl Fn(&Sample) -> Option<f64>) -> Vec<Line> {
    let line = |(colour, run): (usize, &&RunResult)| {
        let points = run.samples.iter().filter_map(|s| Some((s.at_s, of(s)?))).collect();
        Line { name: format!("{} {what}", run.label), colour, stroke, points }
    };
    runs.iter().enumerate().map(line).collect()
}

fn rates(runs: &[&RunResult]) -> Chart {
    let y = Axis { label: "operations per second", scale: Scale::Linear, tick: plain };
    let of = |s: &Sample| (s.length_s > 0.0).then(|| s.operations as f64 / s.length_s);
    Chart { title: "Rate", x: SECONDS, y, lines: series(runs, "operations per second", Stroke::Solid, of) }
}

fn latency_over_time(runs: &[&RunResult]) -> Chart {
    let ns = |ns: Option<u64>| ns.map(|ns| ns as f64);
    let mut lines = series(runs, "p50", Stroke::Solid, |s| ns(s.p50_ns));
    lines.extend(series(runs, "p99", Stroke::Dashed, |s| ns(s.p99_ns)));
    lines.extend(series(runs, "max", Stroke::Dotted, |s| ns(s.max_ns)));
    Chart { title: "Latency: p50 solid, p99 dashed, max dotted", x: SECONDS, y: LATENCY, lines }
}

/// One line for each run and kind; the main kind solid.
fn percentiles(runs: &[&RunResult]) -> Chart {
    // What is left until quantile 1, turned around: 10 is 90 %, 100 is 99 %.
    let tick = |left: f64| if left < 5.0 { "0 %".into() } else { format!("{} %", 100.0 - 100.0 / left) };
    let x = Axis { label: "percentile", scale: Scale::Log, tick };
    let mut lines = Vec::new();
    for (colour, run) in runs.iter().enumerate() {
        for (at, latency) in run.latencies.iter().enumerate() {
            // The maximum stands where the last of so many values does.
            let most = latency.count.max(1) as f64;
            let points = latency.steps.iter().map(|&(q, ns, _)| ((1.0 / (1.0 - q)).min(most), ns as f64)).collect();
            let stroke = [Stroke::Solid, Stroke::Dashed, Stroke::Dotted][at.min(2)];
            lines.push(Line { name: format!("{} {}", run.label, latency.kind.name()), colour, stroke, points });
        }
    }
    Chart { title: "Latency by percentile", x, y: LATENCY, lines }
}

fn processor(runs: &[&RunResult]) -> Chart {
    let cores = |s: &Sample, cpu: Option<f64>| cpu.filter(|_| s.length_s > 0.0).map(|cpu| cpu / s.length_s);
    let mut lines = series(runs, "broker", Stroke::Solid, |s| cores(s, s.broker_cpu_s));
    lines.extend(series(runs, "load", Stroke::Dotted, |s| cores(s, s.load_cpu_s)));
    let y = Axis { label: "cores", scale: Scale::Linear, tick: plain };
    Chart { title: "Processor: broker solid, load dotted", x: SECONDS, y, lines }
}

fn memory(runs: &[&RunResult]) -> Chart {
    let mib = |bytes: Option<u64>| bytes.map(|b| b as f64 / MIB);
    let mut lines = series(runs, "anonymous", Stroke::Solid, |s| mib(s.broker_anonymous_bytes));
    lines.extend(series(runs, "resident", Stroke::Dotted, |s| mib(s.broker_resident_bytes)));
    let y = Axis { label: "MiB, logarithmic", scale: Scale::Log, tick: plain };
    Chart { title: "Memory of the broker: anonymous solid, resident dotted", x: SECONDS, y, lines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixtures::run;

    const HOSTILE: &str = "</style><script>alert(1)</script>&\"'";

    #[test]
    fn several_runs_lie_over_one_another() {
        let html = page_of("Two", &[run("java", 30), run("ringmq", 30)]);
        assert_eq!(html.matches("<svg").count(), 5);
        // p50, p99 and max of two runs, among others.
        for name in ["java p50", "java p99", "java max", "ringmq p50", "ringmq anonymous", "java send", "ringmq broker"]
        {
            assert!(html.contains(&format!("<title>{name}</title>")), "{name}");
        }
        assert!(html.contains("<span class=\"k1\">ringmq</span>") && html.contains("1,700 ns per operation"));
        assert!(html.contains("99.9 %") && html.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn a_page_needs_nothing_but_itself() {
        let html = page_of("One", &[run("a", 3)]);
        for outside in ["://", "src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!html.contains(outside), "{outside}");
        }
    }

    #[test]
    fn names_are_only_text() {
        let mut result = run(HOSTILE, 3);
        for name in [&mut result.workload, &mut result.command, &mut result.started, &mut result.options.size] {
            *name = HOSTILE.into();
        }
        result.options.other = [(HOSTILE.into(), HOSTILE.into())].into();
        let html = page_of(HOSTILE, &[result]);
        assert!(!html.contains("<script") && html.matches("</style>").count() == 1);
    }

    #[test]
    fn empty_one_sample_and_huge_values() {
        assert!(page_of("None", &[]).contains("<h1>None</h1>"));
        let mut empty = run("empty", 0);
        empty.latencies.clear();
        assert!(!page_of("Empty", &[empty]).contains("<svg"));
        let mut one = run("one", 1);
        one.samples[0].operations = u64::MAX;
        one.samples[0].max_ns = Some(u64::MAX);
        one.samples[0].length_s = f64::MIN_POSITIVE;
        one.rate = f64::INFINITY;
        one.latencies[0].steps = vec![(1.0, u64::MAX, u64::MAX), (f64::NAN, 0, 0)];
        let html = page_of("One", &[one]);
        assert!(html.contains("<circle") && !html.contains("NaN") && !html.contains(">inf"), "{html}");
    }

    #[test]
    fn rows_that_miss_are_marked() {
        let row = |text: &str, missed| Row { cells: vec![text.into()], missed };
        let table = Table { head: vec!["a".into()], rows: vec![row("good", false), row("bad", true)] };
        let section = Section { title: "s".into(), tables: vec![table], ..Section::default() };
        let html = Page { title: "t".into(), notes: vec!["n".into()], sections: vec![section] }.html();
        assert!(html.contains("<tr><td>good</td>") && html.contains("<tr class=\"missed\"><td>bad</td>"));
    }
}
