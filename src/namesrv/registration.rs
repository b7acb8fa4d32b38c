//! The body of a registration (request 103), in its three forms, and the work of decoding and merging it.
//!
//! Role: bytes to topics, on whatever thread calls; the caller decides which. Invariants: at most [`MAX_INFLATED_BYTES`]
//! are ever held of a compressed body; a body that is not whole changes nothing. It knows no table but the merge.

use std::io::Read;

use flate2::read::ZlibDecoder;
use remoting::codes::version;
use remoting::json::JsonRef;

use crate::table::{DataVersion, Merge, MergeBase, TopicMap, TopicQueues, merge};

/// Largest body that is decoded at once; a larger one, and any compressed one, is a job for another thread.
pub const MAX_INLINE_BYTES: usize = 64 << 10;
/// Largest compressed body when inflated: about a million topics.
pub const MAX_INFLATED_BYTES: usize = 64 << 20;

/// A body to be decoded and merged.
#[derive(Debug)]
pub struct RegistrationBody {
    /// Body as received.
    pub bytes: Vec<u8>,
    /// CRC32 of it without the highest bit, as the header tells; 0: not checked.
    pub crc32: i32,
    /// Whether it is a zlib stream.
    pub compressed: bool,
    /// Version of the broker: it decides the form.
    pub version: i32,
    /// What its topics are merged with.
    pub base: MergeBase,
}

/// A body decoded and merged.
#[derive(Debug)]
pub struct Decoded {
    /// Version of the topics.
    pub version: DataVersion,
    /// Topics in the body.
    pub topic_count: usize,
    /// Filter servers; `None` when the body has no list.
    pub filter_servers: Option<Vec<String>>,
    /// Static topics: topic, broker name, mapping as JSON text.
    pub mappings: Vec<(String, String, String)>,
    /// The topics.
    pub merge: Merge,
}

/// Why a body is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Its checksum is not that of the header.
    #[error("crc32 not match")]
    Checksum,
    /// It inflates to more than [`MAX_INFLATED_BYTES`].
    #[error("the registration is longer than {MAX_INFLATED_BYTES} bytes")]
    TooLarge,
    /// It ends early, or is no zlib stream, no JSON or no topic.
    #[error("the registration is malformed: {0}")]
    Malformed(&'static str),
}

#[derive(Default)]
struct Body {
    version: DataVersion,
    topics: TopicMap,
    filter_servers: Option<Vec<String>>,
    mappings: Vec<(String, String, String)>,
}

impl RegistrationBody {
    /// Whether this is work for another thread.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.compressed || self.bytes.len() > MAX_INLINE_BYTES
    }

    /// Decodes and merges.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(self) -> Result<Decoded, BodyError> {
        if self.crc32 != 0 && (crc32fast::hash(&self.bytes) & 0x7FFF_FFFF) as i32 != self.crc32 {
            return Err(BodyError::Checksum);
        }
        let body = if self.bytes.is_empty() {
            Body::default()
        } else if self.compressed {
            Content(&inflate(&self.bytes)?).body(self.version >= version::V5_0_0)?
        } else {
            json_body(&self.bytes, self.version >= version::V3_0_11)?
        };
        let Body { version, topics, filter_servers, mappings } = body;
        Ok(Decoded {
            version,
            topic_count: topics.len(),
            filter_servers,
            mappings,
            merge: merge(self.base, version, topics),
        })
    }
}

/// Version of topics as brokers write it.
///
/// # Errors
/// It is no JSON object.
pub fn data_version(text: &[u8]) -> Result<DataVersion, BodyError> {
    let json = JsonRef::parse(text).map_err(|_| BodyError::Malformed("data version"))?;
    if !json.is_object() {
        return Err(BodyError::Malformed("data version"));
    }
    Ok(version_of(json))
}

fn version_of(json: JsonRef<'_>) -> DataVersion {
    let number = |name| json.get(name).as_i64().unwrap_or(0);
    DataVersion { state_version: number("stateVersion"), timestamp_ms: number("timestamp"), counter: number("counter") }
}

/// What a topic or a queue entry says of its queues. What is missing has Java's default.
#[must_use]
pub fn topic_queues(json: JsonRef<'_>) -> TopicQueues {
    let number = |name, default| json.get(name).as_i32().unwrap_or(default);
    TopicQueues {
        read: number("readQueueNums", 16),
        write: number("writeQueueNums", 16),
        perm: number("perm", 6),
        sys_flag: number("topicSysFlag", 0),
    }
}

