//! The hot functions of the broker, each ready to be called again and again: what `cargo bench -p micro` times and
//! `cargo xtask instructions` counts.
//!
//! Role: the one list of cases. A case is a function with its input around it, in the shape of the load of `ringmq bench`:
//! bodies of 128 bytes, a tag, a unique key. Invariants: a call does the same work each time, and no more than the
//! function's users do; it sees no clock and no chance, so that its instructions can be counted; what it writes lies in a
//! folder of its own that goes away with it. It is in no program that users run.

mod core;
mod frames;
mod messages;
mod requests;
mod shard;

/// One function under measurement.
pub struct Case {
    /// Its name: crate, then what is done. The key of `perf/instructions.json`.
    pub name: &'static str,
    /// Calls that warm one instance up, and then calls of it that are measured: few where each call writes to the disk.
    pub calls: u32,
    /// Makes an instance.
    pub make: fn() -> Operation,
}

/// One call of a function under measurement.
pub type Operation = Box<dyn FnMut()>;

impl Case {
    /// Calls of a case that keeps nothing.
    const PURE_CALLS: u32 = 1_000;

    /// A case that keeps nothing of a call.
    const fn pure(name: &'static str, make: fn() -> Operation) -> Self {
        Self { name, calls: Self::PURE_CALLS, make }
    }

    /// An instance that is warm: buffers have grown, tables are filled.
    #[must_use]
    pub fn warm(&self) -> Operation {
        let mut operation = (self.make)();
        (0..self.calls).for_each(|_| operation());
        operation
    }
}

/// All cases, along the path of a message.
#[must_use]
pub fn cases() -> Vec<Case> {
    [requests::cases(), messages::cases(), shard::cases(), core::cases()].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_case_runs_and_has_a_name_of_its_own() {
        let mut names = BTreeSet::new();
        for case in cases() {
            assert!(names.insert(case.name), "{} comes twice", case.name);
            // As far as any user of the cases goes with one instance.
            let mut operation = case.warm();
            (0..case.calls).for_each(|_| operation());
        }
        assert!(names.len() > 20, "only {} cases", names.len());
    }
}
