//! QUERY_MESSAGE (12): messages by key over all shards.

use crate::gather::{Gathered, ShardAnswer, ShardAsk};
use crate::owner::Refusal;
use bytes::Bytes;
use message::record::RecordView;
use remoting::{Command, FieldError, ResponseCode};
use store::{IndexKind, KeyQuery};

/// Most messages of an answer, whatever is asked (Java's `maxMsgsNumBatch`).
pub const MAX_MESSAGES: u32 = 64;
/// Most bytes of an answer, one message apart.
pub const MAX_BYTES: u32 = 4 << 20;

/// Reads a request: the question to each shard, and the most messages of the answer. `default_max` is the setting `defaultQueryMaxNum`, the count for queries by unique id.
///
/// # Errors
/// A needed field is missing or no number.
pub fn parse(command: &Command, default_max: u32) -> Result<(ShardAsk, u32), Refusal> {
    parse_fields(command, default_max)
        .map_err(|error| Refusal { code: ResponseCode::SystemError.to_i32(), remark: error.to_string() })
}

fn parse_fields(command: &Command, default_max: u32) -> Result<(ShardAsk, u32), FieldError> {
    let fields = &command.ext;
    let (topic, key) = (fields.text("topic")?, fields.text("key")?);
    let asked = fields.i32("maxNum")?;
    let (begin_ms, end_ms) = (fields.i64("beginTimestamp")?, fields.i64("endTimestamp")?);
    let unique = fields.get("_UNIQUE_KEY_QUERY") == Some("true");
    let max = if unique { default_max } else { u32::try_from(asked).unwrap_or(0) }.min(MAX_MESSAGES);
    let kind = if fields.get("indexType") == Some("T") { IndexKind::Tag } else { IndexKind::Key };
    let ask = ShardAsk::QueryByKey {
        topic: topic.into(),
        key: key.into(),
        max,
        begin_ms,
        end_ms,
        kind,
        max_bytes: MAX_BYTES,
    };
    Ok((ask, max))
}

/// What all shards found together.
#[derive(Debug, Default)]
pub struct Found {
    /// Whole records, newest first.
    pub records: Vec<Bytes>,
    /// Store time of the newest indexed record of all shards, ms since 1970.
    pub last_index_timestamp_ms: i64,
    /// Its physical offset.
    pub last_index_offset: i64,
    /// A shard did not answer in time or failed.
    pub partial: bool,
}

/// Joins the answers of the shards: the newest `max` records, within [`MAX_BYTES`].
#[must_use]
pub fn join(gathered: Gathered, max: u32) -> Found {
    let mut found = Found { partial: !gathered.complete(), ..Found::default() };
    for (_, answer) in gathered.answers {
        let Some(ShardAnswer::ByKey(KeyQuery { records, last_index_timestamp_ms, last_index_offset })) = answer else {
            continue;
        };
        found.records.extend(records);
        if last_index_timestamp_ms >= found.last_index_timestamp_ms {
            found.last_index_timestamp_ms = last_index_timestamp_ms;
            found.last_index_offset = last_index_offset.to_i64();
        }
    }
    let stored = |record: &Bytes| RecordView::parse(record).map_or(0, |view| view.store_timestamp_ms());
    found.records.sort_by_cached_key(|record| std::cmp::Reverse(stored(record)));
    found.records.truncate(max as usize);
    let mut bytes = 0;
    let fits = found.records.iter().take_while(|record| {
        bytes += record.len();
        bytes <= MAX_BYTES as usize
    });
    let count = fits.count().max(1);
    found.records.truncate(count);
    found
}
