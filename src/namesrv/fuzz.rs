//! Fuzz entry points of this crate's decoders: `fn(&[u8])` that panic when an invariant breaks.
//!
//! Role: the same functions run under `cargo fuzz` and under `message::fuzz_driver`. Test support only.

use std::net::{Ipv4Addr, SocketAddr};

use reactor::{ConnectionId, CoreId, Now};
use remoting::Command;

use crate::config::NamesrvConfig;
use crate::kv::KvConfig;
use crate::name_server::{NameServer, NsAction, NsOrigin};
use crate::registration::RegistrationBody;
use crate::table::MergeBase;
use crate::{answers, properties};

/// The body of a registration, in the form that the first byte says: no panic; what is decoded is counted right.
pub fn registration(data: &[u8]) {
    let Some((form, bytes)) = data.split_first() else { return };
    let version = [0, 36, 400, 493][(form >> 1) as usize % 4];
    let body = RegistrationBody {
        bytes: bytes.to_vec(),
        crc32: 0,
        compressed: form & 1 == 1,
        version,
        base: MergeBase::default(),
    };
    if let Ok(decoded) = body.decode() {
        assert_eq!(decoded.topic_count, decoded.merge.merged.len());
        assert!(decoded.merge.merged.keys().all(|name| !name.is_empty()));
    }
}

/// A `.properties` text: no panic; what is read is written so that it reads the same.
pub fn properties(data: &[u8]) {
    let Ok(pairs) = properties::parse(data) else { return };
    let mut text = String::new();
    pairs.iter().for_each(|pair| properties::write(&pair.key, &pair.value, &mut text));
    let again = properties::parse(text.as_bytes()).expect("what was written can be read");
    let plain = |pairs: &[properties::Property]| -> Vec<(String, String)> {
        pairs.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect()
    };
    assert_eq!(plain(&again), plain(&pairs));
}

/// The content of `kvConfig.json`: no panic; what is read is written so that it reads the same.
pub fn key_values(data: &[u8]) {
    if let Some(read) = NameServer::read_key_values(data) {
        assert_eq!(NameServer::read_key_values(&answers::kv_file(read.table())), Some(read));
    }
}

/// Requests, one after the other: each has exactly one answer, and the table keeps its invariants. A request is a byte for
/// the connection, a byte for the code, lines `name=value` for its fields, and after an empty line its body, up to a zero.
pub fn requests(data: &[u8]) {
    const CODES: [i32; 24] = [
        100, 101, 102, 103, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 318, 319, 322, 327, 901,
        904, 1,
    ];
    let config = NamesrvConfig::default();
    let mut server = NameServer::new(Now::default(), config.clone(), config, KvConfig::default());
    for (at, request) in data.split(|&byte| byte == 0).take(16).enumerate() {
        let [slot, code, rest @ ..] = request else { continue };
        let connection = ConnectionId { core: CoreId(0), slot: u32::from(slot % 3), generation: 0 };
        let now = Now { mono_us: at as u64 * 1_000_000, wall_ms: 0 };
        if slot & 0x80 != 0 {
            server.connection_closed(connection);
            server.tick(now, &mut Vec::new());
        }
        let command = command(CODES[*code as usize % CODES.len()], at as i32, rest);
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let mut actions = Vec::new();
        server.request(now, NsOrigin { connection, peer }, command, &mut actions);
        let (mut answers, mut next) = (0, 0);
        while next < actions.len() {
            match std::mem::replace(&mut actions[next], NsAction::Release(connection)) {
                NsAction::Reply(to, response) => {
                    assert_eq!((to, response.opaque), (connection, at as i32));
                    answers += 1;
                }
                NsAction::Run(token, job) => server.done(now, token, job.run(|_, _| Ok(())), &mut actions),
                NsAction::Hold(_) | NsAction::Release(_) | NsAction::Close(_) => {}
            }
            next += 1;
        }
        assert_eq!(answers, 1, "one answer");
        assert!(!server.is_busy());
        server.table().validate();
    }
}

