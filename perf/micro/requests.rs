//! Headers read and answers written, in both forms. A pop comes in JSON alone: its code does not fit the other form.

use std::hint::black_box;

use message::ids::OffsetIdPrefix;
use message::properties::PropertyList;
use message::{PhysicalOffset, QueueOffset};
use remoting::reply::{self, PopReply, PullReply, SendReply};
use remoting::scan::{Fields, scan};
use remoting::{ResponseCode, SerializeType};

use crate::frames;
use crate::{Case, Operation};

const JSON: SerializeType = SerializeType::Json;
const COMPACT: SerializeType = SerializeType::Compact;
const OPAQUE: i32 = 1_000_000_001;

pub fn cases() -> Vec<Case> {
    vec![
        Case::pure("remoting: scan a send, JSON header", || scanned(frames::send(JSON))),
        Case::pure("remoting: scan a send, ROCKETMQ header", || scanned(frames::send(COMPACT))),
        Case::pure("remoting: scan a pull, JSON header", || scanned(frames::pull(JSON, 32))),
        Case::pure("remoting: scan a pull, ROCKETMQ header", || scanned(frames::pull(COMPACT, 32))),
        Case::pure("remoting: scan a pop, JSON header", || scanned(frames::pop())),
        Case::pure("remoting: read properties, JSON header", properties_in_place),
        Case::pure("remoting: answer a send, JSON header", || answered(|out| answer_send(out, JSON))),
        Case::pure("remoting: answer a send, ROCKETMQ header", || answered(|out| answer_send(out, COMPACT))),
        Case::pure("remoting: answer a pull, JSON header", || answered(|out| answer_pull(out, JSON))),
        Case::pure("remoting: answer a pull, ROCKETMQ header", || answered(|out| answer_pull(out, COMPACT))),
        Case::pure("remoting: answer a pop, JSON header", || answered(answer_pop)),
    ]
}

fn scanned(frame: Vec<u8>) -> Operation {
    let fields = scan(&frame).expect("a good frame").fields;
    assert!(!matches!(fields, Fields::Other | Fields::Invalid(_)), "a hot request: {fields:?}");
    Box::new(move || {
        black_box(scan(black_box(&frame)).expect("a good frame"));
    })
}

fn properties_in_place() -> Operation {
    let frame = frames::send(JSON);
    let Fields::Send(send) = scan(&frame).expect("a good frame").fields else { panic!("a send") };
    Box::new(move || {
        let mut memory = Vec::new();
        let mut list = PropertyList::default();
        send.properties.in_frame(black_box(&frame)).read_properties(&mut list, &mut memory);
        black_box(&list);
    })
}

fn answered(write: impl Fn(&mut Vec<u8>) + 'static) -> Operation {
    let mut out = Vec::new();
    Box::new(move || {
        out.clear();
        write(&mut out);
        black_box(&out);
    })
}

fn answer_send(out: &mut Vec<u8>, form: SerializeType) {
    let prefix = OffsetIdPrefix::new("127.0.0.1:10911".parse().expect("an address"));
    let answer = SendReply {
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
    reply::send(out, form, OPAQUE, black_box(&answer));
}

fn answer_pull(out: &mut Vec<u8>, form: SerializeType) {
    let answer = PullReply {
        code: ResponseCode::Success,
        remark: "FOUND",
        suggest_which_broker_id: 0,
        next_begin_offset: 123_488,
        min_offset: 0,
        max_offset: 234_567,
        topic_sys_flag: 0,
        group_sys_flag: 0,
    };
    reply::pull(out, form, OPAQUE, black_box(&answer), 10_000);
}

fn answer_pop(out: &mut Vec<u8>) {
    let answer = PopReply {
        code: ResponseCode::Success,
        remark: "FOUND",
        pop_time_ms: frames::NOW_MS,
        invisible_ms: 60_000,
        revive_queue: 3,
        rest: 123_456,
        starts: Some("0 3 123456"),
        offsets: Some("0 3 123456,123457,123458,123459"),
        counts: None,
    };
    reply::pop(out, JSON, OPAQUE, black_box(&answer), 10_000);
}
