//! Memory of a virtual machine, kept from being given back to its host while something is measured.
//!
//! Free memory that a guest reports to its host is taken away, and the next use of each page waits for the host: on a nested
//! machine 8 us for 4 KiB, measured with dd into a new file right after another was deleted (0.4 s for 1.5 GiB) and ten
//! seconds later (3.5 s). A broker that writes 300 bytes for a message then pays some 600 ns for it that say nothing of
//! the broker, and in some rounds only. `hold_memory.py` holds a page in each block, so that nothing is reported.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::project;

/// Left free while the rest is taken once: what runs beside must not get into need.
const LEFT_BYTES: u64 = 2 << 30;

/// Holds the free memory of this machine from being reported, until it is dropped.
pub struct HeldMemory {
    holder: Child,
    /// How much was taken and given back.
    pub bytes: u64,
}

impl HeldMemory {
    /// Touches all free memory once (about 2 s for each GiB that the host has taken) and keeps a page in every 2 MiB of it.
    /// `None`: the machine is no virtual one, or has hardly any free memory.
    ///
    /// # Errors
    /// There is no python3, or it cannot get the memory.
    pub fn hold() -> Result<Option<HeldMemory>> {
        if !fs::read_to_string("/proc/cpuinfo")?.contains(" hypervisor ") {
            return Ok(None);
        }
        // What is a file's page now and free later would not be held. Only root may; others measure a little less.
        project::run(&mut Command::new("sync"))?;
        let _ = fs::write("/proc/sys/vm/drop_caches", "1");
        let bytes = free_bytes()?.saturating_sub(LEFT_BYTES);
        if bytes < LEFT_BYTES {
            return Ok(None);
        }
        println!("taking {} GiB of memory once, so that no page is used for the first time later", bytes >> 30);
        let script = project::root().join("scripts/compare/hold_memory.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(bytes.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut held = HeldMemory { holder: command.spawn().context("starting python3")?, bytes };
        let mut line = String::new();
        BufReader::new(held.holder.stdout.take().context("no output")?).read_line(&mut line)?;
        ensure!(line.trim() == "held", "the memory could not be taken: {line:?}");
        Ok(Some(held))
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        // It ends by itself when its input does, too.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn free_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:")).context("the kernel tells no MemFree")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
