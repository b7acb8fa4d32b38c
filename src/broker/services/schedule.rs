//! The service of delay levels.

use crate::services::progress::{Found, Progress};
use crate::services::{ShardContext, ShardService, Stored};
use serde::{Deserialize, Serialize};

/// What it saves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduleProgress {}

/// The service of one shard.
#[derive(Debug, Default)]
pub struct Schedule {}

impl ShardService for Schedule {
    fn start(&mut self, _cx: &mut ShardContext<'_, '_>, _found: &Found) {}

    fn visible(&mut self, _topic: &[u8], _queue_id: u32, _max_offset: u64, _tag: i64) {}

    fn run(&mut self, _cx: &mut ShardContext<'_, '_>) {}

    fn stored(&mut self, _cx: &mut ShardContext<'_, '_>, _token: u64, _stored: Result<Stored, String>) {}

    fn fetched(&mut self, _cx: &mut ShardContext<'_, '_>, _token: u64) {}

    fn due_us(&self) -> Option<u64> {
        None
    }

    fn save(&self, _progress: &mut Progress) {}
}
