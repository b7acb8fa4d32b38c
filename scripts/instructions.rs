//! `cargo xtask instructions`: what the hot functions cost in instructions and allocations, against the figures of
//! `perf/instructions.json`. A function that takes 5 % more than its figure fails; what has become cheaper is told, so that its
//! figure is lowered.
//!
//! The cases are those of `perf/micro`, each counted warm, in one run under callgrind. The counts are of our own code and
//! repeat exactly: the toolchain and the crates are pinned, the program sees no clock, and what depends on the machine is
//! left out (see [`is_ours`]). `gungraun`, which does the same for a single function, is not used: its runner has to be
//! compiled aside for minutes in exactly the version of its library, its base line is a folder of the machine it ran on and no
//! list that can be committed, and its counts hold the C library's copies, which differ from processor to processor.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::project;
use crate::report::Report;

/// The figures, from the root of the project.
const FIGURES: &str = "perf/instructions.json";
/// A function may take so many times its figure.
const MAY_GROW: f64 = 1.05;
/// Below this part of its figure it is told.
const MAY_SHRINK: f64 = 0.95;
/// The function of `perf/micro/benches/instructions.rs` that is entered once for each case.
const COUNTED: &str = "instructions::counted_calls";
/// Functions of a case that `--functions` lists.
const LISTED: usize = 20;

/// What to do with the counts.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Arguments {
    /// Take the counts as the new figures instead of comparing them.
    #[arg(long)]
    write: bool,
    /// List the functions that the cases whose name contains this spend most of their instructions in.
    #[arg(long, value_name = "TEXT")]
    functions: Option<String>,
}

impl Arguments {
    /// Whether nothing is compared.
    pub fn lists(&self) -> bool {
        self.functions.is_some()
    }
}

/// What one call of a case costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    instructions: u64,
    allocations: u64,
}

/// A case as callgrind saw it.
struct Counted {
    name: String,
    cost: Cost,
    /// Instructions of each function for one call.
    functions: HashMap<String, f64>,
}

/// Builds, counts, and compares.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let mut report = Report::default();
    if let Some(why) = cannot_count() {
        ensure!(!arguments.write, "{why}");
        report.skip("instructions of hot functions", why);
        return Ok(report);
    }
    let counted = count(&build()?)?;
    if let Some(text) = &arguments.functions {
        counted.iter().filter(|case| case.name.contains(text)).for_each(list_functions);
        return Ok(report);
    }
    let file = project::root().join(FIGURES);
    if arguments.write {
        fs::write(&file, as_text(&counted))?;
        println!("{FIGURES}: {} figures", counted.len());
        report.passed += counted.len() as u64;
        return Ok(report);
    }
    let text = fs::read_to_string(&file).with_context(|| format!("reading {FIGURES}"))?;
    compare(&figures(&text)?, &counted, &mut report);
    Ok(report)
}

/// Why this machine's counts would say nothing.
fn cannot_count() -> Option<&'static str> {
    let installed = Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success());
    if !cfg!(target_arch = "x86_64") {
        Some("the figures are those of an x86-64 processor")
    } else if !installed {
        Some("valgrind is not installed")
    } else {
        None
    }
}

/// Builds the program of the cases as a release is built; gives its path.
fn build() -> Result<PathBuf> {
    let build = ["build", "--release", "--locked", "--package", "micro", "--bench", "instructions"];
    let mut command = project::cargo(build)?;
    // Another processor than every release is built for would give other counts.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let messages = project::output(command.args(["--message-format", "json-render-diagnostics"]))?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "instructions")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo names no program of the cases")
}

/// Runs the program under callgrind, which writes one profile for each case, and reads them.
fn count(program: &Path) -> Result<Vec<Counted>> {
    let folder = project::work_folder("instructions")?;
    let profile = folder.join("profile");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no", "--dump-line=no"]);
    command.args([format!("--zero-before={COUNTED}"), format!("--dump-after={COUNTED}")]);
    command.arg(format!("--callgrind-out-file={}", profile.display()));
    command.arg(format!("--log-file={}", folder.join("log").display())).arg(program);
    let names = project::output(&mut command)?;
    let own = program.to_str().context("a path that is no text")?;
    let mut counted = Vec::new();
    for (line, number) in names.lines().zip(1..) {
        let (calls, name) = line.split_once('\t').context("the program names no case")?;
        let text = fs::read_to_string(folder.join(format!("profile.{number}")))
            .with_context(|| format!("callgrind gave no profile of {name}: has {COUNTED} another name?"))?;
        counted.push(read_profile(&text, own, name, calls.parse()?)?);
    }
    ensure!(!counted.is_empty(), "the program has no cases");
    fs::remove_dir_all(folder)?;
    Ok(counted)
}

