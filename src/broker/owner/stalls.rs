//! Changes that do not become known in time: said in the log, with who is waited for.
//!
//! Role: a look once a turn at what `flow` waits for. It changes nothing; an operator (and whoever reads a report) sees which
//! file or which core holds the answers up.

use super::{Owner, Turn};

/// After so long a wait is worth a line, in microseconds; and as often it is said again.
const STALL_US: u64 = 3_000_000;

/// Since when something is waited for, in monotonic microseconds.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    files_since_us: Option<u64>,
    cores_since_us: Option<u64>,
    told_us: u64,
}

impl Owner {
    /// Warns of files and cores that are waited for too long.
    pub(super) fn tell_stalls(&mut self, turn: &Turn<'_>) {
        let now_us = turn.now.mono_us;
        let (files, cores) = self.flow.waits_for();
        let since = |before: Option<u64>, waits: bool| waits.then(|| before.unwrap_or(now_us));
        let stalls = &mut self.stalls;
        stalls.files_since_us = since(stalls.files_since_us, !files.is_empty());
        stalls.cores_since_us = since(stalls.cores_since_us, !cores.is_empty());
        let first_us = [stalls.files_since_us, stalls.cores_since_us].into_iter().flatten().min();
        if first_us.is_some_and(|since_us| now_us - since_us >= STALL_US) && now_us - stalls.told_us >= STALL_US {
            stalls.told_us = now_us;
            tracing::warn!(
                ?files,
                ?cores,
                "a change of topics or groups is held up: it waits for these files and cores"
            );
        }
    }
}
