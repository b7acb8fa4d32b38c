//! What a run needs on the broker, and its end: topics, groups, settings, room on the disk.
//!
//! Owner of everything that a run makes on the broker. Invariants: what was there before is never changed or deleted; what
//! was made is deleted, whatever way the run ends, unless it shall be kept.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use remoting::{Command, RequestCode, ResponseCode};

use crate::admin::{Admin, resolve};
use crate::report::units;
use crate::work::pull::QueueEnd;

/// Room on the broker's disk beside what is written: its files grow in large steps.
const DISK_SLACK: u64 = 2 << 30;
/// Queues of which all offsets are asked for, at most.
const MAX_ASKED_QUEUES: u64 = 4_096;

/// What a run wants to be there.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The broker, when it was named.
    pub broker: Option<String>,
    /// A name server that knows it.
    pub namesrv: Option<String>,
    /// Its name at that name server.
    pub broker_name: Option<String>,
    /// Name of the topic, or beginning of the names of several; made up when there is none.
    pub topic: Option<String>,
    /// How many topics.
    pub topics: u32,
    /// Queues of each.
    pub queues: u32,
    /// How many consumer groups.
    pub groups: u32,
    /// Names of different lengths.
    pub vary: bool,
    /// Leaves what was made.
    pub keep: bool,
    /// How long an answer may take.
    pub patience: Duration,
}

/// What is there.
pub struct Setup {
    /// The broker.
    pub address: SocketAddr,
    /// Its name.
    pub broker_name: String,
    /// Its settings, as far as it tells them.
    pub settings: BTreeMap<String, String>,
    /// The topics.
    pub topics: Arc<[String]>,
    /// Queues of each.
    pub queues: u32,
    /// Consumer groups.
    pub groups: Vec<String>,
    /// Number of the run.
    pub run: u64,
    made_topics: Vec<String>,
    made_groups: Vec<String>,
    namesrv: Option<SocketAddr>,
    keep: bool,
    patience: Duration,
    admin: Admin,
    /// Keeps a producer group alive.
    _producer: Option<Admin>,
}

impl Setup {
    /// Finds the broker and looks at it; nothing is made yet.
    ///
    /// # Errors
    /// Nobody answers, or no broker is known.
    pub fn find(wanted: &Wanted) -> Result<Setup> {
        let namesrv = wanted.namesrv.as_deref().map(resolve).transpose()?;
        let address = match (&wanted.broker, namesrv) {
            (Some(broker), _) => resolve(broker)?,
            (None, Some(namesrv)) => {
                resolve(&Admin::connect(namesrv, wanted.patience)?.broker(wanted.broker_name.as_deref())?)?
            }
            (None, None) => resolve("127.0.0.1:10911")?,
        };
        let mut admin = Admin::connect(address, wanted.patience)?;
        let settings = admin.settings()?;
        let broker_name = settings.get("brokerName").or(wanted.broker_name.as_ref()).cloned();
        let run = sys::random::seed()?;
        let (topics, groups) = names(wanted, run);
        Ok(Setup {
            address,
            broker_name: broker_name.unwrap_or_default(),
            settings,
            topics: topics.into(),
            queues: wanted.queues,
            groups,
            run,
            made_topics: Vec::new(),
            made_groups: Vec::new(),
            namesrv,
            keep: wanted.keep,
            patience: wanted.patience,
            admin,
            _producer: None,
        })
    }

    /// Checks that the broker's disk has room for so many bytes, when it is on this machine.
    ///
    /// # Errors
    /// It has not.
    pub fn check_disk(&self, bytes: u64) -> Result<()> {
        let Some(store) = self.settings.get("storePathRootDir").filter(|_| self.address.ip().is_loopback()) else {
            return Ok(());
        };
        let Ok(disk) = rustix::fs::statvfs(Path::new(store)) else { return Ok(()) };
        let free = disk.f_bavail * disk.f_frsize;
        let needed = bytes + bytes / 10 + DISK_SLACK;
        ensure!(
            free >= needed,
            "the broker's disk ({store}) has {} free, and {} may be needed: give --max-bytes a smaller number",
            units::bytes(free as f64),
            units::bytes(needed as f64)
        );
        Ok(())
    }

    /// Makes the topics and groups that are not there.
    ///
    /// # Errors
    /// The broker refuses one.
    pub fn make(&mut self) -> Result<()> {
        // Made-up names are new.
        let new: Vec<String> = match self.topics.iter().any(|topic| topic.contains(&run_name(self.run))) {
            true => self.topics.to_vec(),
            false => {
                let mut new = Vec::new();
                for topic in self.topics.iter() {
                    if !self.admin.has_topic(topic)? {
                        new.push(topic.clone());
                    }
                }
                new
            }
        };
        // Noted before: a request that failed may have made it.
        self.made_topics = new;
        self.admin.create_topics(&self.made_topics, self.queues).context("making topics")?;
        self.made_groups.clone_from(&self.groups);
        for group in &self.groups {
            self.admin.create_group(group).context("making a consumer group")?;
        }
        Ok(())
    }

