//! Runs the shared suites against a release `ringmq`: official clients (`interop`) and plain sockets (`cases`), the
//! latter also on the store's files and on cases that take minutes. `cases.list` says which cases RingMQ passes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::project;
use crate::report::Report;
use crate::server::{Options, Server};

/// What to run.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Number of shards; may be repeated.
    #[arg(long = "shards", value_name = "N", default_values_t = [1, 2])]
    shards: Vec<u16>,
    /// Only these cases of both suites instead of those of scripts/cases.list; may be repeated.
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// Only this suite: `interop` or `cases`.
    #[arg(long, value_name = "SUITE")]
    suite: Option<String>,
    /// A binary to judge instead of the release build of this checkout.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// More settings of the server, each KEY=VALUE; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl Arguments {
    /// All listed cases at one and at two shards.
    pub fn all() -> Arguments {
        Arguments { shards: vec![1, 2], only: vec![], suite: None, binary: None, settings: vec![] }
    }
}

/// Runs the suites at each number of shards.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let mut report = Report::default();
    let Some(shared) = project::shared() else {
        report.skip("interop and cases", "there is no ../shared beside this checkout");
        return Ok(report);
    };
    let binary = arguments.binary.clone().map_or_else(project::ringmq, Ok)?;
    let list = fs::read_to_string(project::root().join("scripts/cases.list"))?;
    for shards in &arguments.shards {
        for suite in ["interop", "cases"] {
            if arguments.suite.as_deref().is_some_and(|s| s != suite) {
                continue;
            }
            let selection = selection(&list, suite, &arguments.only)?;
            let options = arguments.settings.iter().fold(Options::suite(*shards), |o, s| o.set(s));
            let name = format!("{suite} at {shards} shards");
            println!("\n== {name}");
            report.add(&name, run_suite(&shared, &binary, suite, &options, selection));
        }
    }
    Ok(report)
}

/// The `--only` and `--skip` words of a suite.
fn selection(list: &str, suite: &str, only: &[String]) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for line in list.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (kind, glob) =
            line.split_once(' ').with_context(|| format!("cases.list: {line:?} is no suite and glob"))?;
        ensure!(
            ["interop", "interop-skip", "cases", "cases-skip"].contains(&kind),
            "cases.list: there is no suite {kind}"
        );
        match kind.strip_prefix(suite) {
            Some("") if only.is_empty() => words.extend(["--only".into(), glob.trim().into()]),
            Some("-skip") => words.extend(["--skip".into(), glob.trim().into()]),
            _ => {}
        }
    }
    for glob in only {
        words.extend(["--only".into(), glob.clone()]);
    }
    Ok(words)
}

fn run_suite(shared: &Path, binary: &Path, suite: &str, options: &Options, selection: Vec<String>) -> Result<Report> {
    let folder = project::work_folder(suite)?;
    let server = Server::start(binary, &folder, options)?;
    let results = folder.join("results.json");
    let mut command = Command::new("python3");
    command.arg(shared.join(suite).join("run")).args(selection).arg("--json").arg(&results);
    command.arg("--namesrv").arg(server.namesrv.to_string());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    if suite == "cases" {
        add_server_controls(&mut command, &server)?;
    }
    // The suite says itself what failed; a status is not enough to count by.
    let ended = project::run(&mut command);
    let mut report = read_results(&results, suite, options.shards.unwrap_or(1)).or_else(|e| ended.and(Err(e)))?;
    if let Err(why) = server.finish() {
        report.fail(format!("stop of the server after {suite}"), &why);
    }
    if report.failed.is_empty() {
        fs::remove_dir_all(&folder)?;
    } else {
        println!("the server's log and store stay in {}", folder.display());
    }
    Ok(report)
}

fn add_server_controls(command: &mut Command, server: &Server) -> Result<()> {
    let program = std::env::current_exe()?;
    let control = |verb: &str| format!("'{}' server {verb} '{}'", program.display(), server.folder().display());
    let pid = server.pid()?.to_string();
    command.args(["--pid", &pid, "--ns-pid", &pid, "--patient", "--broker", &server.broker.to_string()]);
    command.arg("--store").arg(server.data());
    command.args(["--stop-cmd", &control("stop"), "--kill-cmd", &control("kill"), "--restart-cmd", &control("start")]);
    Ok(())
}

fn read_results(file: &Path, suite: &str, shards: u16) -> Result<Report> {
    let text = fs::read_to_string(file).context("the suite wrote no results")?;
    let results: Value = serde_json::from_str(&text)?;
    let cases = results["cases"].as_array().context("the results name no cases")?;
    let mut outcomes = BTreeMap::new();
    for case in cases {
        let (Some(name), Some(ok)) = (case["name"].as_str(), case["ok"].as_bool()) else { continue };
        outcomes.insert(name, (!ok).then(|| case["message"].as_str().unwrap_or_default()));
    }
    ensure!(outcomes.len() == cases.len() && !cases.is_empty(), "the results cannot be read");
    let failed = outcomes.iter().filter_map(|(name, why)| Some((name, (*why)?)));
    let failed: Vec<String> = failed.map(|(name, why)| format!("{suite} {name} at {shards} shards: {why}")).collect();
    Ok(Report { passed: (outcomes.len() - failed.len()) as u64, failed, skipped: vec![] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_gets_its_own_globs() {
        let list = "# comment\ninterop a.*\ncases b.*\n\ninterop-skip a.x\ncases-skip b.y\n";
        assert_eq!(selection(list, "interop", &[]).unwrap(), ["--only", "a.*", "--skip", "a.x"]);
        assert_eq!(selection(list, "cases", &["c".into()]).unwrap(), ["--skip", "b.y", "--only", "c"]);
        assert!(selection("interops a", "cases", &[]).is_err());
    }
}
