//! Everything that must pass before a change lands, in one run with one line of counts.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::report::Report;
use crate::{compat, instructions, interop, kill, project, verify};

/// Executions of each fuzz target in a full run.
const FUZZ_EXECUTIONS: u64 = 1_000_000;

/// The whole run: checks, cargo's tests with the fuzz drivers, crashes, Java both ways, the shared suites.
pub fn run() -> Result<Report> {
    project::run(&mut Command::new(project::root().join("scripts/setup")))?;
    let mut report = Report::default();
    title("checks");
    report.add("checks", Ok(verify::run()));
    title("tests of the crates, with the fuzz drivers");
    report.add("tests of the crates", cargo_tests(FUZZ_EXECUTIONS, None));
    title("kill -9 and other numbers of cores and shards");
    report.add("kill -9", kill::run(&kill::Arguments::usual()));
    title("instructions of hot functions");
    report.add("instructions of hot functions", instructions::run(&instructions::Arguments::default()));
    title("Java both ways");
    match missing(&["java", "mvn"]) {
        None => report.add("Java both ways", compat::run(&compat::Arguments::default())),
        Some(program) => report.skip("Java both ways", &format!("{program} is not installed")),
    }
    title("official clients and socket cases");
    match missing(&["java", "mvn", "go", "python3"]) {
        None => report.add("interop and cases", interop::run(&interop::Arguments::all())),
        Some(program) => report.skip("interop and cases", &format!("{program} is not installed")),
    }
    Ok(report)
}

fn title(text: &str) {
    println!("\n==== {text}");
}

fn missing<'a>(programs: &[&'a str]) -> Option<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    programs.iter().find(|program| !installed(program)).copied()
}

/// `cargo test` of the workspace, all targets and documentation, or of the tests whose name holds a text.
pub fn cargo_tests(fuzz_executions: u64, filter: Option<&str>) -> Result<Report> {
    let mut command = project::cargo(["test", "--workspace", "--locked", "--no-fail-fast"])?;
    command.args(filter).env("FUZZ_EXECUTIONS", fuzz_executions.to_string());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting cargo test")?;
    let mut report = Report::default();
    for line in BufReader::new(child.stdout.take().context("cargo has no output")?).lines() {
        let line = line?;
        println!("{line}");
        count(&line, &mut report);
    }
    let status = child.wait()?;
    if !status.success() && report.failed.is_empty() {
        report.failed.push(format!("cargo test ended with {status}"));
    }
    Ok(report)
}

/// Counts a line of the test harness.
fn count(line: &str, report: &mut Report) {
    let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) else { return };
    match outcome.split([',', ' ']).next().unwrap_or_default() {
        "ok" => report.passed += 1,
        "FAILED" => report.failed.push(name.into()),
        "ignored" => {
            report.skipped.push(format!("{name}: {}", outcome.trim_start_matches("ignored").trim_matches([',', ' '])))
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_harness_are_counted() {
        let mut report = Report::default();
        let lines = "running 4 tests\ntest a::b ... ok\ntest c - should panic ... ok\ntest d ... FAILED\n\
                     test e ... ignored, needs a disk\ntest result: FAILED. 2 passed; 1 failed; 1 ignored";
        lines.lines().for_each(|line| count(line, &mut report));
        let failed = vec!["d".to_string()];
        assert_eq!(report, Report { passed: 2, failed, skipped: vec!["e: needs a disk".into()] });
    }
}
