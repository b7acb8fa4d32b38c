//! The delivery of a record that waited: the record of its own topic and queue that it becomes.
//!
//! Role: shared by delay levels and timers. Invariants: the copy has everything of the waiting record but topic and queue, and
//! names it by its physical offset; a record that can never be delivered is dropped with a line in the log, never tried for ever.

use crate::services::progress::source_mark;
use crate::services::{ServiceTicket, ShardContext, Waiter};
use message::names;
use message::properties::{PropertiesSource, find_each, name};
use message::record::{RecordFields, RecordView};
use store::AppendError;

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The record is put: `stored` will be told.
    Put,
    /// It can never be delivered, for this reason.
    Dropped(String),
    /// The store takes no record now.
    Later(String),
}

/// Puts the record that `record` waited to become. `properties` are the ones it gets, all of its own among them; `ticket` is told when it is stored.
pub fn deliver(
    cx: &mut ShardContext<'_, '_>,
    record: &RecordView<'_>,
    properties: PropertiesSource<'_>,
    ticket: ServiceTicket,
) -> Delivery {
    let (topic, queue_id) = match destination(&properties) {
        Ok(found) => found,
        Err(reason) => return Delivery::Dropped(reason.into()),
    };
    let Some(found) = cx.snapshot.topic(topic).filter(|found| !cx.snapshot.deleting.contains(&found.name)) else {
        return Delivery::Dropped("its topic does not exist any more".into());
    };
    let to = found.shard_of(queue_id);
    let fields = RecordFields {
        queue_id: queue_id as i32,
        topic,
        properties,
        prepared_transaction_offset: source_mark(record.physical_offset()),
        ..record.fields()
    };
    match cx.put(to, &fields, Waiter::Service(ticket)) {
        Ok(()) => Delivery::Put,
        Err(AppendError::Illegal(reason)) => Delivery::Dropped(reason.into()),
        Err(error) => Delivery::Later(error.to_string()),
    }
}

/// Topic and queue that a record with these properties is for.
fn destination<'a>(properties: &PropertiesSource<'a>) -> Result<(&'a [u8], u32), &'static str> {
    const NAMES: [&[u8]; 2] = [name::REAL_TOPIC, name::REAL_QUEUE_ID];
    let [topic, queue_id] = match properties {
        PropertiesSource::Text(text) => find_each(text, NAMES),
        PropertiesSource::List(_) => NAMES.map(|name| properties.find(name)),
    };
    let topic = topic.ok_or("it does not say for which topic it is")?;
    let queue_id = queue_id
        .and_then(|text| std::str::from_utf8(text).ok()?.parse::<i32>().ok())
        .and_then(|id| u32::try_from(id).ok())
        .ok_or("it does not say for which queue it is")?;
    // A half message that waited would be visible before its commit; one that waits to wait would never end.
    match topic {
        names::HALF_TOPIC | names::OP_HALF_TOPIC => Err("it is a half message"),
        names::SCHEDULE_TOPIC | names::TIMER_TOPIC => Err("it is for a topic of waiting messages"),
        _ => Ok((topic, queue_id)),
    }
}

/// Says in the log that a waiting message is lost, and why.
pub fn log_drop(cx: &ShardContext<'_, '_>, what: &str, offset: message::PhysicalOffset, reason: &str) {
    tracing::error!(shard = cx.id.0, offset = offset.0, reason, "a {what} message cannot be delivered: dropped");
}
