//! Prints what the hot path's codecs cost, in nanoseconds an operation: the frames of the load tool's shape, the best of
//! several rounds. Run: `cargo run --release -p remoting --example timing`; a number after `--` sets the rounds (2,000), for
//! counting instructions under valgrind.

use message::ids::{OffsetIdPrefix, UniqueIdMaker};
use message::properties::{PropertiesSource, PropertyList, SendStamp};
use message::record::{RecordFields, encode, patch};
use message::{PhysicalOffset, QueueOffset};
use remoting::reply::{self, SendReply};
use remoting::scan::{Fields, scan};
use remoting::{Command, ResponseCode, SerializeType};
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Instant;

fn main() {
    for form in [SerializeType::Json, SerializeType::Compact] {
        let frame = send_frame(form);
        measure(&format!("scan a send, {} header", form.name()), || {
            black_box(scan(black_box(&frame)).expect("a good frame"));
        });
        let frame = pull_frame(form);
        measure(&format!("scan a pull, {} header", form.name()), || {
            black_box(scan(black_box(&frame)).expect("a good frame"));
        });
        let mut out = Vec::with_capacity(4096);
        let prefix = OffsetIdPrefix::new("127.0.0.1:10911".parse().expect("an address"));
        measure(&format!("write a send's answer, {} header", form.name()), || {
            out.clear();
            let reply = SendReply {
                code: ResponseCode::Success,
                id_prefix: &prefix,
                offsets: &[PhysicalOffset(123_456_789)],
                queue_id: 3,
                queue_offset: QueueOffset(123_456),
                transaction_id: Some(b"7F00000100002A139A16100000000100"),
                region: b"DefaultRegion",
                trace_on: true,
                recall_handle: None,
            };
            reply::send(&mut out, form, 1_000_000_001, black_box(&reply));
            black_box(&out);
        });
    }
    let frame = send_frame(SerializeType::Json);
    let (mut record, mut text) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
    measure("scan, read properties, stamp and encode a record of 128 bytes", || {
        record.clear();
        record_of(black_box(&frame), &mut text, &mut record);
        black_box(&record);
    });
    let mut maker = UniqueIdMaker::new("127.0.0.1".parse().expect("an address"), 1, 2, 0);
    measure("make a unique id", || {
        black_box(maker.next_id(black_box(1_796_047_500_000)));
    });
}

fn record_of(frame: &[u8], text: &mut Vec<u8>, out: &mut Vec<u8>) {
    let header = scan(frame).expect("a good frame");
    let Fields::Send(send) = header.fields else { panic!("a send") };
    let mut list = PropertyList::default();
    send.properties.in_frame(frame).read_properties(&mut list, text);
    list.stamp(&SendStamp { region: b"DefaultRegion", trace_on: true, cluster: b"DefaultCluster" }, None);
    let host = SocketAddr::from(([127, 0, 0, 1], 10911));
    let fields = RecordFields {
        queue_id: send.queue_id,
        flag: send.flag,
        sys_flag: send.sys_flag,
        born_timestamp_ms: send.born_timestamp_ms,
        born_host: host,
        store_host: host,
        reconsume_times: send.reconsume_times,
        prepared_transaction_offset: 0,
        topic: send.topic.bytes(frame),
        body: header.body(frame),
        properties: PropertiesSource::List(list.view()),
    };
    encode(out, &fields).expect("a record of bearable size");
    patch(out, QueueOffset(1), PhysicalOffset(2), 3);
}

fn send_frame(form: SerializeType) -> Vec<u8> {
    let properties = "UNIQ_KEY\u{1}7F00000100002A139A16KKKKKKKKKK00\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA";
    let fields = [
        ("a", "LoadGroup"),
        ("b", "LoadTopic"),
        ("c", "TBW102"),
        ("d", "8"),
        ("e", "3"),
        ("f", "0"),
        ("g", "1796047500000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
        ("n", "broker-a"),
    ];
    let mut command = Command::request(310, 1_000_000_000).with_body(vec![b'x'; 128]);
    command.ext = fields.into_iter().collect();
    command.serialize_type = form;
    command.to_frame()
}

fn pull_frame(form: SerializeType) -> Vec<u8> {
    let fields = [
        ("consumerGroup", "LoadGroup"),
        ("topic", "LoadTopic"),
        ("queueId", "3"),
        ("queueOffset", "123456"),
        ("maxMsgNums", "32"),
        ("sysFlag", "3"),
        ("commitOffset", "123424"),
        ("suspendTimeoutMillis", "15000"),
        ("subVersion", "1796047500000"),
        ("maxMsgBytes", "2147483647"),
        ("requestSource", "-1"),
        ("bname", "broker-a"),
    ];
    let mut command = Command::request(11, 1_000_000_000);
    command.ext = fields.into_iter().collect();
    command.serialize_type = form;
    command.to_frame()
}

fn measure(what: &str, mut operation: impl FnMut()) {
    const ROUND: u32 = 1_000; // short enough to run without being interrupted
    let mut best = f64::INFINITY;
    for _ in 0..rounds() {
        let start = Instant::now();
        for _ in 0..ROUND {
            operation();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND));
    }
    println!("{best:7.1} ns  {what}");
}

fn rounds() -> u32 {
    std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2_000)
}
