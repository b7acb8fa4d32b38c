//! Requests to the name server: answers, order, jobs and files.

use std::io::Write;
use std::net::SocketAddr;

use namesrv::kv::KvConfig;
use namesrv::{NameServer, NamesrvConfig, NsAction, NsDone, NsFile, NsJob, NsOrigin};
use reactor::{ConnectionId, CoreId, Now};
use remoting::codes::version;
use remoting::{Command, SerializeType};

struct Desk {
    server: NameServer,
    now: Now,
    jobs: Vec<(u64, NsJob)>,
    replies: Vec<(u32, Command)>,
    held: Vec<u32>,
    closed: Vec<u32>,
    files: Vec<(NsFile, String)>,
    opaque: i32,
}

impl Desk {
    fn new() -> Self {
        let config = NamesrvConfig::default();
        let server = NameServer::new(Now::default(), config.clone(), config, KvConfig::default());
        let now = Now::default();
        Self { server, now, jobs: vec![], replies: vec![], held: vec![], closed: vec![], files: vec![], opaque: 0 }
    }

    fn take(&mut self, actions: Vec<NsAction>) {
        for action in actions {
            match action {
                NsAction::Reply(connection, response) => self.replies.push((connection.slot, response)),
                NsAction::Run(token, job) => self.jobs.push((token, job)),
                NsAction::Hold(connection) => self.held.push(connection.slot),
                NsAction::Release(connection) => self.held.retain(|slot| *slot != connection.slot),
                NsAction::Close(connection) => self.closed.push(connection.slot),
            }
        }
    }

    fn ask(&mut self, slot: u32, request: Command) {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut out = Vec::new();
        let origin = NsOrigin { connection: connection(slot), peer };
        self.server.request(self.now, origin, request, &mut out);
        self.take(out);
    }

    fn run_jobs(&mut self) {
        while !self.jobs.is_empty() {
            let (token, job) = self.jobs.remove(0);
            let files = &mut self.files;
            let done = job.run(|file, bytes| {
                files.push((file, String::from_utf8(bytes.to_vec()).unwrap()));
                Ok(())
            });
            self.finish(token, done);
        }
    }

    fn finish(&mut self, token: u64, done: NsDone) {
        let mut out = Vec::new();
        self.server.done(self.now, token, done, &mut out);
        self.take(out);
    }