/// `full`: the wrapper stands in a body with filter servers; old brokers send the wrapper alone.
fn json_body(text: &[u8], full: bool) -> Result<Body, BodyError> {
    let json = JsonRef::parse(text).map_err(|_| BodyError::Malformed("no JSON"))?;
    if !json.is_object() {
        return Err(BodyError::Malformed("no JSON object"));
    }
    let wrapper = if full { json.get("topicConfigSerializeWrapper") } else { json };
    let mut body = Body { version: version_of(wrapper.get("dataVersion")), ..Body::default() };
    for (key, topic) in wrapper.get("topicConfigTable").entries() {
        let name = topic.get("topicName").as_str().or_else(|| key.as_str()).unwrap_or_default();
        if !name.is_empty() {
            body.topics.insert(name.into(), topic_queues(topic));
        }
    }
    for (_, mapping) in wrapper.get("topicQueueMappingInfoMap").entries() {
        body.add_mapping(mapping);
    }
    let servers = json.get("filterServerList");
    body.filter_servers = (full && servers.is_list()).then(|| servers.items().map(|server| server.string()).collect());
    Ok(body)
}

impl Body {
    fn add_mapping(&mut self, mapping: JsonRef<'_>) {
        let (topic, owner) = (mapping.get("topic").string(), mapping.get("bname").string());
        if !topic.is_empty() && !owner.is_empty() {
            self.mappings.push((topic, owner, String::from_utf8_lossy(mapping.text()).into_owned()));
        }
    }
}

/// The content of a zlib stream, checksum included.
fn inflate(bytes: &[u8]) -> Result<Vec<u8>, BodyError> {
    let mut content = Vec::new();
    let mut stream = ZlibDecoder::new(bytes).take(MAX_INFLATED_BYTES as u64 + 1);
    stream.read_to_end(&mut content).map_err(|_| BodyError::Malformed("no whole zlib stream"))?;
    if content.len() > MAX_INFLATED_BYTES { Err(BodyError::TooLarge) } else { Ok(content) }
}

/// The inflated form: lengths, big endian, and texts.
struct Content<'a>(&'a [u8]);

impl<'a> Content<'a> {
    fn body(mut self, has_mappings: bool) -> Result<Body, BodyError> {
        let mut body = Body { version: data_version(self.text()?)?, ..Body::default() };
        for _ in 0..self.number()? {
            let (name, queues) = topic_line(self.text()?).ok_or(BodyError::Malformed("topic"))?;
            body.topics.insert(name.into(), queues);
        }
        let servers = JsonRef::parse(self.text()?).map_err(|_| BodyError::Malformed("filter servers"))?;
        body.filter_servers = Some(servers.items().map(|server| server.string()).collect());
        if has_mappings {
            for _ in 0..self.number()? {
                body.add_mapping(JsonRef::parse(self.text()?).map_err(|_| BodyError::Malformed("topic mapping"))?);
            }
        }
        // What a newer broker may have added is left.
        Ok(body)
    }

    fn number(&mut self) -> Result<usize, BodyError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(BodyError::Malformed("cut"))?;
        self.0 = rest;
        usize::try_from(i32::from_be_bytes(*bytes)).map_err(|_| BodyError::Malformed("negative length"))
    }

    fn text(&mut self) -> Result<&'a [u8], BodyError> {
        let length = self.number()?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(BodyError::Malformed("cut"))?;
        self.0 = rest;
        Ok(text)
    }
}