fn command(code: i32, opaque: i32, mut rest: &[u8]) -> Command {
    let mut command = Command::request(code, opaque);
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let line = String::from_utf8_lossy(&rest[..end]);
        rest = &rest[end + 1..];
        match line.split_once('=') {
            Some((name, value)) => command.ext.set(name, value),
            None => break,
        }
    }
    command.with_body(rest.to_vec())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use message::fuzz_driver::{Driver, executions};

    use super::*;

    const TOKENS: [&[u8]; 20] = [
        b"brokerName=b\n",
        b"brokerName=a\n",
        b"clusterName=c\n",
        b"brokerAddr=h:1\n",
        b"brokerAddr=h:2\n",
        b"brokerId=0\n",
        b"brokerId=1\n",
        b"topic=t\n",
        b"namespace=ORDER_TOPIC_CONFIG\nkey=t\nvalue=b:4\n",
        b"compressed=true\n",
        b"enableActingMaster=true\n",
        b"\"topicConfigTable\":{\"t\":{\"topicName\":\"t\",\"perm\":6}}",
        b"\"dataVersion\":{\"stateVersion\":1}",
        b"\n\n",
        b"\0",
        b"\\u",
        b"\\",
        b"\"",
        b"{",
        b"}",
    ];

    const BODY: &str = r#"{"filterServerList":["x:1"],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"topicConfigTable":{"t":{"topicName":"t","readQueueNums":4,"perm":6},"u":{"topicName":"u"}},"topicQueueMappingInfoMap":{"s":{"topic":"s","bname":"b"}}}}"#;

    fn run(name: &str, seeds: Vec<Vec<u8>>, target: fn(&[u8])) {
        Driver::new(0x5EED, seeds).with_tokens(&TOKENS).run(name, executions(), target);
    }

    fn compressed() -> Vec<u8> {
        let mut raw = Vec::new();
        for text in [&br#"{"counter":1,"stateVersion":0,"timestamp":5}"#[..], b"\x01", b"t 4 4 6 SINGLE_TAG", b"[]"] {
            match text {
                b"\x01" => raw.extend_from_slice(&1i32.to_be_bytes()),
                text => {
                    raw.extend_from_slice(&(text.len() as i32).to_be_bytes());
                    raw.extend_from_slice(text);
                }
            }
        }
        raw.extend_from_slice(&0i32.to_be_bytes());
        let mut zlib = flate2::write::ZlibEncoder::new(vec![7], flate2::Compression::fast());
        zlib.write_all(&raw).unwrap();
        zlib.finish().unwrap()
    }

    #[test]
    fn fuzz_registration() {
        run("registration", vec![[b"\x06", BODY.as_bytes()].concat(), compressed()], registration);
    }

    #[test]
    fn fuzz_properties() {
        let text = b"a=b\n# c\nd\\ e : \\u4e2d f\\\n  g\r\nlistenPort 1\n".to_vec();
        run("properties", vec![text], properties);
    }

    #[test]
    fn fuzz_key_values() {
        run("key_values", vec![br#"{"configTable":{"n":{"k":"v","l":"w\u00e9"}}}"#.to_vec()], key_values);
    }

    #[test]
    fn fuzz_requests() {
        let register = |address: &str, id: i32| {
            format!("\x01\x03brokerName=b\nclusterName=c\nbrokerAddr={address}\nbrokerId={id}\n\n{BODY}\0").into_bytes()
        };
        let others =
            b"\x02\x06topic=t\n\n\0\x02\x07\n\0\x01\x05brokerName=b\nclusterName=c\nbrokerAddr=h:1\nbrokerId=0\n\n\0";
        let seeds = vec![
            [&register("h:1", 0)[..], &register("h:2", 1), others].concat(),
            b"\x01\x00namespace=n\nkey=k\nvalue=v\n\n\0\x01\x0Cnamespace=n\n\n\0\x01\x11\norderMessageEnable=true\n\0"
                .to_vec(),
        ];
        run("requests", seeds, requests);
    }
}
