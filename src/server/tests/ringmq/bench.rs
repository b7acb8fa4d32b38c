//! `ringmq bench` against a running broker: each workload for a second, and what it leaves behind.

use std::path::Path;

use bench::report::from_json;
use bench::result::{Kind, RunResult};

use crate::process::{Client, Ringmq, at, broker_port, ends, free_port, text};
use crate::serving::{SEND, route};

struct World {
    ringmq: Ringmq,
    broker: u16,
    namesrv: u16,
}

fn world(folder: &Path) -> World {
    let (broker, namesrv) = (broker_port(), free_port());
    let (listen, namesrv_listen) = (at(broker), at(namesrv));
    let addresses = ["--listen", &listen, "--namesrv-listen", &namesrv_listen];
    let ringmq = Ringmq::start(&[&["--data", text(folder), "--shards", "1"][..], &addresses].concat());
    World { ringmq, broker, namesrv }
}

/// Runs it for a second with a bound on its bytes; it must end well.
fn bench(world: &World, workload: &str, more: &[&str]) -> RunResult {
    let namesrv = at(world.namesrv);
    let base = ["bench", workload, "--namesrv", &namesrv, "--json", "--warm-up", "0.3", "--seconds", "1"];
    let few = ["--connections", "3", "--window", "4", "--timeout", "30"];
    let bound: &[&str] = if more.contains(&"--max-bytes") { &[] } else { &["--max-bytes", "1g"] };
    let output = ends(&[&base[..], &few, bound, more].concat());
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{workload} {more:?}: {out}{errors}");
    let result = from_json(out.trim()).unwrap_or_else(|error| panic!("{workload}: {error}: {out}"));
    assert!(!errors.contains("stays"), "{errors}");
    assert!(errors.contains(&format!("{workload} ")), "a progress line: {errors}");
    result
}

/// The topics that the name server knows and a run made.
fn made_topics(world: &World) -> String {
    let answer = Client::connect(world.namesrv).call(206, &[], b"");
    let text = String::from_utf8(answer.body).unwrap();
    text.split('"').filter(|name| name.contains("BENCH_")).collect::<Vec<_>>().join(" ")
}

/// "n messages acknowledged ..., n found in the queues".
fn acknowledged_and_found(result: &RunResult) -> (u64, u64) {
    let note = result.notes.iter().find(|note| note.contains("found in the queues"));
    let note = note.unwrap_or_else(|| panic!("{:?}", result.notes));
    let numbers: Vec<u64> = note.split(' ').filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

#[test]
fn each_workload_runs_counts_and_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(dir.path());
    let rate = ["--rate", "500"];
    let cases: [(&str, Vec<&str>, Kind); 14] = [
        ("produce", vec!["--threads", "2"], Kind::Send),
        ("produce", vec!["--batch", "16", "--size", "20-300", "--keys"], Kind::Send),
        ("produce", vec!["--header", "rocketmq", "--vary"], Kind::Send),
        ("produce", vec!["--find-max", "--step-seconds", "0.4", "--steps", "12", "--p99-limit", "10s"], Kind::Send),
        ("many-topics", vec!["--topics", "200", "--distribution", "zipf"], Kind::Send),
        ("transaction", vec!["--rollback", "0.25"], Kind::Transaction),
        ("consume", vec!["--fill", "5000"], Kind::Pull),
        ("pop", vec!["--fill", "20000", "--rate", "50"], Kind::Pop),
        ("pop", vec!["--fill", "20000", "--rate", "50", "--single-ack", "--batch", "4"], Kind::Pop),
        ("cold-read", vec!["--fill", "5000", "--rate", "500"], Kind::Send),
        ("end-to-end", rate.to_vec(), Kind::EndToEnd),
        ("mixed", rate.to_vec(), Kind::Send),
        ("fan-out", [&rate[..], &["--groups", "3"]].concat(), Kind::EndToEnd),
        ("delay", [&rate[..], &["--delay-level", "1"]].concat(), Kind::Delay),
    ];
    for (workload, more, kind) in cases {
        let result = bench(&world, workload, &more);
        let shown = format!("{workload} {more:?}: {:?} {:?}", result.totals, result.notes);
        // What a search found in short steps need not hold on a machine that does much else.
        let is_search = more.contains(&"--find-max");
        assert!(result.totals.operations > 0 && (is_search || result.totals.errors.is_empty()), "{shown}");
        assert_eq!(!result.steps.is_empty(), is_search, "{shown}");
        assert_eq!((result.latencies[0].kind, result.workload.as_str()), (kind, workload), "{shown}");
        assert!(result.latencies[0].count >= result.totals.operations, "{shown}");
        assert!(!result.notes.iter().any(|note| note.contains("did not reach")), "{shown}");
        assert!((0.5..5.0).contains(&result.measured_s) && !result.samples.is_empty(), "{shown}");
        if workload != "delay" {
            let (acknowledged, found) = acknowledged_and_found(&result);
            assert_eq!(acknowledged, found, "{shown}");
            assert!(acknowledged >= result.totals.messages || ["consume", "fan-out"].contains(&workload), "{shown}");
        }
        assert_eq!(made_topics(&world), "", "{shown}");
    }
    let result = bench(&world, "produce", &["--oneway", "--rate", "1000"]);
    assert!(result.totals.operations > 500 && result.latencies.is_empty(), "{:?}", result.totals);
    assert_eq!(world.ringmq.stop().0, Some(0));
}