    /// Asks, runs the jobs, and gives the one answer.
    fn call(&mut self, slot: u32, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Command {
        self.call_as(slot, code, fields, body, version::CURRENT)
    }

    fn call_as(&mut self, slot: u32, code: i32, fields: &[(&str, &str)], body: &[u8], version: i32) -> Command {
        self.opaque += 1;
        let mut request = Command::request(code, self.opaque).with_body(body.to_vec());
        request.version = version;
        for (name, value) in fields {
            request.ext.set(*name, *value);
        }
        assert!(self.replies.is_empty());
        self.ask(slot, request);
        self.run_jobs();
        assert!(self.held.is_empty());
        let (to, response) = self.replies.pop().expect("an answer");
        assert!(self.replies.is_empty(), "one answer");
        assert_eq!((to, response.opaque, response.is_response()), (slot, self.opaque, true));
        response
    }

    fn register(&mut self, slot: u32, name: &str, topics: &[&str]) -> Command {
        let body = body(topics);
        self.call(slot, 103, &fields(name), body.as_bytes())
    }
}

fn connection(slot: u32) -> ConnectionId {
    ConnectionId { core: CoreId(0), slot, generation: 1 }
}

fn fields(name: &str) -> [(&str, &str); 5] {
    [("brokerName", name), ("brokerAddr", "h:1"), ("clusterName", "c"), ("haServerAddr", "h:2"), ("brokerId", "0")]
}

fn body(topics: &[&str]) -> String {
    let topic = |name: &&str| {
        format!(r#""{name}":{{"topicName":"{name}","readQueueNums":4,"writeQueueNums":4,"perm":6,"topicSysFlag":0}}"#)
    };
    let table = topics.iter().map(topic).collect::<Vec<_>>().join(",");
    format!(
        r#"{{"filterServerList":[],"topicConfigSerializeWrapper":{{"dataVersion":{{"counter":1,"stateVersion":0,"timestamp":5}},"topicConfigTable":{{{table}}}}}}}"#
    )
}

fn text(command: &Command) -> &str {
    std::str::from_utf8(&command.body).unwrap()
}

#[test]
fn routes_have_java_s_bytes() {
    let mut desk = Desk::new();
    assert_eq!(desk.register(1, "b", &["t", "u"]).code, 0);
    let quoted = r#"{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"b","cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
    let bare = quoted.replace(r#""0":"#, "0:");
    for (version, standard, expected) in [
        (493, "false", quoted),
        (401, "", quoted),
        (400, "true", quoted),
        (400, "false", bare.as_str()),
        (317, "", &bare),
    ] {
        let asked = [("topic", "t"), ("acceptStandardJsonOnly", standard)];
        let response = desk.call_as(2, 105, &asked, b"", version);
        assert_eq!((response.code, text(&response)), (0, expected), "{version} {standard}");
    }
    let unknown = desk.call(2, 105, &[("topic", "x")], b"");
    assert_eq!(unknown.code, 17);
    assert!(unknown.remark.unwrap().starts_with("No topic route info in name server for the topic: x"));
    let cluster = desk.call(2, 106, &[], b"");
    let expected = r#"{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c","enableActingMaster":false}},"clusterAddrTable":{"c":["b"]}}"#;
    assert_eq!(text(&cluster), expected);
    let group = desk.call(2, 901, &[("brokerName", "b"), ("clusterName", "c")], b"");
    assert_eq!(text(&group), r#"{"brokerMemberGroup":{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c"}}"#);
    assert_eq!(text(&desk.call(2, 304, &[], b"")), r#"{"brokerAddr":"h:1","topicList":["b","c"]}"#);
    assert_eq!(text(&desk.call(2, 224, &[("cluster", "none")], b"")), r#"{"topicList":[]}"#);
}

#[test]
fn a_large_registration_holds_its_connection_and_nobody_else() {
    let mut desk = Desk::new();
    let names: Vec<String> = (0..3_000).map(|at| format!("topic-{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut request = Command::request(103, 7).with_body(body(&names).into_bytes());
    fields("b").into_iter().for_each(|(name, value)| request.ext.set(name, value));
    desk.ask(1, request.clone());
    assert_eq!((desk.held.as_slice(), desk.replies.len(), desk.jobs.len()), (&[1][..], 0, 1));
    assert!(desk.server.is_busy());
    let (job, held) = (std::mem::take(&mut desk.jobs), std::mem::take(&mut desk.held));
    assert_eq!(desk.call(2, 105, &[("topic", "topic-5")], b"").code, 17, "others are served meanwhile");
    (desk.jobs, desk.held) = (job, held);
    desk.run_jobs();
    assert_eq!((desk.held.len(), desk.replies.pop().unwrap().1.code), (0, 0));
    assert_eq!(desk.call(2, 105, &[("topic", "topic-2999")], b"").code, 0);

    desk.ask(3, request);
    desk.server.connection_closed(connection(3));
    desk.held.clear(); // a closed connection holds nothing
    desk.run_jobs();
    assert!(desk.replies.is_empty(), "nobody waits for it");
    desk.server.connection_closed(connection(1));
    assert_eq!(desk.call(2, 105, &[("topic", "topic-5")], b"").code, 17, "and it has registered nothing");
}

#[test]
fn compressed_registrations_are_inflated() {
    let mut desk = Desk::new();
    let mut raw = Vec::new();
    let mut part = |text: &[u8]| {
        raw.extend_from_slice(&(text.len() as i32).to_be_bytes());
        raw.extend_from_slice(text);
    };
    part(br#"{"counter":1,"stateVersion":0,"timestamp":5}"#);
    raw.extend_from_slice(&2i32.to_be_bytes());
    for topic in ["t 4 4 6 SINGLE_TAG", "u 1 1 6 SINGLE_TAG {}"] {
        raw.extend_from_slice(&(topic.len() as i32).to_be_bytes());
        raw.extend_from_slice(topic.as_bytes());
    }
    raw.extend_from_slice(&2i32.to_be_bytes());
    raw.extend_from_slice(b"[]");
    raw.extend_from_slice(&0i32.to_be_bytes());
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(&raw).unwrap();
    let stream = zlib.finish().unwrap();
    let mut asked = fields("b").to_vec();
    asked.extend([("compressed", "true"), ("bodyCrc32", "12345")]);
    let refused = desk.call(1, 103, &asked, &stream);
    assert_eq!((refused.code, refused.remark.as_deref()), (1, Some("crc32 not match")));
    asked.pop();
    assert_eq!(desk.call(1, 103, &asked, &stream[..stream.len() - 5]).code, 1);
    assert_eq!(desk.call(2, 105, &[("topic", "t")], b"").code, 17);
    assert_eq!(desk.call(1, 103, &asked, &stream).code, 0);
    assert_eq!(desk.call(2, 105, &[("topic", "u")], b"").code, 0);
}

#[test]
fn data_versions_are_compared() {
    let mut desk = Desk::new();
    let same = br#"{"counter":1,"stateVersion":0,"timestamp":5}"#;
    let unknown = desk.call(1, 322, &fields("b"), same);
    assert_eq!((unknown.ext.get("changed"), unknown.body.len()), (Some("true"), 0));
    desk.register(1, "b", &["t", "u"]);
    let known = desk.call(1, 322, &fields("b"), same);
    assert_eq!((known.ext.get("changed"), known.body.as_slice()), (Some("false"), &same[..]));
    let newer = desk.call(1, 322, &fields("b"), br#"{"counter":2,"stateVersion":0,"timestamp":5}"#);
    assert_eq!(newer.ext.get("changed"), Some("true"));
}

#[test]
fn key_values_are_answered_after_their_file() {
    let mut desk = Desk::new();
    let entry = |value| [("namespace", "n"), ("key", "k"), ("value", value)];
    for (at, value) in ["1", "2", "3"].into_iter().enumerate() {
        let mut request = Command::request(100, at as i32);
        entry(value).into_iter().for_each(|(name, value)| request.ext.set(name, value));
        desk.ask(at as u32, request);
    }
    assert_eq!((desk.jobs.len(), desk.replies.len()), (1, 0), "one write at a time");
    desk.run_jobs();
    assert_eq!(desk.replies.drain(..).map(|(slot, _)| slot).collect::<Vec<_>>(), [0, 1, 2]);
    let written: Vec<_> = desk.files.drain(..).map(|(_, text)| text).collect();
    assert_eq!(written, [r#"{"configTable":{"n":{"k":"1"}}}"#, r#"{"configTable":{"n":{"k":"3"}}}"#]);
    let read = NameServer::read_key_values(written[1].as_bytes()).unwrap();
    assert_eq!(read.get("n", "k"), Some("3"));
    assert_eq!(NameServer::read_key_values(b"{\"configTable\":"), None);

    let mut request = Command::request(100, 9);
    entry("4").into_iter().for_each(|(name, value)| request.ext.set(name, value));
    desk.ask(1, request);
    let (token, _) = desk.jobs.pop().unwrap();
    desk.finish(token, NsDone::Written(Err("no space left".into())));
    let (_, failed) = desk.replies.pop().unwrap();
    assert_eq!((failed.code, failed.remark.as_deref()), (1, Some("not saved: no space left")));
    assert_eq!(desk.call(1, 219, &[("namespace", "n")], b"").code, 0);
    assert_eq!(desk.call(1, 101, &[("namespace", "n"), ("key", "x")], b"").code, 22);
    assert_eq!(desk.call(1, 102, &[("namespace", "n"), ("key", "k")], b"").code, 0);
    assert_eq!(desk.call(1, 219, &[("namespace", "n")], b"").code, 22);
    let refused = desk.call(1, 100, &[("namespace", "ORDER_TOPIC_CONFIG"), ("key", "t"), ("value", "b:x")], b"");
    assert_eq!(refused.code, 1);
}

#[test]
fn order_configurations_go_to_routes_and_brokers() {
    let mut desk = Desk::new();
    desk.register(1, "b", &["t", "u"]);
    desk.call(1, 100, &[("namespace", "ORDER_TOPIC_CONFIG"), ("key", "t"), ("value", "b:4")], b"");
    assert_eq!(text(&desk.register(1, "b", &["t", "u"])), r#"{"table":{"t":"b:4"}}"#);
    let route = [("topic", "t")];
    assert!(!text(&desk.call(1, 105, &route, b"")).contains("orderTopicConf"));
    assert_eq!(desk.call(1, 318, &[], b"orderMessageEnable=true\n").code, 0);
    let (file, saved) = desk.files.pop().unwrap();
    assert!(file == NsFile::Settings && saved.ends_with("\norderMessageEnable=true\n"));
    assert!(text(&desk.call(1, 105, &route, b"")).contains(r#","orderTopicConf":"b:4","#));
    let before = desk.call(1, 319, &[], b"").body;
    for attack in ["configStorePath", "kvConfigPath", "configBlackList", "rocketmqHome"] {
        let body = format!("orderMessageEnable=false\n{attack}=/tmp/x\n");
        assert_eq!(desk.call(1, 318, &[], body.as_bytes()).code, 16, "{attack}");
    }
    assert_eq!(desk.call(1, 318, &[], b"orderMessageEnable=perhaps").code, 29);
    assert_eq!(desk.call(1, 319, &[], b"").body, before);
}

#[test]
fn every_request_has_one_answer() {
    let mut desk = Desk::new();
    for code in (0..1_100).chain([-1, 200_050, i32::MAX, i32::MIN]) {
        let served = [100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313];
        let served = served.contains(&code) || [318, 319, 322, 327, 901, 904].contains(&code);
        let response = desk.call(1, code, &[], b"");
        assert_eq!(response.code == 3, !served, "code {code}");
    }
    desk.ask(1, Command::request(9_999, 1).oneway());
    desk.ask(1, Command::request(105, 1).oneway());
    desk.ask(1, Command::response(0, 1, SerializeType::Json));
    assert!(desk.replies.is_empty(), "no answer to a oneway request or to an answer");
    let mut compact = Command::request(106, 1);
    compact.serialize_type = SerializeType::Compact;
    desk.ask(1, compact);
    assert_eq!(desk.replies.pop().unwrap().1.serialize_type, SerializeType::Compact, "in the form of the request");
}

#[test]
fn silent_brokers_go_and_their_connections_are_closed() {
    let mut desk = Desk::new();
    let mut quick = fields("q").to_vec();
    quick.push(("heartbeatTimeoutMillis", "2000"));
    desk.call(1, 103, &quick, body(&["t", "u"]).as_bytes());
    desk.register(2, "b", &["t", "u"]);
    for second in 1..=8 {
        desk.now = Now { mono_us: second * 1_000_000, wall_ms: 0 };
        let mut out = Vec::new();
        desk.server.tick(desk.now, &mut out);
        desk.take(out);
    }
    assert_eq!(desk.closed, [1]);
    assert!(!text(&desk.call(3, 105, &[("topic", "t")], b"")).contains("\"q\""));
    assert!(text(&desk.call(3, 105, &[("topic", "t")], b"")).contains("\"b\""));
}

#[test]
fn single_topics_are_registered_for_known_brokers() {
    let mut desk = Desk::new();
    let queues =
        br#"{"queueDatas":[{"brokerName":"b","readQueueNums":2,"writeQueueNums":3,"perm":6,"topicSysFlag":0}]}"#;
    assert_eq!(desk.call(1, 217, &[("topic", "x")], queues).code, 0);
    assert_eq!(desk.call(1, 105, &[("topic", "x")], b"").code, 17);
    desk.register(1, "b", &["t", "u"]);
    desk.call(1, 217, &[("topic", "x")], queues);
    assert!(text(&desk.call(1, 105, &[("topic", "x")], b"")).contains("\"writeQueueNums\":3"));
    assert_eq!(desk.call(1, 205, &[("brokerName", "b")], b"").ext.get("wipeTopicCount"), Some("3"));
    assert_eq!(desk.call(1, 327, &[("brokerName", "b")], b"").ext.get("addTopicCount"), Some("3"));
    assert_eq!(desk.call(1, 205, &[("brokerName", "none")], b"").ext.get("wipeTopicCount"), Some("0"));
}