/// Adds up a profile in callgrind's format: lines `ob=` and `fn=` name the program or library and the function that the costs
/// below belong to; the line after `calls=` is the cost of what was called, which stands with that function, too.
fn read_profile(text: &str, own: &str, name: &str, calls: u32) -> Result<Counted> {
    let (mut object, mut function, mut callee, mut of_call) = ("", "", "", false);
    let (mut functions, mut allocations): (HashMap<&str, u64>, u64) = (HashMap::new(), 0);
    for line in text.lines() {
        let ours = object == own && is_ours(function);
        if let Some(value) = line.strip_prefix("ob=") {
            object = value;
        } else if let Some(value) = line.strip_prefix("fn=") {
            function = value;
        } else if let Some(value) = line.strip_prefix("cfn=") {
            callee = value;
        } else if let Some(value) = line.strip_prefix("calls=") {
            of_call = true;
            if ours && matches!(callee, "malloc" | "calloc" | "realloc" | "posix_memalign" | "aligned_alloc") {
                allocations += first_number(value)?;
            }
        } else if line.starts_with(|first: char| first.is_ascii_digit()) && !std::mem::take(&mut of_call) && ours {
            let (_, cost) = line.split_once(' ').context("a cost without a number")?;
            *functions.entry(function).or_default() += first_number(cost)?;
        }
    }
    let total: u64 = functions.values().sum();
    ensure!(total > 0, "callgrind counted nothing of {name}");
    let a_call = |count: u64| count as f64 / f64::from(calls);
    let cost = Cost { instructions: a_call(total).round() as u64, allocations: a_call(allocations).round() as u64 };
    let functions = functions.into_iter().map(|(function, count)| (function.to_owned(), a_call(count))).collect();
    Ok(Counted { name: name.to_owned(), cost, functions })
}

fn first_number(text: &str) -> Result<u64> {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.parse().with_context(|| format!("`{text}` does not begin with a number"))
}

/// Whether the instructions of a function of the program are the same on each machine. Not those of the crates that look at the
/// processor and choose: searches of bytes and checksums; nor the system calls about the page cache, of which valgrind
/// knows more in each version. The C library (copies, comparisons, allocation) is no part of the program and so not counted.
fn is_ours(function: &str) -> bool {
    let path = function.trim_start_matches(['<', '&']);
    !["memchr::", "crc32fast::", "sys::real_disk::"].iter().any(|other| path.starts_with(other))
}

/// The committed figures.
fn figures(text: &str) -> Result<BTreeMap<String, Cost>> {
    let Value::Object(map) = serde_json::from_str(text).with_context(|| format!("reading {FIGURES}"))? else {
        bail!("{FIGURES} is no JSON object");
    };
    let cost = |value: &Value| {
        Some(Cost { instructions: value["instructions"].as_u64()?, allocations: value["allocations"].as_u64()? })
    };
    map.iter()
        .map(|(name, value)| Ok((name.clone(), cost(value).with_context(|| format!("{name} has no figures"))?)))
        .collect()
}

/// The counts as the file of figures: a line for each case, in the order of the cases.
fn as_text(counted: &[Counted]) -> String {
    let mut text = String::from("{\n");
    for (at, Counted { name, cost, .. }) in counted.iter().enumerate() {
        let end = if at + 1 < counted.len() { "," } else { "" };
        let (name, Cost { instructions, allocations }) = (Value::from(name.as_str()), cost);
        let line = format!("  {name}: {{\"instructions\": {instructions}, \"allocations\": {allocations}}}{end}");
        writeln!(text, "{line}").expect("a text takes all");
    }
    text + "}\n"
}

