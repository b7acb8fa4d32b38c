//! From a workload's name to what its connections do.
//!
//! Role: puts the works of `work` together; each load of a run gets its own. It starts nothing.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use remoting::SerializeType;

use crate::cli::{Args, Header, Workload};
use crate::draw::{Bodies, Distribution, Keys, Random};
use crate::engine::Work;
use crate::result::Kind;
use crate::setup::Setup;
use crate::work::pop::{PopOptions, Pops};
use crate::work::pull::{PullOptions, Pulls, QueueEnd, Reader, Stamps};
use crate::work::send::{Delay, SendOptions, Sends};
use crate::work::target::{Budget, Flow, Messages};
use crate::work::transaction::Transactions;

/// How long a consumer's pull waits for messages: shorter than clients' 15 s, so that a run ends soon.
const POLL_MS: u32 = 5_000;
/// Filled before reading, at most, by default.
const FILL_MESSAGES: u64 = 400_000;
const FILL_BYTES: u64 = 1 << 30;
/// Messages of a request that fills.
const FILL_BATCH: u32 = 32;
/// Default lengths of the delay levels 1 to 4, ms.
const LEVELS_MS: [u32; 4] = [1_000, 5_000, 10_000, 30_000];

/// Connections and their windows.
pub type Works = Vec<(Box<dyn Work>, usize)>;

/// What all loads of a run have in common.
pub struct Parts<'r> {
    args: &'r Args,
    setup: &'r Setup,
    budget: &'r Arc<Budget>,
    messages: Messages,
    /// What is on its way to consumers.
    pub flow: Arc<Flow>,
    /// Counts connections, so that no two make the same messages.
    next_number: u32,
}

impl<'r> Parts<'r> {
    /// For one run.
    pub fn new(args: &'r Args, setup: &'r Setup, budget: &'r Arc<Budget>) -> Parts<'r> {
        let tag = |n: u32| {
            let long = if args.vary { "abcdefg".repeat(n as usize % 6) } else { String::new() };
            format!("Tag{n}{long}")
        };
        let tags = if args.vary && args.tags == 1 { 16 } else { args.tags };
        let mut random = Random::new(1);
        let messages = Messages {
            topics: setup.topics.clone(),
            topic_keys: Keys::new(setup.topics.len() as u32, args.distribution),
            queues: setup.queues,
            tags: (0..tags).map(tag).collect(),
            tag_keys: Keys::new(tags, args.distribution),
            sizes: args.size.clone(),
            bodies: Bodies::new(args.size.max(), args.compressible, &mut random),
        };
        let groups = if args.workload == Workload::FanOut { u64::from(args.groups) } else { 1 };
        Parts { args, setup, budget, messages, flow: Flow::new(groups), next_number: 0 }
    }

    /// What is there on the broker.
    pub fn setup(&self) -> &'r Setup {
        self.setup
    }

    /// What counts as the operation.
    pub fn main(&self) -> Kind {
        match self.args.workload {
            Workload::Produce | Workload::ManyTopics | Workload::Mixed => Kind::Send,
            Workload::ColdRead if self.args.rate.is_some() => Kind::Send,
            Workload::Consume | Workload::ColdRead => Kind::Pull,
            Workload::EndToEnd | Workload::FanOut => Kind::EndToEnd,
            Workload::Transaction => Kind::Transaction,
            Workload::Delay => Kind::Delay,
            Workload::Pop => Kind::Pop,
        }
    }

    /// The connections of a load. `ends`: of the queues, for those that read.
    pub fn works(&mut self, ends: &[QueueEnd]) -> Result<Works> {
        let window = self.args.window as usize;
        Ok(match self.args.workload {
            Workload::Produce | Workload::ManyTopics => self.producers(),
            Workload::Consume => self.pulls(ends)?,
            Workload::Pop => self.pops(),
            Workload::Transaction => {
                let number = self.numbers(self.args.connections);
                let new = |n| -> Box<dyn Work> {
                    let options = self.send_options(1);
                    Box::new(Transactions::new(&options, self.messages.clone(), n, self.budget, self.args.rollback))
                };
                number.map(|n| (new(n), window)).collect()
            }
            Workload::EndToEnd | Workload::FanOut | Workload::Delay | Workload::Mixed => {
                // Consumers first: they wait before the first message comes.
                let mut works = self.readers(ends);
                works.extend(self.producers());
                works
            }
            Workload::ColdRead => {
                let starts: Vec<QueueEnd> = ends.iter().map(|queue| QueueEnd { end: 0, ..*queue }).collect();
                let mut works = self.readers(&starts);
                if self.args.rate.is_some() {
                    works.extend(self.producers());
                }
                works
            }
        })
    }

    fn numbers(&mut self, count: u32) -> std::ops::Range<u32> {
        let first = self.next_number;
        self.next_number += count;
        first..self.next_number
    }

    fn form(&self) -> SerializeType {
        match self.args.header {
            Header::Json => SerializeType::Json,
            Header::Rocketmq => SerializeType::Compact,
        }
    }

    fn send_options(&self, batch: u32) -> SendOptions {
        let args = self.args;
        let delay = match (args.workload, args.delay_ms) {
            (Workload::Delay, Some(ms)) => Delay::Timer { ms },
            (Workload::Delay, None) => Delay::Level { level: args.delay_level, ms: delay_ms(args) },
            _ => Delay::None,
        };
        let group = |n: usize| match args.vary {
            true => format!("{}{}", producer_group(self.setup.run), "_group".repeat(n % 6)),
            false => producer_group(self.setup.run),
        };
        SendOptions {
            form: self.form(),
            batch,
            oneway: args.oneway,
            delay,
            stamp: args.workload.is_stamped().then_some(self.setup.run),
            vary: args.vary,
            keys: args.keys,
            groups: (0..if args.vary { 16 } else { 1 }).map(group).collect(),
            kind: Kind::Send,
            flow: args.workload.is_stamped().then(|| self.flow.clone()),
        }
    }

