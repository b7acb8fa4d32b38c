//! Everything that is checked without running the product: format, lints, layers, code map, headers, texts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::project;
use crate::report::Report;

/// Whom each crate may use, directly: the layers of `src/README.md`. Nothing points back; `message` and `remoting` are
/// pure, and the load generator never sees the broker or the store.
const LAYERS: [(&str, &[&str]); 12] = [
    ("message", &[]),
    ("remoting", &["message"]),
    ("sys", &[]),
    ("reactor", &["sys"]),
    ("store", &["message", "sys", "reactor"]),
    ("simulator", &["message", "sys", "reactor", "store"]),
    ("broker", &["message", "remoting", "sys", "reactor", "store"]),
    ("namesrv", &["message", "remoting", "reactor"]),
    ("bench", &["message", "remoting", "sys", "reactor"]),
    ("server", &["message", "remoting", "sys", "reactor", "store", "broker", "namesrv", "bench"]),
    ("micro", &["message", "remoting", "sys", "reactor", "store", "broker"]),
    ("xtask", &["message", "remoting", "simulator", "bench"]),
];

/// Crates that a test of another may use on top of [`LAYERS`].
const TEST_ONLY: [&str; 1] = ["simulator"];

/// What may lie at the top, beside dot files.
const TOP: [&str; 13] = [
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "bench",
    "clippy.toml",
    "deny.toml",
    "perf",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "scripts",
    "shards",
    "src",
];

/// A check of the project's root and its files.
type Check = fn(&Path, &[String]) -> Result<()>;

/// Runs all checks.
pub fn run() -> Report {
    let mut report = Report::default();
    report.test("format", project::cargo(["fmt", "--all", "--check"]).and_then(|mut c| project::run(&mut c)));
    let lint = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    report.test("lints", project::cargo(lint).and_then(|mut c| project::run(&mut c)));
    let checks: [(&str, Check); 8] = [
        ("layers of the crates", |root, _| layers(root)),
        ("unsafe code only in shards/sys", unsafe_only_in_sys),
        ("every exception to a lint has a reason", reasons),
        ("every source file says what it is", headers),
        ("the code map names every folder", |root, _| code_map(root)),
        ("README.md lists the served requests", |root, _| served_requests(root)),
        ("the top level holds what is agreed", |_, files| top_level(files)),
        ("texts name no path of a machine", machine_paths),
    ];
    let files = tracked_files();
    for (name, check) in checks {
        let result = files.as_ref().map_err(|e| anyhow::anyhow!("{e:#}")).and_then(|f| check(&project::root(), f));
        report.test(name, result);
    }
    report.test("the list of cases only grows", cases_only_grow());
    report
}

/// All files of the project, as paths from its root.
fn tracked_files() -> Result<Vec<String>> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let text = project::output(Command::new("git").args(list).current_dir(project::root()))?;
    let files: Vec<String> = text.lines().map(String::from).filter(|f| project::root().join(f).exists()).collect();
    ensure!(files.len() > 20, "git lists hardly any file");
    Ok(files)
}

fn layers(root: &Path) -> Result<()> {
    let mut command = project::cargo(["metadata", "--no-deps", "--format-version", "1", "--locked"])?;
    let metadata: Value = serde_json::from_str(&project::output(command.current_dir(root))?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let allowed: BTreeMap<&str, &[&str]> = LAYERS.into_iter().collect();
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        let may_use = allowed.get(name).with_context(|| format!("{name} is in no layer: name it in verify.rs"))?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev" && (TEST_ONLY.contains(&other) || other == name);
            ensure!(
                !allowed.contains_key(other) || may_use.contains(&other) || for_tests,
                "{name} must not use {other}"
            );
        }
        let file = package["manifest_path"].as_str().context("a package without a manifest")?;
        let manifest = fs::read_to_string(file)?;
        ensure!(name == "sys" || manifest.contains("[lints]\nworkspace = true"), "{name} does not take the lints");
    }
    Ok(())
}

fn unsafe_only_in_sys(root: &Path, files: &[String]) -> Result<()> {
    let elsewhere: Vec<String> =
        files.iter().filter(|f| f.ends_with(".rs") && !f.starts_with("shards/sys/")).cloned().collect();
    for_each_line(root, &elsewhere, |line| {
        ensure!(!has_unsafe_code(line), "unsafe code outside shards/sys");
        Ok(())
    })
}

