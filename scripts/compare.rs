//! RingMQ and the Java broker side by side: the same load, one after the other, in alternating rounds. The broker has one
//! processor, the load another; whoever is not measured is stopped (SIGSTOP) or not there. Every round is kept.
//!
//! In [`rows`] what is measured and what is demanded, in [`sides`] the brokers, in [`load`] the load generators, in
//! [`verdict`] what the rounds come to; [`alone`] measures what only RingMQ is asked.

mod alone;
mod load;
mod machine;
mod memory;
mod rows;
mod sides;
mod verdict;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::client::Connection;
use crate::project;
use crate::reference::Java;
use crate::report::Report;

use load::{Load, Measured, Which};
use rows::{Figure, Flush, Pace, Row, Work};
use verdict::{Shown, Verdict};

pub use machine::machine;
pub use memory::HeldMemory;
pub use sides::Side;

/// A Java broker with more on the disk is replaced by a new one: a round of large messages writes gigabytes.
const JAVA_STORE_LIMIT: u64 = 5 << 30;
/// Free space that a round needs beyond what it may write: `ringmq bench` asks for a third of that more.
const SPACE: u64 = 3 << 30;

/// How to compare.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Alternating rounds of each row.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds of a round.
    #[arg(long, default_value_t = 10)]
    secs: u64,
    /// Measured seconds of a round of the open loop at half of Java's maximum.
    #[arg(long, default_value_t = 300)]
    open_secs: u64,
    /// Seconds of load before the Java broker is measured.
    #[arg(long, default_value_t = 30)]
    warm_up: u64,
    /// Two short rounds and little warm-up: shows that it works, proves nothing, keeps nothing.
    #[arg(long)]
    quick: bool,
    /// Only groups and rows whose name contains this; may be repeated. `--list` prints them.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Prints groups, rows and what is demanded, and measures nothing.
    #[arg(long)]
    list: bool,
    /// Garbage collector of the Java broker.
    #[arg(long, default_value = "G1")]
    gc: String,
    /// A binary to measure instead of the release build of this checkout.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The load generator: `own` is `ringmq bench`, `neutral` that of ../shared/load.
    #[arg(long, value_enum, default_value = "own")]
    load: Which,
    /// Java on both sides: the ratios are then those of nothing but chance.
    #[arg(long)]
    reference_only: bool,
}

impl Arguments {
    /// A part of the rows has a page of its own, so that it does not take the place of another.
    fn page_extension(&self) -> String {
        let mut name = String::new();
        for c in self.only.join("-").chars() {
            if c.is_ascii_alphanumeric() {
                name.push(c.to_ascii_lowercase());
            } else if !name.ends_with('-') {
                name.push('-');
            }
        }
        name.truncate(60);
        if name.is_empty() { "html".into() } else { format!("{}.html", name.trim_matches('-')) }
    }

    fn wants(&self, group: &str, name: &str) -> bool {
        self.only.is_empty()
            || self.only.iter().any(|only| name.contains(only.as_str()) || group.contains(only.as_str()))
    }
}

/// Measures everything, prints the comparison and adds the rounds to `perf/results`.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let mut a = arguments.clone();
    if a.quick {
        (a.rounds, a.secs, a.open_secs, a.warm_up) = (2, 3, 6, 5);
    }
    let rows: Vec<Row> = rows::both_sides().into_iter().filter(|r| a.wants(r.group, &r.name)).collect();
    if a.list {
        return Ok(list(&a, &rows));
    }
    ensure!(machine::thread_count()? >= 2, "a broker and a load generator need a processor each");
    let mut bench = Bench::new(&a)?;
    let mut report = Report::default();
    for flush in [Flush::Async, Flush::Sync] {
        let rows: Vec<&Row> = rows.iter().filter(|r| r.flush == flush).collect();
        if !rows.is_empty() {
            let result = bench.rows(&rows, flush, &mut report);
            report.add(flush.setting(), result.map(|()| Report::default()));
        }
    }
    for row in alone::ROWS {
        if a.wants(row.group, row.name) {
            println!("\n== {}", row.name);
            let result = (row.measure)(&mut bench);
            bench.conclude(row.name, result, &mut report)?;
        }
    }
    bench.finish()?;
    Ok(report)
}

fn list(a: &Arguments, rows: &[Row]) -> Report {
    for row in rows {
        println!("{:<12} {:<56} {}", row.group, row.name, verdict::demands(&row.floors));
    }
    for row in alone::ROWS.iter().filter(|r| a.wants(r.group, r.name)) {
        println!("{:<12} {}", row.group, row.name);
    }
    Report { passed: 1, ..Report::default() }
}

struct Bench<'a> {
    arguments: &'a Arguments,
    folder: PathBuf,
    results: PathBuf,
    java: Option<Java>,
    binary: PathBuf,
    load: Load,
    machine: Value,
    verdicts: Vec<Verdict>,
    shown: Vec<Shown>,
    /// Java's rate in the first row, once it is known.
    java_rate: Option<f64>,
    /// Anonymous memory of RingMQ at the end of each round, MiB.
    loaded_mib: Vec<f64>,
    _memory: Option<HeldMemory>,
}

