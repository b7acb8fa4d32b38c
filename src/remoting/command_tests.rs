//! Tests of `command`: golden headers of the reference, lenient reading, round trips.

use super::*;
use proptest::prelude::*;

fn json_frame(header: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let start = frame::begin(&mut out);
    out.extend_from_slice(header.as_bytes());
    frame::finish(&mut out, start, SerializeType::Json, 0);
    out
}

fn header(command: &Command) -> String {
    let frame = command.to_frame();
    String::from_utf8(frame::split(&frame).unwrap().header.to_vec()).unwrap()
}

#[test]
fn responses_as_the_reference_writes_them() {
    let request = Command::request(29_999, 724_021);
    assert_eq!(
        header(&request.reply_error(ResponseCode::RequestCodeNotSupported, " request type 29999 not supported")),
        r#"{"code":3,"flag":1,"language":"JAVA","opaque":724021,"remark":" request type 29999 not supported","serializeTypeCurrentRPC":"JSON","version":493}"#
    );
    let mut reply = request.reply(ResponseCode::QueryNotFound);
    reply.ext = ExtFields::empty();
    assert_eq!(
        header(&reply.with_remark("a\nb")),
        r#"{"code":22,"extFields":{},"flag":1,"language":"JAVA","opaque":724021,"remark":"a\nb","serializeTypeCurrentRPC":"JSON","version":493}"#
    );
    assert_eq!(
        header(&request.reply(ResponseCode::Success).with_field("offset", 3)),
        r#"{"code":0,"extFields":{"offset":"3"},"flag":1,"language":"JAVA","opaque":724021,"serializeTypeCurrentRPC":"JSON","version":493}"#
    );
}

#[test]
fn lenient_json_headers() {
    let frame = json_frame(
        " {'extFields' : {\"queueId\":7, b:true, \"n\":null, \"t\":\"\\u4e3b\", \"t2\":\"x\", \"o\":{\"a\":1}}, code:\"11\", \"language\":9, \"x\":[1], \"opaque\":-5 } ",
    );
    let command = Command::decode(&frame).unwrap();
    assert_eq!((command.code, command.opaque, command.language), (11, -5, LanguageCode::Go));
    assert_eq!(command.ext.i32("queueId"), Ok(7));
    assert_eq!(command.ext.boolean("b"), Some(true));
    assert_eq!(command.ext.get("n"), None);
    assert_eq!(command.ext.get("t"), Some("主"));
    assert_eq!(command.ext.get("o"), Some("{\"a\":1}"));
    assert_eq!(command.ext.text("zz"), Err(FieldError { field: "zz", problem: Problem::Missing }));
    let named = Command::decode(&json_frame(r#"{"language":"GO","extFields":null,"remark":null}"#)).unwrap();
    assert_eq!((named.language, named.remark, named.ext.is_empty()), (LanguageCode::Go, None, true));
    for bad in ["", "[]", "{", "{}}", "{\"code\":x}", "{\"opaque\":99999999999}", "null"] {
        assert!(matches!(Command::decode(&json_frame(bad)), Err(FrameError::Json(_))), "{bad}");
    }
}

#[test]
fn typed_fields() {
    let ext: ExtFields = [
        ("a", "12"),
        ("b", "x"),
        ("c", "2147483648"),
        ("d", ""),
        ("e", "9223372036854775808"),
        ("f", "-7"),
        ("g", "+7"),
        ("h", "-9223372036854775808"),
    ]
    .into_iter()
    .collect();
    fn problem<T>(field: &'static str, problem: Problem) -> Result<T, FieldError> {
        Err(FieldError { field, problem })
    }
    assert_eq!(ext.i32("a"), Ok(12));
    assert_eq!(ext.i32("b"), problem("b", Problem::NotANumber));
    assert_eq!(ext.i32("c"), problem("c", Problem::OutOfRange));
    assert_eq!(ext.i64("c"), Ok(2_147_483_648));
    assert_eq!(ext.i32("d"), problem("d", Problem::Missing));
    assert_eq!(ext.optional_i32("d"), Ok(None));
    assert_eq!(ext.i64("e"), problem("e", Problem::OutOfRange));
    assert_eq!(ext.i32("f"), Ok(-7));
    assert_eq!(ext.i32("g"), Ok(7));
    assert_eq!(ext.i64("h"), Ok(i64::MIN));
    assert_eq!(ext.i32("zz").unwrap_err().to_string(), "the header field <zz> is missing");
}

#[test]
fn lying_lengths_of_compact_headers() {
    let fixed = [0u8, 105, 0, 1, 237, 0, 0, 0, 7, 0, 0, 0, 0];
    let frame = |rest: &[u8]| {
        let mut out = Vec::new();
        let start = frame::begin(&mut out);
        out.extend_from_slice(&fixed);
        out.extend_from_slice(rest);
        frame::finish(&mut out, start, SerializeType::Compact, 0);
        out
    };
    assert!(Command::decode(&frame(&[0; 8])).is_ok());
    for bad in [
        &[][..],
        &[0, 0, 0],
        &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 9, 0],
        &[0, 0, 0, 0, 0, 0, 0, 7, 0, 1, b'a', 0, 0, 0, 1],
        &[0, 0, 0, 0, 0, 0, 0, 6, 0xff, 0xff, 0, 0, 0, 0],
    ] {
        assert!(matches!(Command::decode(&frame(bad)), Err(FrameError::Compact(_))), "{bad:?}");
    }
}

fn any_command() -> impl Strategy<Value = Command> {
    let fixed = (any::<i16>(), 0i32..14, any::<i16>(), any::<i32>(), any::<i32>());
    let texts = (prop::option::of("\\PC{1,20}"), prop::collection::vec((".{1,8}", ".{1,12}"), 0..12));
    (fixed, texts, prop::collection::vec(any::<u8>(), 0..40), any::<bool>()).prop_map(
        |((code, language, version, opaque, flag), (remark, fields), body, compact)| Command {
            code: code.into(),
            language: LanguageCode::from_number(language),
            version: version.into(),
            opaque,
            flag,
            remark,
            ext: if fields.is_empty() { ExtFields::default() } else { fields.into_iter().collect() },
            body,
            serialize_type: if compact { SerializeType::Compact } else { SerializeType::Json },
        },
    )
}

proptest! {
    #[test]
    fn round_trip(command in any_command()) {
        prop_assert_eq!(Command::decode(&command.to_frame()), Ok(command));
    }
}