/// Whether the word stands outside comments and texts.
fn has_unsafe_code(line: &str) -> bool {
    let outside_texts: String = line.replace(r#"\""#, "").split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let code = outside_texts.split("//").next().unwrap_or_default();
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

fn reasons(root: &Path, files: &[String]) -> Result<()> {
    for file in files.iter().filter(|f| f.ends_with(".rs")) {
        let text = fs::read_to_string(root.join(file))?;
        for opening in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
            for (at, _) in text.match_indices(opening) {
                let line_start = text[..at].rfind('\n').map_or(0, |n| n + 1);
                let attribute = text[at..].split(']').next().unwrap_or_default();
                let alone = text[line_start..at].trim().is_empty();
                ensure!(!alone || attribute.contains("reason ="), "{file}: {attribute}] has no reason");
            }
        }
    }
    Ok(())
}

fn headers(root: &Path, files: &[String]) -> Result<()> {
    for file in files.iter().filter(|f| f.ends_with(".rs")) {
        ensure!(fs::read_to_string(root.join(file))?.starts_with("//!"), "{file} does not begin with a `//!` header");
    }
    Ok(())
}

fn code_map(root: &Path) -> Result<()> {
    for part in ["src", "shards"] {
        let map = fs::read_to_string(root.join(part).join("README.md"))
            .with_context(|| format!("{part}/README.md is the code map of {part}/"))?;
        for item in fs::read_dir(root.join(part))? {
            let item = item?;
            let name = item.file_name().to_string_lossy().into_owned();
            let listed = map.contains(&format!("`{name}`")) || map.contains(&format!("{name}/"));
            ensure!(!item.path().is_dir() || listed, "{part}/README.md does not mention `{name}`");
        }
    }
    Ok(())
}

/// The README's table is the broker's closed list and the name server's.
fn served_requests(root: &Path) -> Result<()> {
    let read = |file: &str| fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"));
    let (codes, readme) = (read("src/remoting/codes.rs")?, read("README.md")?);
    let broker = read("src/broker/request.rs")?;
    let list = broker.split("requests! {").nth(1).context("request.rs has no list")?;
    let list = list.split("NotServed {").next().unwrap_or_default();
    let name_server = read("src/namesrv/name_server.rs")?;
    let name_server = name_server.split("RequestCode::").skip(1).filter(|s| s.contains("=> Self::"));
    let words = |text: &str| text.split(|c: char| !c.is_alphanumeric()).map(String::from).collect::<Vec<_>>();
    let served: BTreeSet<String> = name_server.filter_map(|s| words(s).into_iter().next()).chain(words(list)).collect();
    let mut count = 0;
    for line in
        codes.split("RequestCode {").nth(1).unwrap_or_default().split("\n    }\n").next().unwrap_or_default().lines()
    {
        let mut parts = line.split_whitespace();
        let (Some(number), Some(name), Some(java)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let entry = format!("{number} {}", java.trim_matches(['"', ',']));
        let listed = readme.split(['|', ',', '\n']).any(|cell| cell.trim() == entry);
        ensure!(listed == served.contains(name), "README.md and the lists differ about {entry}");
        count += usize::from(listed);
    }
    ensure!(count > 50, "only {count} served requests were found");
    Ok(())
}

fn top_level(files: &[String]) -> Result<()> {
    let names: BTreeSet<&str> = files.iter().filter_map(|f| f.split('/').next()).collect();
    let other: Vec<&&str> = names.iter().filter(|n| !n.starts_with('.') && !TOP.contains(n)).collect();
    ensure!(other.is_empty(), "at the top lie {other:?}");
    Ok(())
}

fn machine_paths(root: &Path, files: &[String]) -> Result<()> {
    for_each_line(root, files, |line| {
        ensure!(!has_machine_path(line), "a path of some machine: {}", line.trim());
        Ok(())
    })
}

fn has_machine_path(line: &str) -> bool {
    // Put together here, so that this file does not contain them.
    ["root", "home", "Users", "work", "mnt"].iter().map(|folder| format!("/{folder}/")).any(|folder| {
        // In `../shared/work/x` or an address on the web something stands before the slash.
        let starts_there =
            |at: usize| line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !"._-/*}".contains(c));
        line.match_indices(folder.as_str()).any(|(at, _)| starts_there(at))
    })
}

/// Calls a check for each line of each text file.
fn for_each_line(root: &Path, files: &[String], check: impl Fn(&str) -> Result<()>) -> Result<()> {
    for file in files.iter().filter(|f| !f.ends_with(".lock") && !f.contains("/corpus/") && !f.ends_with(".bin")) {
        // Golden files may hold any bytes.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            check(line).with_context(|| format!("{file}:{}", number + 1))?;
        }
    }
    Ok(())
}

/// Every line that the list ever had is still there.
fn cases_only_grow() -> Result<()> {
    let list = "scripts/cases.list";
    let git = |arguments: &[&str]| project::output(Command::new("git").args(arguments).current_dir(project::root()));
    let now = fs::read_to_string(project::root().join(list))?;
    let now: BTreeSet<&str> = now.lines().collect();
    for commit in git(&["log", "--format=%H", "--", list])?.lines() {
        for line in git(&["show", &format!("{commit}:{list}")])?.lines() {
            let is_case = line.starts_with("interop ") || line.starts_with("cases ");
            if is_case && !now.contains(line) {
                bail!("`{line}` of {commit} is gone");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_told_from_words() {
        assert!(has_unsafe_code(concat!("    un", "safe { call(\"text\") }")));
        assert!(has_unsafe_code(concat!("un", "safe impl Send for X {}")));
        assert!(!has_unsafe_code("// no unsafe here"));
        assert!(!has_unsafe_code("let text = \"unsafe\"; // or unsafe"));
        assert!(!has_unsafe_code("unsafe_code = forbid"));
    }

    #[test]
    fn paths_of_a_machine_are_told_from_others() {
        let home = format!("/{}/", "home");
        assert!(has_machine_path(&format!("see {home}someone/notes")));
        assert!(has_machine_path(&format!("\"{home}x\"")));
        assert!(!has_machine_path(&format!("..{home}x")));
        assert!(!has_machine_path(&format!("{{dir}}{home}conf")));
        assert!(!has_machine_path("/proc/self/stat"));
    }
}
