//! Light queues (Java's LMQ): more queue entries for one record.
//!
//! Role: which light queues a message names, the entries that it gets there, and the property in which its record keeps their
//! offsets. A light queue is queue 0 of a topic `%LMQ%name` that no table of topics knows. Invariants: the offsets in a record
//! are those that were given out when it was staged, in the order of the names, and are given back when the write fails; a
//! record that was made from a waiting one is never refused for its light queues, since its message was acknowledged before:
//! it then goes to its own queue alone; a name that is no single path component never becomes a queue.

use hashbrown::HashMap;
use message::names;
use message::properties::{MAX_PROPERTIES_BYTES, PropertiesSource, PropertyList, find, name};
use message::record::{RecordFields, RecordView};
use message::sys_flag;
use reactor::Now;

use crate::append::Staged;
use crate::consume_queue::is_file_name;
use crate::error::AppendError;
use crate::limits;
use crate::shard::Shard;
use crate::types::Appended;

/// The queue of a light queue's topic.
pub const LIGHT_QUEUE_ID: u32 = 0;

/// Between names, and between offsets.
const SEPARATOR: u8 = b',';

/// Whether messages of a topic go to light queues. Half messages do not: they would be read before their commit.
#[must_use]
pub fn is_dispatched(topic: &[u8]) -> bool {
    let waits = matches!(topic, names::SCHEDULE_TOPIC | names::HALF_TOPIC | names::OP_HALF_TOPIC);
    !waits && !names::is_retry_topic(topic) && !topic.starts_with(names::SYSTEM_TOPIC_PREFIX)
}

/// Checks the value of `INNER_MULTI_DISPATCH`. One of blanks names nothing.
///
/// # Errors
/// Why one of the names cannot be a light queue.
pub fn check(value: &[u8]) -> Result<(), &'static str> {
    if is_blank(value) {
        return Ok(());
    }
    split(value).try_for_each(check_name)
}

/// Checks the name of a light queue, prefix included.
///
/// # Errors
/// Why it is none.
pub fn check_name(queue: &[u8]) -> Result<(), &'static str> {
    if !names::is_lmq(queue) {
        return Err("INNER_MULTI_DISPATCH names a queue that does not begin with %LMQ%");
    }
    if is_file_name(queue) { Ok(()) } else { Err("INNER_MULTI_DISPATCH names a queue that cannot be stored") }
}

fn is_blank(value: &[u8]) -> bool {
    value.iter().all(u8::is_ascii_whitespace)
}

/// The parts of a list as Java splits it: empty ones at the end do not count.
fn split(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = list.iter().rposition(|&byte| byte != SEPARATOR).map_or(0, |at| at + 1);
    list[..end].split(|&byte| byte == SEPARATOR)
}

/// The light queues of a record in the log, with the offsets that it has there. None, when the two lists do not agree.
pub(crate) fn of_record<'a>(record: &RecordView<'a>) -> impl Iterator<Item = (&'a [u8], u64)> + use<'a> {
    let lists = sys_flag::is_queued(record.sys_flag()) && is_dispatched(record.topic());
    let lists = lists.then(|| {
        let queues = find(record.properties(), name::INNER_MULTI_DISPATCH)?;
        let offsets = find(record.properties(), name::INNER_MULTI_QUEUE_OFFSET)?;
        (!is_blank(queues) && split(queues).count() == split(offsets).count()).then_some((queues, offsets))
    });
    lists.flatten().into_iter().flat_map(|(queues, offsets)| split(queues).zip(split(offsets))).filter_map(
        |(queue, offset)| {
            let offset = std::str::from_utf8(offset).ok()?.parse().ok()?;
            check_name(queue).is_ok().then_some((queue, offset))
        },
    )
}

/// What a record becomes and where it goes beside its own queue.
struct Plan<'a> {
    properties: Vec<u8>,
    /// Each queue once.
    queues: Vec<&'a [u8]>,
}