    /// Registers a producer group for as long as this lives.
    ///
    /// # Errors
    /// The broker refuses it.
    pub fn register_producer(&mut self, group: &str) -> Result<()> {
        let mut admin = Admin::connect(self.address, self.patience)?;
        admin.register_producer(&format!("127.0.0.1@{}#bench", std::process::id()), group)?;
        self._producer = Some(admin);
        Ok(())
    }

    /// The end of each queue; `None` when there are too many to ask.
    ///
    /// # Errors
    /// As requests fail.
    pub fn ends(&mut self) -> Result<Option<Vec<QueueEnd>>> {
        if self.topics.len() as u64 * u64::from(self.queues) > MAX_ASKED_QUEUES {
            return Ok(None);
        }
        let mut ends = Vec::new();
        for (place, topic) in self.topics.iter().enumerate() {
            for queue in 0..self.queues {
                ends.push(QueueEnd { topic: place as u32, queue, end: self.admin.max_offset(topic, queue)? });
            }
        }
        Ok(Some(ends))
    }

    /// Messages in all queues, when `at_least` so many or after some patience (a broker may index later than it answers).
    ///
    /// # Errors
    /// As requests fail.
    pub fn stored(&mut self, at_least: u64) -> Result<Option<u64>> {
        let mut sum = 0;
        for _ in 0..50 {
            let Some(ends) = self.ends()? else { return Ok(None) };
            sum = ends.iter().map(|queue| queue.end).sum();
            if sum >= at_least {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Some(sum))
    }

    /// Deletes what was made. What cannot be deleted is told.
    #[must_use]
    pub fn clean_up(mut self) -> Vec<String> {
        if self.keep {
            return Vec::new();
        }
        let mut problems = Vec::new();
        // The connection may have been lost in the run, or be as good as lost.
        match Admin::connect(self.address, self.patience) {
            Ok(admin) => self.admin = admin,
            Err(error) => return vec![format!("topics and groups stay: {error:#}")],
        }
        let mut namesrv = self.namesrv.and_then(|address| Admin::connect(address, self.patience).ok());
        for topic in &self.made_topics {
            if let Err(error) = self.admin.delete_topic(topic) {
                problems.push(format!("the topic {topic} stays: {error:#}"));
                if problems.len() > 3 {
                    break;
                }
            }
            if let Some(namesrv) = &mut namesrv {
                // Also one that a name server has not been told of yet.
                let _ = namesrv.forget_topic(topic);
            }
        }
        for group in &self.made_groups {
            if let Err(error) = self.admin.delete_group(group) {
                problems.push(format!("the group {group} stays: {error:#}"));
            }
        }
        problems
    }
}

impl Admin {
    fn has_topic(&mut self, topic: &str) -> Result<bool> {
        let answer = self.ask(Command::request(RequestCode::GetTopicConfig, 0).with_field("topic", topic))?;
        Ok(answer.code == ResponseCode::Success.to_i32())
    }
}

fn run_name(run: u64) -> String {
    format!("BENCH_{:08X}", run >> 32)
}

/// Names of topics and groups; of different lengths when they shall vary.
fn names(wanted: &Wanted, run: u64) -> (Vec<String>, Vec<String>) {
    let long = |n: u32| if wanted.vary { "_abcdefghij".repeat((n as usize * 5) % 7) } else { String::new() };
    let base = wanted.topic.clone().unwrap_or_else(|| run_name(run));
    let topics = match wanted.topics {
        0 | 1 => vec![base],
        count => (0..count).map(|n| format!("{base}_{n:05}{}", long(n))).collect(),
    };
    let groups = (0..wanted.groups).map(|n| format!("{}_G{n}{}", run_name(run), long(n + 1))).collect();
    (topics, groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(topic: Option<&str>, topics: u32, vary: bool) -> Wanted {
        Wanted {
            broker: None,
            namesrv: None,
            broker_name: None,
            topic: topic.map(String::from),
            topics,
            queues: 8,
            groups: 3,
            vary,
            keep: false,
            patience: Duration::from_secs(1),
        }
    }

    #[test]
    fn names_are_valid_and_differ() {
        let (topics, groups) = names(&wanted(None, 100, true), 0x1234_5678_0000_0000);
        assert_eq!((topics.len(), groups.len()), (100, 3));
        let lengths: std::collections::BTreeSet<usize> = topics.iter().map(String::len).collect();
        assert!(lengths.len() > 5 && lengths.last() <= Some(&127), "{lengths:?}");
        let all: std::collections::BTreeSet<&String> = topics.iter().collect();
        assert_eq!(all.len(), 100);
        assert!(topics.iter().chain(&groups).all(|name| name.starts_with("BENCH_12345678")));
        assert!(topics.iter().all(|topic| message::names::check_topic(topic.as_bytes()).is_ok()));
        assert_eq!(names(&wanted(Some("T"), 1, false), 0).0, ["T"]);
        assert_eq!(names(&wanted(Some("T"), 2, false), 0).0, ["T_00000", "T_00001"]);
    }
}
