//! The manifest: which version wrote the store, and how many shards it has.
//!
//! Owner of `shards/manifest.json` (FORMAT.md §2). Invariants: the number of shards never falls; the widths of the system
//! queues never change after creation. It does not look at any other file: `home.rs` does.

use serde::{Deserialize, Serialize};

use crate::layout::MAX_SHARDS;

/// The newest format that this code reads and the one that it writes.
pub const FORMAT_VERSION: u64 = 1;

/// Name of the file under `shards/`.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";

/// The content of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Version of the whole store's format.
    pub format_version: u64,
    /// Shards of the store, 1 to 64.
    pub shards: u16,
    /// Program and version that made the manifest.
    pub created_by: String,
    /// Whether the store was there before RingMQ opened it.
    #[serde(default)]
    pub from_java: bool,
    /// Queues that each shard owns of each system topic.
    #[serde(default)]
    pub system_queues: SystemQueues,
}

/// How many queues of a system topic belong to each shard: shard *s* owns ids *s*·k to *s*·k + k - 1, so that the record
/// of a half message, a timer or a POP check point waits in the shard of its target queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemQueues {
    /// Half messages of transactions.
    pub half: u32,
    /// Their end marks.
    pub op: u32,
    /// The timer wheel's topic.
    pub timer: u32,
    /// Delay levels.
    pub schedule: u32,
    /// POP check points.
    pub revive: u32,
}

impl Default for SystemQueues {
    fn default() -> Self {
        Self { half: 1, op: 1, timer: 1, schedule: 18, revive: 8 }
    }
}

/// Why a manifest is not usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestError {
    /// Written by a newer version; the version found.
    Newer(u64),
    /// Not a manifest; why.
    Damaged(String),
}

impl Manifest {
    /// The manifest of a store made or first opened now.
    #[must_use]
    pub fn new(shards: u16, from_java: bool) -> Self {
        let created_by = concat!("ringmq ", env!("CARGO_PKG_VERSION")).to_owned();
        Self { format_version: FORMAT_VERSION, shards, created_by, from_java, system_queues: SystemQueues::default() }
    }

    /// Reads a manifest. The version is looked at first, so that any later form of the rest is named as what it is.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct VersionOnly {
            format_version: u64,
        }
        let damaged = |error: serde_json::Error| ManifestError::Damaged(error.to_string());
        let version: VersionOnly = serde_json::from_slice(bytes).map_err(damaged)?;
        if version.format_version > FORMAT_VERSION {
            return Err(ManifestError::Newer(version.format_version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(damaged)?;
        let widths = manifest.system_queues;
        let all = [widths.half, widths.op, widths.timer, widths.schedule, widths.revive];
        if !(1..=MAX_SHARDS).contains(&manifest.shards) || all.iter().any(|width| !(1..=1024).contains(width)) {
            return Err(ManifestError::Damaged("a number of shards or of system queues is out of bounds".to_owned()));
        }
        Ok(manifest)
    }

    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a manifest is always JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_wrote() {
        let manifest = Manifest::new(2, true);
        assert_eq!(Manifest::parse(&manifest.encode()), Ok(manifest));
    }

    #[test]
    fn a_newer_version_is_named_whatever_else_it_holds() {
        assert_eq!(Manifest::parse(br#"{"formatVersion":2,"shards":{"a":1}}"#), Err(ManifestError::Newer(2)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "{}", "[]", r#"{"formatVersion":1}"#, r#"{"formatVersion":1,"shards":0,"createdBy":"x"}"#] {
            assert!(matches!(Manifest::parse(text.as_bytes()), Err(ManifestError::Damaged(_))), "{text}");
        }
        let wide = r#"{"formatVersion":1,"shards":65,"createdBy":"x"}"#;
        assert!(matches!(Manifest::parse(wide.as_bytes()), Err(ManifestError::Damaged(_))));
    }
}