/// `name readQueues writeQueues perm filterType attributes`, between blanks.
fn topic_line(text: &[u8]) -> Option<(&str, TopicQueues)> {
    let mut parts = std::str::from_utf8(text).ok()?.splitn(6, ' ');
    let name = parts.next().filter(|name| !name.is_empty())?;
    let mut number = || parts.next()?.parse::<i32>().ok();
    Some((name, TopicQueues { read: number()?, write: number()?, perm: number()?, sys_flag: 0 }))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn plain(bytes: &[u8], version: i32) -> RegistrationBody {
        RegistrationBody { bytes: bytes.to_vec(), crc32: 0, compressed: false, version, base: MergeBase::default() }
    }

    fn text(out: &mut Vec<u8>, text: &[u8]) {
        out.extend_from_slice(&(text.len() as i32).to_be_bytes());
        out.extend_from_slice(text);
    }

    fn zlib(raw: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(raw).unwrap();
        encoder.finish().unwrap()
    }

    fn compressed(tail: bool) -> Vec<u8> {
        let mut raw = Vec::new();
        text(&mut raw, br#"{"counter":3,"stateVersion":1,"timestamp":7}"#);
        raw.extend_from_slice(&2i32.to_be_bytes());
        text(&mut raw, b"t 8 4 6 SINGLE_TAG {\"a\":\"b c\"}");
        text(&mut raw, b"u 1 1 4 SINGLE_TAG");
        text(&mut raw, b"[\"1.2.3.4:5\"]");
        if tail {
            raw.extend_from_slice(&1i32.to_be_bytes());
            text(&mut raw, br#"{"topic":"s","bname":"b","epoch":1}"#);
        }
        raw
    }

    const VERSION: DataVersion = DataVersion { state_version: 1, timestamp_ms: 7, counter: 3 };

    #[test]
    fn reads_both_forms() {
        let full = br#"{"filterServerList":["1.2.3.4:5"],"topicConfigSerializeWrapper":{
            "dataVersion":{"counter":3,"stateVersion":1,"timestamp":7},
            "topicConfigTable":{"t":{"topicName":"t","readQueueNums":8,"writeQueueNums":4,"perm":6,"topicSysFlag":0},
                "u":{"topicName":"u","readQueueNums":1,"writeQueueNums":1,"perm":4}},
            "topicQueueMappingInfoMap":{"s":{"topic":"s","bname":"b","epoch":1}}}}"#;
        let stream = RegistrationBody { compressed: true, ..plain(&zlib(&compressed(true)), 493) };
        assert!(stream.is_large() && !plain(full, 493).is_large());
        for body in [plain(full, 493), stream] {
            let decoded = body.decode().unwrap();
            assert_eq!((decoded.version, decoded.topic_count), (VERSION, 2));
            assert_eq!(decoded.filter_servers, Some(vec!["1.2.3.4:5".to_owned()]));
            assert_eq!(decoded.merge.merged["t"], TopicQueues { read: 8, write: 4, perm: 6, sys_flag: 0 });
            assert_eq!(decoded.merge.merged["u"].perm, 4);
            assert_eq!(decoded.mappings[0].2, r#"{"topic":"s","bname":"b","epoch":1}"#);
        }
        let old = RegistrationBody { compressed: true, ..plain(&zlib(&compressed(false)), 400) };
        assert_eq!(old.decode().unwrap().topic_count, 2);
        let oldest =
            plain(br#"{"dataVersion":{"counter":3},"topicConfigTable":{"t":{"perm":6}}}"#, 36).decode().unwrap();
        assert_eq!((oldest.topic_count, oldest.filter_servers), (1, None));
        assert_eq!(plain(b"", 493).decode().unwrap().version, DataVersion::default());
    }

    #[test]
    fn checks_the_checksum() {
        let crc32 = (crc32fast::hash(b"{}") & 0x7FFF_FFFF) as i32;
        assert!(RegistrationBody { crc32, ..plain(b"{}", 493) }.decode().is_ok());
        assert_eq!(
            RegistrationBody { crc32: crc32 + 1, ..plain(b"{}", 493) }.decode().unwrap_err(),
            BodyError::Checksum
        );
    }

    #[test]
    fn refuses_what_is_cut_or_too_large() {
        let raw = compressed(true);
        for end in 0..raw.len() {
            let body = RegistrationBody { compressed: true, ..plain(&zlib(&raw[..end]), 493) };
            assert!(body.decode().is_err(), "cut at {end}");
        }
        for bad in [&b"["[..], b"[]", b"null", b"\x78\x9c"] {
            assert!(plain(bad, 493).decode().is_err());
        }
        let bomb = zlib(&vec![0; MAX_INFLATED_BYTES + 1]);
        assert!(bomb.len() < 200_000);
        let large = |bytes: Vec<u8>| RegistrationBody { compressed: true, ..plain(&bytes, 493) }.decode().unwrap_err();
        assert_eq!(large(zlib(&i32::MAX.to_be_bytes())), BodyError::Malformed("cut"));
        assert_eq!(large(bomb), BodyError::TooLarge);
        let negative = zlib(&(-1i32).to_be_bytes());
        assert_eq!(large(negative), BodyError::Malformed("negative length"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..200), version in 0..500, deflate in proptest::bool::ANY
        ) {
            let (bytes, compressed) = if deflate { (zlib(&bytes), true) } else { (bytes, version % 2 == 0) };
            let _ = RegistrationBody { compressed, ..plain(&bytes, version) }.decode();
        }
    }
}
