//! Counts of passed, failed and skipped tests, added up over all suites of a run.

use std::process::ExitCode;

use anyhow::Error;

/// What a suite, or several, came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, by name and, where it is known, reason.
    pub failed: Vec<String>,
    /// Tests that did not run, with the reason.
    pub skipped: Vec<String>,
}

impl Report {
    /// One test that passed.
    pub fn pass(&mut self, name: &str) {
        println!("PASS {name}");
        self.passed += 1;
    }

    /// One test that failed.
    pub fn fail(&mut self, name: impl Into<String>, why: &Error) {
        let name = name.into();
        println!("FAIL {name}: {why:#}");
        self.failed.push(format!("{name}: {why:#}"));
    }

    /// One test by its result.
    pub fn test(&mut self, name: &str, result: Result<(), Error>) {
        match result {
            Ok(()) => self.pass(name),
            Err(why) => self.fail(name, &why),
        }
    }

    /// A test or suite that cannot run here.
    pub fn skip(&mut self, name: &str, why: &str) {
        println!("SKIP {name}: {why}");
        self.skipped.push(format!("{name}: {why}"));
    }

    /// Adds a suite; one that could not run at all counts as one failure.
    pub fn add(&mut self, name: &str, suite: Result<Report, Error>) {
        match suite {
            Ok(suite) => {
                self.passed += suite.passed;
                self.failed.extend(suite.failed);
                self.skipped.extend(suite.skipped);
            }
            Err(why) => self.fail(name, &why),
        }
    }

    /// Prints what failed and was skipped, then the line of counts alone.
    pub fn finish(&self) -> ExitCode {
        println!();
        self.failed.iter().for_each(|name| println!("failed: {name}"));
        self.skipped.iter().for_each(|name| println!("skipped: {name}"));
        let skipped = if self.skipped.is_empty() { String::new() } else { format!(", {} skipped", self.skipped.len()) };
        println!("{} passed, {} failed{skipped}", self.passed, self.failed.len());
        if self.failed.is_empty() && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
