//! What the figures depend on, and what the kernel says of a process.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::project;

/// Processors that this process may use.
pub fn thread_count() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

/// Machine, commit, command and time.
pub fn machine() -> Result<Value> {
    let line = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().find(|l| l.starts_with(key)).map(|l| l[key.len()..].trim_matches([' ', '\t', ':']).to_string())
    };
    let commit =
        project::output(Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(project::root()))?;
    Ok(json!({
        "machine": {
            "processors": thread_count()?,
            "model": line("/proc/cpuinfo", "model name"),
            "memory": line("/proc/meminfo", "MemTotal"),
            "kernel": fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
        },
        "commit": commit.trim(),
        "command": without_folders(std::env::args().skip(1)),
        "time": project::output(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?.trim(),
    }))
}

/// A command line in which paths are names: what a path says of a machine is nobody's business.
pub fn without_folders(words: impl Iterator<Item = String>) -> String {
    let name = |word: String| match Path::new(&word).file_name() {
        Some(name) if word.starts_with('/') => name.to_string_lossy().into_owned(),
        _ => word,
    };
    words.map(name).collect::<Vec<_>>().join(" ")
}

/// User and system time of a process so far.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).context("reading a process's time");
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// Anonymous resident memory of a process.
pub fn anonymous_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).context("the kernel does not tell RssAnon")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
