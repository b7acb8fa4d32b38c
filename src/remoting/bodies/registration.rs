//! Registration of a broker (103): the JSON form and the compressed one.

use super::bean::bean;
use super::topic::{DataVersion, TopicConfig, TopicConfigWrapper};
use super::{Body, BodyError};
use crate::codes::version;
use crate::json::{Json, Key};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use std::io::{Read, Write};

/// A compressed body inflates to at most this many bytes.
pub const MAX_INFLATED_BYTES: usize = 64 * 1024 * 1024;

bean! {
    /// What a broker tells a name server.
    RegisterBrokerBody {
        /// Filter servers (removed from RocketMQ).
        filter_server_list: Vec<String> = "filterServerList",
        /// Its topics.
        topic_config_serialize_wrapper: TopicConfigWrapper = "topicConfigSerializeWrapper",
    }
}

impl RegisterBrokerBody {
    /// Reads a compressed body of a broker of this version.
    ///
    /// # Errors
    /// It does not inflate within [`MAX_INFLATED_BYTES`], or its parts do not fit.
    pub fn decode_compressed(body: &[u8], broker_version: i32) -> Result<Self, BodyError> {
        let mut text = Vec::new();
        let limit = MAX_INFLATED_BYTES as u64 + 1;
        ZlibDecoder::new(body)
            .take(limit)
            .read_to_end(&mut text)
            .map_err(|_| BodyError::Compressed("no whole zlib stream"))?;
        if text.len() > MAX_INFLATED_BYTES {
            return Err(BodyError::TooLarge(MAX_INFLATED_BYTES));
        }
        Self::decode_parts(&text, broker_version)
    }

    /// The compressed form.
    #[must_use]
    pub fn encode_compressed(&self) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        let written = encoder.write_all(&self.encode_parts()).and_then(|()| encoder.finish());
        written.expect("writing to memory does not fail")
    }

    /// What is compressed.
    pub(crate) fn encode_parts(&self) -> Vec<u8> {
        let wrapper = &self.topic_config_serialize_wrapper;
        let mut parts = Vec::new();
        put_part(&mut parts, &wrapper.data_version.encode());
        parts.extend_from_slice(&(wrapper.topic_config_table.len() as u32).to_be_bytes());
        for topic in wrapper.topic_config_table.values() {
            put_part(&mut parts, topic.to_line().as_bytes());
        }
        put_part(&mut parts, &self.filter_server_list.encode());
        let mappings = match &wrapper.topic_queue_mapping_info_map {
            Some(Json::Object(members)) => members.as_slice(),
            _ => &[],
        };
        parts.extend_from_slice(&(mappings.len() as u32).to_be_bytes());
        for (_, mapping) in mappings {
            put_part(&mut parts, &mapping.to_vec());
        }
        parts
    }

    pub(crate) fn decode_parts(text: &[u8], broker_version: i32) -> Result<Self, BodyError> {
        let mut parts = Parts { rest: text };
        let mut body = Self::default();
        let wrapper = &mut body.topic_config_serialize_wrapper;
        wrapper.data_version = DataVersion::decode(parts.part()?)?;
        for _ in 0..parts.number()? {
            let line = String::from_utf8_lossy(parts.part()?);
            let topic = TopicConfig::from_line(&line).ok_or(BodyError::Compressed("a topic's line"))?;
            wrapper.topic_config_table.insert(topic.topic_name.clone(), topic);
        }
        body.filter_server_list = Vec::decode(parts.part()?).unwrap_or_default();
        if broker_version >= version::V5_0_0 {
            let mut mappings = Vec::new();
            for _ in 0..parts.number()? {
                let value = crate::json::JsonRef::parse(parts.part()?)?;
                mappings.push((Key::from(value.get("topic").string()), Json::from_ref(value)));
            }
            wrapper.topic_queue_mapping_info_map = Some(Json::Object(mappings));
        }
        Ok(body)
    }
}

/// Takes lengths and parts off the inflated text.
struct Parts<'a> {
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    fn number(&mut self) -> Result<usize, BodyError> {
        let (number, rest) = self.rest.split_first_chunk().ok_or(BodyError::Compressed("cut short"))?;
        self.rest = rest;
        usize::try_from(i32::from_be_bytes(*number)).map_err(|_| BodyError::Compressed("a negative length"))
    }

    fn part(&mut self) -> Result<&'a [u8], BodyError> {
        let len = self.number()?;
        let (part, rest) = self.rest.split_at_checked(len).ok_or(BodyError::Compressed("cut short"))?;
        self.rest = rest;
        Ok(part)
    }
}

fn put_part(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&(part.len() as u32).to_be_bytes());
    out.extend_from_slice(part);
}