/// Where the next message goes in the log of the only shard, by the id of one that is sent.
fn log_end(client: &mut Client) -> u64 {
    let sent = client.call(310, &SEND, b"x");
    let id = sent.ext.get("msgId").unwrap_or_else(|| panic!("{:?}", sent.remark));
    u64::from_str_radix(&id[16..32], 16).unwrap()
}

#[test]
fn bytes_are_bounded_and_topics_of_others_stay() {
    const BOUND: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let world = world(dir.path());
    let mut client = Client::connect(world.broker);
    let create = [("topic", "Own"), ("readQueueNums", "2"), ("writeQueueNums", "2"), ("perm", "6")];
    assert_eq!(client.call(17, &create, b"").code, 0);
    let before = log_end(&mut client);
    let bound = BOUND.to_string();
    let flags = ["--max-bytes", &bound, "--topic", "Own", "--queues", "2", "--size", "2000", "--seconds", "60"];
    let result = bench(&world, "produce", &[&flags[..], &["--warm-up", "0"]].concat());
    assert!(result.notes.iter().any(|note| note.contains("--max-bytes were used up")), "{:?}", result.notes);
    let (acknowledged, found) = acknowledged_and_found(&result);
    assert_eq!(acknowledged, found);
    assert!(acknowledged > BOUND / 2_000 / 2, "most of it was used: {acknowledged}");
    let grown = log_end(&mut client) - before;
    assert!((BOUND / 2..=BOUND).contains(&grown), "{grown} bytes were written");
    assert!(!route(&mut Client::connect(world.namesrv), "Own").is_empty(), "a topic that was there stays");
    let kept = bench(&world, "produce", &["--topic", "Kept", "--keep"]);
    assert!(kept.totals.operations > 0 && !route(&mut Client::connect(world.namesrv), "Kept").is_empty());
}

#[test]
fn a_broker_that_goes_silent_or_away_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(dir.path());
    let address = at(world.broker);
    let (ready, done) = std::sync::mpsc::channel();
    let run = std::thread::spawn(move || {
        let arguments =
            ["bench", "produce", "--broker", &address, "--timeout", "2", "--seconds", "50", "--rate", "200"];
        let arguments = [&arguments[..], &["--max-bytes", "1g"]].concat();
        let child = crate::process::program(&arguments).spawn().unwrap();
        ready.send(child.id()).unwrap();
        child.wait_with_output().unwrap()
    });
    done.recv().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    world.ringmq.freeze();
    let output = run.join().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("has not answered for 2 s"), "{errors}");
    drop(world);
    let gone = ends(&["bench", "produce", "--broker", &at(free_port()), "--timeout", "1"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("cannot connect to 127.0.0.1"));
}