/// Prints the table; each case is a test, and what fails is named once more below it.
fn compare(figures: &BTreeMap<String, Cost>, counted: &[Counted], report: &mut Report) {
    println!("{:>12} {:>12} {:>8}  {:>11}  for one call of", "figure", "now", "change", "allocations");
    for Counted { name, cost, .. } in counted {
        let now = cost.instructions;
        let Some(figure) = figures.get(name) else {
            println!("{:>12} {now:>12} {:>8}  {:>11}  {name}: NEW", "-", "-", cost.allocations);
            continue;
        };
        let change = (now as f64 / figure.instructions as f64 - 1.0) * 100.0;
        let allocations = format!("{} -> {}", figure.allocations, cost.allocations);
        let note = match verdict(*figure, *cost) {
            Verdict::Holds => "",
            Verdict::Grew => ": GREW",
            Verdict::Shrank => ": cheaper",
        };
        println!("{:>12} {now:>12} {change:>+7.1}%  {allocations:>11}  {name}{note}", figure.instructions);
    }
    println!();
    let mut cheaper = 0;
    for Counted { name, cost, .. } in counted {
        match figures.get(name).map(|figure| (figure, verdict(*figure, *cost))) {
            None => report.fail(name.as_str(), &anyhow!("it has no figure in {FIGURES}")),
            Some((figure, Verdict::Grew)) => report.fail(format!("instructions of {name}"), &grew(*figure, *cost)),
            Some((_, verdict)) => {
                report.passed += 1;
                cheaper += u64::from(verdict == Verdict::Shrank);
            }
        }
    }
    for name in figures.keys().filter(|name| counted.iter().all(|case| case.name != **name)) {
        report.fail(name.as_str(), &anyhow!("{FIGURES} has a figure of it, and there is no such case"));
    }
    if !report.failed.is_empty() {
        println!(
            "`cargo xtask instructions --functions TEXT` shows where a case spends its instructions. If a function has to"
        );
        println!("cost more, `cargo xtask instructions --write` makes the counts the figures; the commit says why.");
    } else if cheaper > 0 {
        println!("{cheaper} cheaper than 5 % below the figure: `cargo xtask instructions --write` keeps it so.");
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Holds,
    Grew,
    Shrank,
}

fn verdict(figure: Cost, now: Cost) -> Verdict {
    let parts = [(figure.instructions, now.instructions), (figure.allocations, now.allocations)];
    let parts = parts.map(|(figure, now)| (figure as f64, now as f64));
    if parts.iter().any(|(figure, now)| *now > figure * MAY_GROW) {
        Verdict::Grew
    } else if parts.iter().any(|(figure, now)| *now < figure * MAY_SHRINK) {
        Verdict::Shrank
    } else {
        Verdict::Holds
    }
}

fn grew(figure: Cost, now: Cost) -> Error {
    anyhow!(
        "{} instructions and {} allocations; the figure is {} and {}",
        now.instructions,
        now.allocations,
        figure.instructions,
        figure.allocations
    )
}

fn list_functions(case: &Counted) {
    println!("\n{}: {} instructions, {} allocations", case.name, case.cost.instructions, case.cost.allocations);
    let mut functions: Vec<_> = case.functions.iter().collect();
    functions.sort_by(|a, b| b.1.total_cmp(a.1).then(a.0.cmp(b.0)));
    functions.iter().take(LISTED).for_each(|(function, count)| println!("{count:>12.1}  {function}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "part: 1\n\npositions: line\nevents: Ir\n\n\
        ob=/x/instructions\nfl=a.rs\nfn=remoting::scan::scan\n15 300\nfi=b.rs\n8 50\n\
        cob=/lib/libc.so.6\ncfi=???\ncfn=malloc\ncalls=10 0 \n15 9000\n16 25\n\n\
        fn=memchr::arch::find\n1 700\n\n\
        ob=/lib/libc.so.6\nfn=malloc\n1 9000\ncfn=malloc\ncalls=10 1 \n1 50\n\ntotals: 375\n";

    #[test]
    fn only_own_code_is_counted_and_calls_are_not_counted_twice() {
        let counted = read_profile(PROFILE, "/x/instructions", "a case", 10).unwrap();
        assert_eq!(counted.cost, Cost { instructions: 38, allocations: 1 });
        assert_eq!(counted.functions, HashMap::from([("remoting::scan::scan".into(), 37.5)]));
        assert!(read_profile(PROFILE, "/y/other", "a case", 10).is_err(), "nothing is no count");
    }

    #[test]
    fn a_figure_may_be_passed_by_five_percent() {
        let cost = |instructions, allocations| Cost { instructions, allocations };
        assert_eq!(verdict(cost(1_000, 0), cost(1_050, 0)), Verdict::Holds);
        assert_eq!(verdict(cost(1_000, 0), cost(1_051, 0)), Verdict::Grew);
        assert_eq!(verdict(cost(1_000, 0), cost(900, 1)), Verdict::Grew);
        assert_eq!(verdict(cost(1_000, 0), cost(950, 0)), Verdict::Holds);
        assert_eq!(verdict(cost(1_000, 2), cost(1_000, 1)), Verdict::Shrank);
    }

    #[test]
    fn written_figures_are_read_back_and_a_case_more_or_less_fails() {
        let case = |name: &str, instructions| Counted {
            name: name.into(),
            cost: Cost { instructions, allocations: 1 },
            functions: HashMap::new(),
        };
        let before = figures(&as_text(&[case("a", 100), case("b \"quoted\"", 200)])).unwrap();
        let outcome = |now: &[Counted]| {
            let mut report = Report::default();
            compare(&before, now, &mut report);
            (report.passed, report.failed.len())
        };
        assert_eq!(outcome(&[case("a", 105), case("b \"quoted\"", 100)]), (2, 0));
        assert_eq!(outcome(&[case("a", 106), case("c", 1)]), (0, 3));
        assert!(figures("[]").is_err() && figures("{\"a\": {\"instructions\": 1}}").is_err());
    }
}