impl Shard {
    /// As [`Shard::append`], with entries in the light queues that a message names. Members of a batch go to none.
    pub(crate) fn append_with_light(
        &mut self,
        now: Now,
        records: &[RecordFields<'_>],
    ) -> Result<Appended, AppendError> {
        let first = records.first().expect("an append has a record");
        let named = match records {
            [one] if sys_flag::is_queued(one.sys_flag) && is_dispatched(one.topic) => {
                one.properties.find(name::INNER_MULTI_DISPATCH).filter(|value| !is_blank(value))
            }
            _ => None,
        };
        let waited = first.prepared_transaction_offset != 0;
        if !waited && names::is_lmq(first.topic) && self.table.topic_slots(first.topic).is_empty() {
            self.room_for_light(1)?;
        }
        let Some(named) = named else { return self.append_records(now, records) };
        let plan = match self.plan_light(first, named) {
            Err(error) if waited => {
                tracing::warn!(%error, "a message that waited goes to none of its light queues");
                Plan { properties: without_offsets(&first.properties), queues: Vec::new() }
            }
            plan => plan?,
        };
        let properties = PropertiesSource::Text(&plan.properties);
        let appended = self.append_records(now, &[RecordFields { properties, ..*first }])?;
        let Some(&Staged { entry, store_ms, .. }) = self.staged.last() else { return Ok(appended) };
        for queue in plan.queues {
            let slot = self.table.find_or_make(queue, LIGHT_QUEUE_ID);
            self.table.get_mut(slot).next += 1;
            self.staged.push(Staged { slot, entry, store_ms });
        }
        Ok(appended)
    }

    /// Gives each named queue its next offset. A queue that is named twice gets one entry.
    fn plan_light<'a>(&self, fields: &RecordFields<'_>, named: &'a [u8]) -> Result<Plan<'a>, AppendError> {
        check(named).map_err(AppendError::Illegal)?;
        let mut offsets: HashMap<&[u8], u64> = HashMap::new();
        let (mut text, mut queues, mut new) = (Vec::new(), Vec::new(), 0);
        let mut digits = itoa::Buffer::new();
        for queue in split(named) {
            let offset = *offsets.entry(queue).or_insert_with(|| {
                queues.push(queue);
                let known = self.table.find(queue, LIGHT_QUEUE_ID).map(|slot| self.table.get(slot).next);
                // A message that is sent to a light queue itself has its own entry there first.
                let own = queue == fields.topic && fields.queue_id == LIGHT_QUEUE_ID as i32;
                new += usize::from(known.is_none() && queue != fields.topic);
                known.unwrap_or(0) + u64::from(own)
            });
            if !text.is_empty() {
                text.push(SEPARATOR);
            }
            text.extend_from_slice(digits.format(offset).as_bytes());
        }
        if new > 0 {
            self.room_for_light(new)?;
        }
        let properties = with_offsets(&fields.properties, &text);
        if properties.len() > MAX_PROPERTIES_BYTES {
            return Err(AppendError::Illegal("the properties are longer than 32767 bytes"));
        }
        Ok(Plan { properties, queues })
    }

    fn room_for_light(&self, new: usize) -> Result<(), AppendError> {
        let fits = self.table.light() + new <= limits::LIGHT_QUEUES;
        if fits { Ok(()) } else { Err(AppendError::TooManyLightQueues) }
    }
}

/// The properties with the offsets, as Java's map has them after the same steps.
fn with_offsets(properties: &PropertiesSource<'_>, offsets: &[u8]) -> Vec<u8> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    properties.write(&mut old);
    let mut list = PropertyList::parse(&old);
    list.put(name::INNER_MULTI_QUEUE_OFFSET, offsets);
    // Java takes this one out and puts it back: it becomes the youngest.
    if let Some(wait) = list.get(name::WAIT) {
        list.remove(name::WAIT);
        list.put(name::WAIT, wait);
    }
    list.write(&mut new);
    new
}

/// The properties without offsets that nobody has given out.
fn without_offsets(properties: &PropertiesSource<'_>) -> Vec<u8> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    properties.write(&mut old);
    let mut list = PropertyList::parse(&old);
    list.remove(name::INNER_MULTI_QUEUE_OFFSET);
    list.write(&mut new);
    new
}