    fn producers(&mut self) -> Works {
        let batch = if self.args.workload == Workload::ColdRead { 1 } else { self.args.batch() };
        let options = self.send_options(batch);
        let new = |n| -> (Box<dyn Work>, usize) {
            let sends = Sends::new(options.clone(), self.messages.clone(), n, self.budget);
            (Box::new(sends), self.args.window as usize)
        };
        let first = self.next_number;
        self.next_number += self.args.connections;
        (first..first + self.args.connections).map(new).collect()
    }

    /// Consumers of all queues for each group.
    fn readers(&self, starts: &[QueueEnd]) -> Works {
        let stamps = self.args.workload.is_stamped().then(|| Stamps {
            run: self.setup.run,
            kind: if self.args.workload == Workload::Delay { Kind::Delay } else { Kind::EndToEnd },
        });
        let mut works = Works::new();
        for group in &self.setup.groups {
            for share in 0..self.args.consumers as usize {
                let own = starts.iter().skip(share).step_by(self.args.consumers as usize);
                let queues: Vec<QueueEnd> = own.copied().collect();
                if queues.is_empty() {
                    continue;
                }
                let options = self.pull_options(group, POLL_MS);
                let window = queues.len();
                let reader = Reader::new(options, queues, stamps.clone(), self.flow.clone());
                works.push((Box::new(reader), window));
            }
        }
        works
    }

    fn pull_options(&self, group: &str, wait_ms: u32) -> PullOptions {
        let reads = matches!(self.args.workload, Workload::Consume | Workload::ColdRead);
        let batch = if reads { self.args.batch() } else { 32 };
        let (topics, group) = (self.setup.topics.clone(), group.to_owned());
        PullOptions { form: self.form(), topics, group, batch, wait_ms }
    }

    fn pulls(&mut self, ends: &[QueueEnd]) -> Result<Works> {
        let queues: Vec<QueueEnd> = ends.iter().copied().filter(|queue| queue.end > 0).collect();
        ensure!(!queues.is_empty(), "there is nothing to pull");
        let group = self.setup.groups.first().context("a group")?;
        let count = queues.len();
        let mut works = Works::new();
        for n in 0..self.args.connections as usize {
            // Each begins in another queue, and at another place when there are more connections than queues.
            let mut own = queues.clone();
            own.rotate_left(n % count);
            let lap = (n / count) as u64 * own[0].end / (self.args.connections as u64 / count as u64 + 1);
            let pulls = Pulls::new(self.pull_options(group, 0), own, lap);
            works.push((Box::new(pulls), self.args.window as usize));
        }
        Ok(works)
    }

    fn pops(&self) -> Works {
        let options = PopOptions {
            topics: self.setup.topics.clone(),
            group: self.setup.groups.first().cloned().unwrap_or_default(),
            broker: self.setup.broker_name.clone(),
            batch: self.args.batch(),
            invisible_ms: self.args.invisible_ms,
            wait_ms: 1_000,
            batch_ack: !self.args.single_ack,
        };
        let topics = options.topics.len();
        let work = |n: usize| -> (Box<dyn Work>, usize) {
            // Connections that have a queue of their own do not wait for each other's pops.
            let queue = (n / topics) as i64 % i64::from(self.setup.queues);
            (Box::new(Pops::new(options.clone(), n % topics, queue)), self.args.window as usize)
        };
        (0..self.args.connections as usize).map(work).collect()
    }

    /// How many messages are filled in before reading; `None` for workloads that do not read what lies there.
    pub fn fill_count(&self) -> Option<u64> {
        if !matches!(self.args.workload, Workload::Consume | Workload::Pop | Workload::ColdRead) {
            return None;
        }
        let each = self.args.size.mean() + 400;
        let room = FILL_BYTES.min(self.args.max_bytes / 2) / each;
        let queues = self.setup.topics.len() as u64 * u64::from(self.setup.queues);
        // Some messages for each queue at least: a pull must find as many as it asks for.
        let least = queues * u64::from(self.args.batch()) * 2;
        Some(self.args.fill.unwrap_or(FILL_MESSAGES.min(room).max(least)))
    }

    /// Sends that fill in so many messages.
    pub fn fillers(&mut self, count: u64) -> Works {
        const CONNECTIONS: u32 = 4;
        const WINDOW: usize = 8;
        let batch = FILL_BATCH.min((1 << 20) / self.args.size.max().max(1)).max(1);
        let mut options = self.send_options(batch);
        options.oneway = false;
        let messages = Messages {
            topic_keys: Keys::new(self.setup.topics.len() as u32, Distribution::Uniform),
            ..self.messages.clone()
        };
        let each = count.div_ceil(u64::from(CONNECTIONS)).next_multiple_of(u64::from(batch));
        let number = self.numbers(CONNECTIONS);
        let new = |n| -> (Box<dyn Work>, usize) {
            (Box::new(Sends::new(options.clone(), messages.clone(), n, self.budget).up_to(each)), WINDOW)
        };
        number.map(new).collect()
    }
}

/// How long delayed messages wait, ms; 0 for other workloads.
pub fn delay_ms(args: &Args) -> u32 {
    match (args.workload, args.delay_ms) {
        (Workload::Delay, Some(ms)) => ms,
        (Workload::Delay, None) => LEVELS_MS[args.delay_level as usize - 1],
        _ => 0,
    }
}

/// The group that ends transactions, and that sends name.
pub fn producer_group(run: u64) -> String {
    format!("BENCH_{:08X}_P", run >> 32)
}
