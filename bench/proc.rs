//! What the system says of the broker's process: processor time and memory.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// A process to be looked at.
#[derive(Clone, Debug)]
pub struct Process {
    folder: PathBuf,
}

/// What it used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of its threads, nanoseconds.
    pub cpu_ns: u64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// The anonymous part of it.
    pub anonymous_bytes: u64,
}

impl Process {
    /// The process of an id. Errors: there is none, or it cannot be looked at.
    pub fn new(id: u32) -> Result<Process> {
        let process = Process { folder: format!("/proc/{id}").into() };
        process.usage().with_context(|| format!("looking at process {id}"))?;
        Ok(process)
    }

    /// What it has used so far. Errors: it is gone.
    pub fn usage(&self) -> Result<Usage> {
        let mut cpu_ns = 0;
        for task in fs::read_dir(self.folder.join("task"))? {
            // A thread may end meanwhile.
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            cpu_ns += on_cpu_ns(&text).unwrap_or(0);
        }
        ensure!(cpu_ns > 0, "the kernel tells no processor time of threads (schedstat)");
        let status = fs::read_to_string(self.folder.join("status"))?;
        let kib = |name| field_kib(&status, name).unwrap_or(0) << 10;
        Ok(Usage { cpu_ns, resident_bytes: kib("VmRSS:"), anonymous_bytes: kib("RssAnon:") })
    }
}

/// `schedstat`: time on a processor, time waited for one, number of slices.
fn on_cpu_ns(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn field_kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let me = Process::new(std::process::id()).unwrap();
        let before = me.usage().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        // The kernel adds up at its ticks, and the machine may do much else.
        let after = loop {
            let after = me.usage().unwrap();
            if after.cpu_ns > before.cpu_ns || std::time::Instant::now() > end {
                break after;
            }
        };
        assert!(after.cpu_ns > before.cpu_ns);
        assert!(after.anonymous_bytes > 0 && after.resident_bytes > after.anonymous_bytes);
        assert!(Process::new(u32::MAX).is_err());
    }

    #[test]
    fn texts_of_the_kernel() {
        assert_eq!(on_cpu_ns("123456 78 9\n"), Some(123_456));
        assert_eq!(field_kib("VmPeak:\t 9 kB\nRssAnon:\t   1234 kB\n", "RssAnon:"), Some(1_234));
        assert_eq!(field_kib("", "VmRSS:"), None);
    }
}
