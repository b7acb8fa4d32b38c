//! A running program: what it serves, keeps and leaves behind.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::{Client, Ringmq, at, broker_port, free_port, text};

fn folder_bytes(path: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        bytes += if meta.is_dir() {
            folder_bytes(&entry.path())
        } else {
            std::os::unix::fs::MetadataExt::blocks(&meta) * 512
        };
    }
    bytes
}

/// The broker names of a topic's route.
pub fn route(client: &mut Client, topic: &str) -> String {
    let answer = client.call(105, &[("topic", topic)], b"");
    if answer.code == 0 { String::from_utf8(answer.body).unwrap() } else { String::new() }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + crate::process::PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The header of a send to topic T.
pub const SEND: [(&str, &str); 9] =
    [("a", "p"), ("b", "T"), ("c", "TBW102"), ("d", "4"), ("e", "0"), ("f", "0"), ("g", "1"), ("h", "0"), ("i", "")];

#[test]
fn both_in_one_process_keep_what_they_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (data, broker, namesrv) = (text(dir.path()), broker_port(), free_port());
    let (listen, namesrv_listen) = (at(broker), at(namesrv));
    let flags = ["--data", data, "--listen", &listen, "--namesrv-listen", &namesrv_listen, "--set", "brokerName=one"];
    let ringmq = Ringmq::start(&flags);
    assert!(ringmq.banner.contains(&listen) && ringmq.banner.contains(data), "{}", ringmq.banner);
    assert!(folder_bytes(dir.path()) <= 16 << 20, "an empty store is small");
    let mut ns = Client::connect(namesrv);
    let shown = route(&mut ns, "TBW102");
    assert!(shown.contains(&format!("{{\"0\":\"{listen}\"}}")) && shown.contains("\"one\""), "{shown}");
    let entry = [("namespace", "n"), ("key", "k"), ("value", "v")];
    assert_eq!(ns.call(100, &entry, b"").code, 0);
    assert_eq!(ns.call(318, &[], b"productEnvName=kept\n").code, 0);
    for (at, port) in [(0, broker), (1, broker - 2)] {
        let sent = Client::connect(port).call(310, &SEND, b"body");
        assert_eq!((sent.code, sent.ext.get("queueOffset")), (0, Some(at.to_string().as_str())), "{:?}", sent.remark);
    }
    assert_eq!(ringmq.stop(), (Some(0), String::new()));
    assert!(!dir.path().join("abort").exists(), "the store is marked as closed in order");

    let again = Ringmq::start(&flags);
    let mut ns = Client::connect(namesrv);
    assert_eq!(ns.call(101, &entry[..2], b"").ext.get("value"), Some("v"));
    assert!(ns.call(319, &[], b"").body.windows(20).any(|part| part == b"productEnvName=kept\n"));
    let next = Client::connect(broker).call(310, &SEND, b"body");
    assert_eq!(next.ext.get("queueOffset"), Some("2"));
    assert_eq!(again.stop().0, Some(0));
}

#[test]
fn a_broker_registers_with_every_name_server_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let ports = [free_port(), free_port()];
    let folders = ["n1", "n2", "b"].map(|name| dir.path().join(name));
    let start_namesrv = |which: usize| {
        Ringmq::start(&["namesrv", "--data", text(&folders[which]), "--namesrv-listen", &at(ports[which])])
    };
    let first = start_namesrv(0);
    let second = start_namesrv(1);
    let conf = dir.path().join("broker.conf");
    let broker = broker_port();
    let settings = format!(
        "brokerName=b\nlistenPort={broker}\nnamesrvAddr={};{}\nsomeJavaKey=1\nbrokerIP1=127.0.0.1\n",
        at(ports[0]),
        at(ports[1])
    );
    std::fs::write(&conf, settings).unwrap();
    let running = Ringmq::start(&["broker", "-c", text(&conf), "--data", text(&folders[2])]);
    let mut clients = ports.map(Client::connect);
    for client in &mut clients {
        until("registered with both", || route(client, "TBW102").contains("\"b\""));
    }
    assert_eq!(first.stop().0, Some(0));
    let restarted = start_namesrv(0);
    let mut client = Client::connect(ports[0]);
    until("registered again with a name server that came back", || route(&mut client, "TBW102").contains("\"b\""));
    let (code, errors) = running.stop();
    assert!(code == Some(0) && errors.contains("broker.conf:4: unknown setting someJavaKey"), "{errors}");
    assert!(route(&mut clients[1], "TBW102").is_empty(), "a broker that stops says so");
    drop((restarted, second));
}

#[test]
fn a_broken_frame_closes_its_connection_and_nothing_else() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let _running = Ringmq::start(&["namesrv", "--data", text(dir.path()), "--namesrv-listen", &at(port)]);
    let mut good = Client::connect(port);
    for frame in
        [&b"\0\0\0\x06\0\0\0\x02[]"[..], b"\0\0\0\x04\0\0\0\x63", b"\0\0\0\x04\x07\0\0\0", b"\x16\x03\x01\x02\0\x01"]
    {
        let mut bad = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        bad.set_read_timeout(Some(crate::process::PATIENCE)).unwrap();
        bad.write_all(frame).unwrap();
        assert_eq!(bad.read(&mut [0; 16]).unwrap_or(0), 0, "{frame:?} is answered");
        assert_eq!(good.call(106, &[], b"").code, 0);
    }
}
