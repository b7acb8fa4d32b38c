//! Ctrl-C and SIGTERM: the run ends and cleans up; a second one ends the process at once.

use std::process::exit;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::engine::Stop;

/// Exit code of a process that was interrupted.
pub const INTERRUPTED: u8 = 130;

/// Sets `stop` at the first signal. Errors: the system refuses.
pub fn watch(stop: Stop) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("watching for signals")?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            for is_second in [false, true] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if is_second {
                    exit(i32::from(INTERRUPTED));
                }
                stop.set();
                eprintln!("\nstopping: topics and groups are deleted (once more to leave them)");
            }
        });
    })?;
    Ok(())
}
