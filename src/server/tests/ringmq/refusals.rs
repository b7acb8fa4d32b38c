//! Starts that are refused: one clear line, a non-zero exit, nothing touched.

use std::net::TcpListener;

use crate::process::{Ringmq, at, broker_port, ends, free_port, text};

/// Runs it, and asserts one line on stderr that has all of these texts.
fn refused(arguments: &[&str], says: &[&str]) {
    let output = ends(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
    assert!(output.stdout.is_empty());
    let lines: Vec<&str> = errors.lines().filter(|line| !line.starts_with("ringmq: warning: ")).collect();
    assert_eq!(lines.len(), 1, "{errors}");
    for part in says {
        assert!(errors.contains(part), "{arguments:?} says {errors:?}, not {part:?}");
    }
}

#[test]
fn taken_ports_are_named_before_the_disk_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (broker, namesrv) = (broker_port(), free_port());
    let flags = ["--data", text(&data), "--listen", &at(broker), "--namesrv-listen", &at(namesrv)].map(str::to_owned);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    for (taken, says) in [(broker, "--listen"), (broker - 2, "VIP"), (namesrv, "--namesrv-listen")] {
        let _holder = TcpListener::bind(("127.0.0.1", taken)).unwrap();
        refused(&flags, &[&at(taken), "in use", says]);
        assert!(!data.exists(), "the data folder was made");
    }
}

#[test]
fn a_store_in_use_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data = text(dir.path());
    let first = [at(broker_port()), at(free_port())];
    let _running = Ringmq::start(&["--data", data, "--listen", &first[0], "--namesrv-listen", &first[1]]);
    let second = [at(broker_port()), at(free_port())];
    refused(&["--data", data, "--listen", &second[0], "--namesrv-listen", &second[1]], &["in use", data]);
    refused(&["namesrv", "--data", data, "--namesrv-listen", &second[1]], &["in use", data]);
}

#[test]
fn fewer_shards_are_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let (data, broker, namesrv) = (text(dir.path()), at(broker_port()), at(free_port()));
    let flags = ["--data", data, "--listen", &broker, "--namesrv-listen", &namesrv];
    let more = Ringmq::start(&[&flags[..], &["--shards", "2"]].concat());
    assert_eq!(more.stop(), (Some(0), String::new()));
    refused(&[&flags[..], &["--shards", "1"]].concat(), &["2 shards", "--shards 1"]);
    let light = ["--set", "enableLmq=true", "--set", "enableMultiDispatch=true"];
    refused(&[&flags[..], &light].concat(), &["multi-dispatch needs a store with one shard", "has 2"]);
    let same = Ringmq::start(&flags);
    assert!(same.banner.contains("in 2 shards"), "{}", same.banner);
}

#[test]
fn settings_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("broker.conf");
    std::fs::write(&conf, "brokerName=b\n\n# a comment\nflushDiskType=SOMETIMES\n").unwrap();
    refused(&["broker", "-c", text(&conf)], &["broker.conf:4", "flushDiskType", "ASYNC_FLUSH, SYNC_FLUSH"]);
    for (set, says) in [
        ("flushDisktype=SYNC_FLUSH", "did you mean flushDiskType"),
        ("brokerRole=SLAVE", "replication comes later"),
        ("enableControllerMode=true", "later"),
        ("transientStorePoolEnable=true", "acknowledged"),
        ("authenticationEnabled=true", "access control"),
        ("storePathCommitLog=/a,/b", "several disks"),
        ("mappedFileSizeConsumeQueue=30", "multiple of 20"),
        ("enableLmq=true", "enableMultiDispatch=false must be the same"),
        ("enableMultiDispatch=true", "enableLmq=false and enableMultiDispatch=true must be the same"),
        ("diskSpaceWarningLevelRatio=60", "before old files are deleted"),
        ("brokerName=a b", "brokerName"),
    ] {
        refused(&["--data", text(&dir.path().join("data")), "--set", set], &[says]);
    }
    refused(&["broker", "-c", "no-such-file"], &["no-such-file"]);
    refused(&["--listen", "127.0.0.1:9878", "--namesrv-listen", "127.0.0.1:9876"], &["9876"]);
    assert!(!dir.path().join("data").exists());
}

#[test]
fn help_and_version_end_well() {
    for flag in ["--help", "--version", "--help-config"] {
        let output = ends(&[flag]);
        assert_eq!(output.status.code(), Some(0));
        assert!(!output.stdout.is_empty() && output.stderr.is_empty());
    }
    assert!(String::from_utf8(ends(&["--help-config"]).stdout).unwrap().contains("| `mappedFileSizeCommitLog` |"));
}