impl Bench<'_> {
    fn new(a: &Arguments) -> Result<Bench<'_>> {
        let folder = project::work_folder("compare")?;
        let date = project::output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
        let kept = project::root().join("perf/results").join(format!("{}-compare.jsonl", date.trim()));
        let results = if a.quick || a.reference_only { project::target()?.join("compare.jsonl") } else { kept };
        fs::create_dir_all(results.parent().context("a file without folder")?)?;
        let binary = match &a.binary {
            Some(binary) => fs::canonicalize(binary)?,
            None if a.reference_only && a.load == Which::Neutral => PathBuf::new(),
            None => project::ringmq()?,
        };
        let memory = HeldMemory::hold()?;
        let mut machine = machine()?;
        machine["machine"]["held_bytes"] = memory.as_ref().map_or(0, |memory| memory.bytes).into();
        let bench = Bench {
            arguments: a,
            folder,
            results,
            java: None,
            load: Load::new(a.load, &binary)?,
            binary,
            machine,
            verdicts: Vec::new(),
            shown: Vec::new(),
            java_rate: None,
            loaded_mib: Vec::new(),
            _memory: memory,
        };
        bench.keep(&bench.machine)?;
        Ok(bench)
    }

    /// Adds a line to the results.
    fn keep(&self, line: &Value) -> Result<()> {
        let mut file = File::options().create(true).append(true).open(&self.results)?;
        Ok(writeln!(file, "{line}")?)
    }

    /// The table of everything, and the page beside the results.
    fn finish(&self) -> Result<()> {
        println!("\n{}", verdict::table(&self.verdicts));
        let page = self.results.with_extension(self.arguments.page_extension());
        fs::write(&page, verdict::page(&self.machine, &self.verdicts, &self.shown))?;
        println!("every round: {}\npage: {}", self.results.display(), page.display());
        fs::remove_dir_all(&self.folder)?;
        Ok(())
    }

    /// Takes what a row came to; one that could not be measured has failed.
    fn conclude(&mut self, row: &str, verdicts: Result<Vec<Verdict>>, report: &mut Report) -> Result<()> {
        let verdicts = match verdicts {
            Ok(verdicts) => verdicts,
            Err(why) => {
                report.fail(row, &why);
                return Ok(());
            }
        };
        print!("{}", verdict::table(&verdicts));
        for verdict in &verdicts {
            self.keep(&verdict.json())?;
            let Some(limit) = &verdict.limit else { continue };
            let name = format!("{row}: {} {limit}", verdict.figure);
            if verdict.holds {
                report.pass(&name);
            } else {
                let ratio = verdict.ratio().map_or(String::new(), |r| format!(", Java / RingMQ {r:.2}"));
                report.fail(name, &anyhow::anyhow!("{}{ratio}", (verdict.text)(verdict.ours.median)));
            }
        }
        self.verdicts.extend(verdicts);
        Ok(())
    }

    fn start_ours(&mut self, flush: Flush) -> Result<Side> {
        if self.arguments.reference_only {
            let side = self.start_theirs(flush, "second")?;
            self.warm_up(&side)?;
            return Ok(side);
        }
        sides::start_ours(&self.binary, &self.folder.join("ringmq"), flush)
    }

    fn start_theirs(&mut self, flush: Flush, name: &str) -> Result<Side> {
        if self.java.is_none() {
            self.java = Some(Java::build()?);
        }
        let java = self.java.as_ref().context("the Java programs were not built")?;
        sides::start_theirs(java, &self.folder.join(format!("java-{name}")), flush, &self.arguments.gc)
    }

    fn warm_up(&self, side: &Side) -> Result<()> {
        self.load.run(side, &rows::first(), self.arguments.warm_up).map(drop)
    }

    fn fresh_java(&mut self, flush: Flush) -> Result<Side> {
        println!("\nstarting and warming up the Java broker, {}", flush.setting());
        let side = self.start_theirs(flush, "first")?;
        self.warm_up(&side)?;
        Ok(side)
    }

    /// All rows of a flush mode: one Java broker for them, warmed up once; a RingMQ with an empty store for each round.
    fn rows(&mut self, rows: &[&Row], flush: Flush, report: &mut Report) -> Result<()> {
        let mut theirs = self.fresh_java(flush)?;
        for row in rows {
            println!("\n== {}", row.name);
            if !self.load.can(&row.work) {
                report.skip(&row.name, "the neutral load cannot do it");
                continue;
            }
            let verdicts = self.row(row, &mut theirs);
            self.conclude(&row.name, verdicts, report)?;
            if Connection::open(theirs.address()).is_err() {
                theirs = self.fresh_java(flush)?;
            }
        }
        Ok(())
    }

    fn row(&mut self, row: &Row, theirs: &mut Side) -> Result<Vec<Verdict>> {
        let work = self.paced(&row.work, theirs)?;
        let disk = row.floors.iter().any(|f| matches!(f, rows::Floor::OverDisk(_)));
        let disk_ns = if disk { Some(sides::disk_sync_ns(&self.folder)?) } else { None };
        let (mut java, mut ours) = (Vec::new(), Vec::new());
        for round in 0..self.arguments.rounds {
            if sides::disk_use(&theirs.store())? > JAVA_STORE_LIMIT {
                self.replace(theirs, row.flush)?;
            }
            java.push(self.round(row, &work, round, "java", theirs)?);
            let paused = theirs.pause()?;
            let side = self.start_ours(row.flush)?;
            ours.push(self.round(row, &work, round, "ringmq", &side)?);
            drop(side);
            drop(paused);
        }
        if row.work == rows::first() && row.flush == Flush::Async {
            self.java_rate =
                verdict::Spread::of(java.iter().filter_map(|m| m.figure(Figure::Rate)).collect()).map(|s| s.median);
        }
        if let Some(disk_ns) = disk_ns {
            self.keep(&json!({"row": row.name, "disk_write_and_fdatasync_p50_ns": disk_ns.round()}))?;
        }
        self.show(row, &java, &ours);
        Ok(verdict::judge(row, &java, &ours, disk_ns))
    }

    /// A Java broker with an empty store in the place of one whose store has grown large.
    fn replace(&mut self, theirs: &mut Side, flush: Flush) -> Result<()> {
        if let Side::Theirs(reference) = theirs {
            reference.stop()?;
        }
        *theirs = self.fresh_java(flush)?;
        Ok(())
    }

    /// The same work with its rate, where that depends on Java's.
    fn paced(&mut self, work: &Work, theirs: &Side) -> Result<Work> {
        if work.pace != Pace::HalfOfJava {
            return Ok(work.clone());
        }
        let rate = match self.java_rate {
            Some(rate) => rate,
            None => self.load.run(theirs, &rows::first(), self.arguments.secs)?.figure(Figure::Rate).unwrap_or(0.0),
        };
        Ok(Work { pace: Pace::Rate((rate / 2.0).max(1.0)), ..work.clone() })
    }

    fn show(&mut self, row: &Row, java: &[Measured], ours: &[Measured]) {
        let typical = [("java", java), ("ringmq", ours)].into_iter().filter_map(|(label, rounds)| {
            let mut run = verdict::typical(rounds)?.clone();
            run.label = label.into();
            run.command = machine::without_folders(run.command.split(' ').map(String::from));
            Some(run)
        });
        let runs: Vec<_> = typical.collect();
        if !runs.is_empty() {
            self.shown.push(Shown { row: row.name.clone(), runs });
        }
    }

    fn round(&mut self, row: &Row, work: &Work, round: usize, name: &str, side: &Side) -> Result<Measured> {
        sides::ensure_space(&self.folder, work.most_bytes() + SPACE)?;
        let secs = if row.long { self.arguments.open_secs } else { self.arguments.secs };
        let measured = self.load.run(side, work, secs).with_context(|| format!("{name}, round {round}"))?;
        let anonymous = machine::anonymous_mib(side.pid()?)?;
        self.keep(&json!({"row": row.name, "flush": row.flush.setting(), "side": name, "round": round,
            "anonymous_mib": anonymous.round(), "result": measured.kept}))?;
        if matches!(side, Side::Ours(_)) {
            self.loaded_mib.push(anonymous);
        }
        println!("{name:>7} {round}: {}, {anonymous:.0} MiB", summary(&measured));
        Ok(measured)
    }
}

fn summary(measured: &Measured) -> String {
    let figures = Figure::ALL
        .into_iter()
        .filter_map(|f| Some(format!("{} {}", f.name(), verdict::text_of(f)(measured.figure(f)?))));
    figures.collect::<Vec<_>>().join(", ")
}

/// Sorts the figures and gives the one in the middle.
pub fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Waits until what was written has reached the disk, so that it does not slow down what is measured next.
fn settle(folder: &Path) -> Result<()> {
    rustix::fs::syncfs(File::open(folder)?)?;
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Arguments {
        Line::try_parse_from(line.split('|')).unwrap().arguments
    }

    #[test]
    fn rows_are_chosen_by_group_and_by_name() {
        let a = parse("compare|--only|async|--only|pull 1");
        assert!(a.wants("async", "send") && a.wants("pull", "pull 1 x 128 B") && !a.wants("pull", "pull 32 x 128 B"));
        assert!(parse("compare").wants("sync", "any"));
    }

    #[test]
    fn each_part_has_its_page() {
        assert_eq!(parse("compare").page_extension(), "html");
        assert_eq!(parse("compare|--only|end to end|--only|128 B, 1/x").page_extension(), "end-to-end-128-b-1-x.html");
    }
}
