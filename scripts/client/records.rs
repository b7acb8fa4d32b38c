//! Stored records as pulls and pops give them, and the body of a batch.

use anyhow::{Context, Result, bail};
use simulator::history::{Identity, Place, Seen, Topic, identify};

use crate::clock;

/// A stored record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The topic that it names.
    pub topic: String,
    /// Queue id.
    pub queue: u32,
    /// Offset in the queue.
    pub offset: u64,
    /// Offset in the log, with the shard.
    pub physical: u64,
    /// The broker's time of storing it, in ms.
    pub stored_at: u64,
    /// How often it was tried before.
    pub times: u32,
    /// Checksum of the body, as the record says.
    pub crc: u32,
    /// The body.
    pub body: Vec<u8>,
    /// Each a name, 1, a value and 2.
    pub properties: String,
}

impl Record {
    /// A property by its name.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.split('\u{2}').filter_map(|p| p.split_once('\u{1}')).find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// Whose body it is.
    pub fn identity(&self) -> Identity {
        identify(&self.body, self.crc)
    }

    /// What a consumer of a topic saw just now.
    pub fn seen(&self, topic: Topic) -> Seen {
        let place = Place { topic, queue: self.queue, offset: self.offset };
        let (stored_at, times) = (self.stored_at, self.times);
        Seen { place, body: self.identity(), stored_at, seen_at: clock::now_ms(), times }
    }
}

/// All records of a body.
pub fn read(mut bytes: &[u8]) -> Result<Vec<Record>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let size = number(bytes, 0, 4)? as usize;
        let record = bytes.get(..size).filter(|r| r.len() > 8).context("a cut record")?;
        found.push(read_one(record)?);
        bytes = &bytes[size..];
    }
    Ok(found)
}

fn read_one(r: &[u8]) -> Result<Record> {
    const IPV6_BORN_HOST: u64 = 1 << 4;
    const IPV6_STORE_HOST: u64 = 1 << 5;
    let topic_length_size = match number(r, 4, 4)? {
        0xDAA3_20A7 => 1,
        0xDAA3_20AB => 2,
        _ => bail!("a record without its magic number"),
    };
    let flags = number(r, 36, 4)?;
    let host = |flag: u64| if flags & flag == 0 { 8 } else { 20 };
    let stored_at = 48 + host(IPV6_BORN_HOST);
    let times_at = stored_at + 8 + host(IPV6_STORE_HOST);
    let body_at = times_at + 16;
    let part = |at: usize, length: usize| r.get(at..at + length).context("a cut record");
    let text = |at, length| Ok::<_, anyhow::Error>(String::from_utf8_lossy(part(at, length)?).into_owned());
    let body = part(body_at, number(r, body_at - 4, 4)? as usize)?;
    let topic_at = body_at + body.len() + topic_length_size;
    let topic_length = number(r, body_at + body.len(), topic_length_size)? as usize;
    let properties_at = topic_at + topic_length + 2;
    Ok(Record {
        topic: text(topic_at, topic_length)?,
        queue: number(r, 12, 4)? as u32,
        offset: number(r, 20, 8)?,
        physical: number(r, 28, 8)?,
        stored_at: number(r, stored_at, 8)?,
        times: number(r, times_at, 4)? as u32,
        crc: number(r, 8, 4)? as u32,
        body: body.to_vec(),
        properties: text(properties_at, number(r, properties_at - 2, 2)? as usize)?,
    })
}

fn number(bytes: &[u8], at: usize, length: usize) -> Result<u64> {
    let bytes = bytes.get(at..at + length).context("a cut record")?;
    Ok(bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
}

/// The body of a batch: each message with its length, no flags, no checksum and one property.
pub fn batch(bodies: &[Vec<u8>]) -> Vec<u8> {
    let properties = b"TAGS\x01TagA\x02";
    let mut out = Vec::new();
    for body in bodies {
        out.extend((22 + body.len() as u32 + properties.len() as u32).to_be_bytes());
        out.extend([0; 12]);
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(body);
        out.extend((properties.len() as u16).to_be_bytes());
        out.extend(properties);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as the format describes it; hosts of 4 or 16 bytes.
    fn record(queue_offset: u64, flags: u32, body: &[u8]) -> Vec<u8> {
        let mut record = vec![0; 4];
        record.extend(0xDAA3_20A7_u32.to_be_bytes());
        record.extend(5_u32.to_be_bytes());
        record.extend(3_u32.to_be_bytes());
        record.extend([0; 4]);
        record.extend(queue_offset.to_be_bytes());
        record.extend(99_u64.to_be_bytes());
        record.extend(flags.to_be_bytes());
        record.extend([0; 8]);
        record.extend(vec![0; if flags & 16 == 0 { 8 } else { 20 }]);
        record.extend(1_700_000_000_001_u64.to_be_bytes());
        record.extend(vec![0; if flags & 32 == 0 { 8 } else { 20 }]);
        record.extend(2_u32.to_be_bytes());
        record.extend([0; 8]);
        record.extend((body.len() as u32).to_be_bytes());
        record.extend(body);
        record.extend(b"\x05topic\x00\x0aA\x011\x02DELAY\x01");
        let size = record.len() as u32;
        record[..4].copy_from_slice(&size.to_be_bytes());
        record
    }

    #[test]
    fn records_of_a_pull_are_read() {
        let bytes = [record(7, 0, b"one"), record(1 << 40, 16 | 32, b"two")].concat();
        let read_back = read(&bytes).unwrap();
        let one = Record {
            topic: "topic".into(),
            queue: 3,
            offset: 7,
            physical: 99,
            stored_at: 1_700_000_000_001,
            times: 2,
            crc: 5,
            body: b"one".to_vec(),
            properties: "A\u{1}1\u{2}DELAY\u{1}".into(),
        };
        assert_eq!(read_back, [one.clone(), Record { offset: 1 << 40, body: b"two".to_vec(), ..one }]);
        assert_eq!((read_back[0].property("A"), read_back[0].property("B")), (Some("1"), None));
        assert!(read(&bytes[..bytes.len() - 1]).is_err(), "a cut record");
        assert!(read(&[0; 100]).is_err(), "no record");
    }

    #[test]
    fn a_batch_gives_each_message_its_length() {
        let bytes = batch(&[b"ab".to_vec(), b"c".to_vec()]);
        let first = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
        assert_eq!(first, 4 + 4 + 4 + 4 + 4 + 2 + 2 + 10);
        assert_eq!(bytes.len(), first + first - 1);
        assert_eq!(&bytes[20..22], b"ab");
    }
}
