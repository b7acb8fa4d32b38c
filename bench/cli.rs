//! The command line of `ringmq bench`: what can be asked for, and what makes no sense together.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::draw::{Distribution, MAX_BODY_BYTES, Sizes, parse_bytes};
use crate::work::stamp::STAMP_BYTES;

const ABOUT: &str = "Puts load on a RocketMQ broker, RingMQ or Java's, and measures it.";

const EXAMPLES: &str = "\
Examples:
  ringmq bench produce                                 sends of 128 bytes, 8 connections with 64 in flight each
  ringmq bench produce --window 1 --connections 1      one send after the other
  ringmq bench produce --rate 20000 --seconds 300      open loop: latencies count from the time that each send was meant for
  ringmq bench produce --find-max --p99-limit 5ms      the highest rate with 99 % of the answers within 5 ms
  ringmq bench consume --batch 32                      pulls of 32 messages
  ringmq bench end-to-end --rate 1000                  from the send until a waiting consumer has the message
  ringmq bench produce --pid $(pgrep -f BrokerStartup) --html page.html
                                                       with the broker's processor time and memory, as a page

A run makes its own topics and groups and deletes them at its end, also after Ctrl-C. It writes at most --max-bytes.";

/// What kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Sends.
    Produce,
    /// Pulls of what lies there (it is filled before).
    Consume,
    /// From a send until a waiting consumer has the message.
    EndToEnd,
    /// Sends, and consumers of them beside.
    Mixed,
    /// Sends to several consumer groups; latencies as end-to-end.
    FanOut,
    /// Half messages with their commit or rollback.
    Transaction,
    /// Delayed messages: how much later than asked they come.
    Delay,
    /// Pops with acks of what lies there (it is filled before).
    Pop,
    /// Sends to 10,000 topics.
    ManyTopics,
    /// Consumers that read a backlog from its start; with --rate, producers beside.
    ColdRead,
}

/// Form of request headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Header {
    /// JSON text, as clients send by default.
    Json,
    /// RocketMQ's binary form.
    Rocketmq,
}

/// The command line.
#[derive(Clone, Debug, Parser)]
#[command(name = "ringmq bench", version, about = ABOUT, after_help = EXAMPLES, args_override_self = true)]
pub struct Args {
    /// What to do.
    #[arg(value_enum)]
    pub workload: Workload,

    /// Address of the broker [default: 127.0.0.1:10911].
    #[arg(long, value_name = "HOST:PORT", help_heading = "Broker")]
    pub broker: Option<String>,
    /// Ask this name server for the broker (and make it forget the topics at the end).
    #[arg(long, value_name = "HOST:PORT", help_heading = "Broker")]
    pub namesrv: Option<String>,
    /// Name of the broker at the name server [default: the first].
    #[arg(long, value_name = "NAME", help_heading = "Broker")]
    pub broker_name: Option<String>,
    /// Id of the broker's process on this machine: its processor time and memory are measured.
    #[arg(long, visible_alias = "server-pid", value_name = "PID", help_heading = "Broker")]
    pub pid: Option<u32>,
    /// How long an answer may take, and the broker be silent, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600), help_heading = "Broker")]
    pub timeout: u64,

    /// Connections of producers (of consumers for consume and pop).
    #[arg(long, visible_alias = "conns", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Load")]
    pub connections: u32,
    /// Requests in flight on each connection; 1: one after the other.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16384), help_heading = "Load")]
    pub window: u32,
    /// Operations a second: an open loop, whose latencies count from the time that each was meant to begin.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Load")]
    pub rate: Option<f64>,
    /// Find the highest rate that is sustained, by halving: each step is an open loop.
    #[arg(long, conflicts_with = "rate", help_heading = "Load")]
    pub find_max: bool,
    /// A step is sustained when 99 % of its latencies are within this (10ms, 500us), nothing failed and 99 % of the rate came.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = time_ns, help_heading = "Load")]
    pub p99_limit: u64,
    /// Seconds of each step of --find-max, after a quarter of it as warm-up.
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0, value_parser = positive, help_heading = "Load")]
    pub step_seconds: f64,
    /// Steps of --find-max at most.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=30), help_heading = "Load")]
    pub steps: u32,
    /// Seconds before measuring.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = not_negative, help_heading = "Load")]
    pub warm_up: f64,
    /// Seconds of measuring.
    #[arg(long, visible_alias = "secs", value_name = "SECONDS", default_value_t = 10.0, value_parser = positive, help_heading = "Load")]
    pub seconds: f64,
    /// Threads of load.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Load")]
    pub threads: u32,
    /// Processors to pin the threads to, as 1,3.
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Load")]
    pub cpu: Vec<usize>,

    /// Bytes of a body: 128, 1k, a list 128,1k,16k or a range 100-2000, both drawn evenly.
    #[arg(long, value_name = "SIZE", default_value = "128", help_heading = "Messages")]
    pub size: Sizes,
    /// Bodies of words that compress well; random bytes otherwise.
    #[arg(long, help_heading = "Messages")]
    pub compressible: bool,
    /// Messages of a request: of a batch send, or of a pull or pop at most [default: 1 for sends, 32 for pulls and pops].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Messages")]
    pub batch: Option<u32>,
    /// Sends without an answer.
    #[arg(long, help_heading = "Messages")]
    pub oneway: bool,
    /// Form of the headers.
    #[arg(long, value_enum, default_value_t = Header::Json, help_heading = "Messages")]
    pub header: Header,
    /// Different tags of messages; 0: none.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=10000), help_heading = "Messages")]
    pub tags: u32,
    /// A key of its own for each message (KEYS), beside the unique one that clients set.
    #[arg(long, help_heading = "Messages")]
    pub keys: bool,
    /// Names and lengths of topics, groups, tags and keys and the order of fields differ from request to request.
    #[arg(long, visible_alias = "varied", help_heading = "Messages")]
    pub vary: bool,

    /// Name of the topic, or beginning of the names of several; one that exists is used and never deleted [default: a new one].
    #[arg(long, value_name = "NAME", help_heading = "Topics")]
    pub topic: Option<String>,
    /// Topics [default: 1; 10000 for many-topics].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100000), help_heading = "Topics")]
    pub topics: Option<u32>,
    /// Queues of each topic.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Topics")]
    pub queues: u32,
    /// How topics and tags are drawn: uniform, zipf or zipf:EXPONENT.
    #[arg(long, value_name = "KIND", default_value = "uniform", help_heading = "Topics")]
    pub distribution: Distribution,
    /// Do not delete what was made.
    #[arg(long, help_heading = "Topics")]
    pub keep: bool,
    /// Bytes that the broker may be made to write at most, counted before each send with all that it stores for it. The run
    /// ends early when they are used up, and is refused when a local disk has not the room.
    #[arg(long, value_name = "BYTES", default_value = "8GiB", value_parser = parse_bytes, help_heading = "Topics")]
    pub max_bytes: u64,

    /// Messages to fill in before consume, pop and cold-read, when the topic holds fewer [default: 400000, less for large ones].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Workloads")]
    pub fill: Option<u64>,
    /// Consumer groups of fan-out.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Workloads")]
    pub groups: u32,
    /// Connections of consumers beside producers; they share the queues.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Workloads")]
    pub consumers: u32,
    /// Part of the transactions that are rolled back, 0 to 1.
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = part, help_heading = "Workloads")]
    pub rollback: f64,
    /// Level of delayed messages (1: 1 s, 2: 5 s, 3: 10 s, 4: 30 s).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4), help_heading = "Workloads")]
    pub delay_level: u32,
    /// Delay by a timer, to a time that the message names, so many milliseconds ahead; instead of a level.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=600000), help_heading = "Workloads")]
    pub delay_ms: Option<u32>,
    /// One ack for each popped message, not one for all of a pop.
    #[arg(long, help_heading = "Workloads")]
    pub single_ack: bool,
    /// How long popped messages stay invisible.
    #[arg(long, value_name = "MS", default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(1000..=3_600_000), help_heading = "Workloads")]
    pub invisible_ms: u32,
    /// Drop the machine's page cache before cold-read begins (needs root).
    #[arg(long, help_heading = "Workloads")]
    pub drop_page_cache: bool,

    /// Write the result as one line of JSON, to stdout instead of the text when no file is named.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// Write the main latency as a percentile distribution (.hgrm).
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub hgrm: Option<PathBuf>,
    /// Write a page with plots.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub html: Option<PathBuf>,
    /// What plots call this run [default: the workload].
    #[arg(long, value_name = "TEXT", help_heading = "Results")]
    pub label: Option<String>,
    /// No progress line each second.
    #[arg(long, help_heading = "Results")]
    pub quiet: bool,

    /// The command line as it was given.
    #[arg(skip)]
    pub command: String,
}

impl Workload {
    /// Its name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::Produce => "produce",
            Workload::Consume => "consume",
            Workload::EndToEnd => "end-to-end",
            Workload::Mixed => "mixed",
            Workload::FanOut => "fan-out",
            Workload::Transaction => "transaction",
            Workload::Delay => "delay",
            Workload::Pop => "pop",
            Workload::ManyTopics => "many-topics",
            Workload::ColdRead => "cold-read",
        }
    }

    /// Whether bodies carry the time of their send.
    #[must_use]
    pub fn is_stamped(self) -> bool {
        matches!(self, Workload::EndToEnd | Workload::FanOut | Workload::Delay | Workload::Mixed)
    }
}

impl Args {
    /// What makes no sense together.
    ///
    /// # Errors
    /// The first such thing.
    pub fn check(&self) -> Result<(), String> {
        use Workload::*;
        if self.workload.is_stamped() && self.size.min() < STAMP_BYTES {
            return Err(format!("{} needs bodies of at least {STAMP_BYTES} bytes", self.workload.name()));
        }
        if self.oneway && (self.rate.is_none() || !matches!(self.workload, Produce | ManyTopics)) {
            return Err("--oneway is for produce and many-topics with a --rate: nothing else would hold it back".into());
        }
        if self.find_max && !matches!(self.workload, Produce | Consume | ManyTopics | Transaction | EndToEnd) {
            return Err(format!("--find-max is not for {}", self.workload.name()));
        }
        if self.find_max && self.oneway {
            return Err("--find-max needs answers".into());
        }
        let batch = self.batch();
        if batch > 1 && matches!(self.workload, Transaction | Delay) {
            return Err(format!("a message of {} cannot be in a batch", self.workload.name()));
        }
        if self.workload == Pop && batch > crate::work::pop::MAX_BATCH {
            return Err(format!("a pop gives at most {} messages", crate::work::pop::MAX_BATCH));
        }
        if self.workload == Pop && self.header == Header::Rocketmq {
            return Err("the codes of pop do not fit into the header form rocketmq".into());
        }
        let sends = !matches!(self.workload, Consume | Pop | ColdRead);
        if sends && u64::from(batch) * u64::from(self.size.max()) > u64::from(MAX_BODY_BYTES) {
            return Err(format!("a batch of {batch} x {} bytes is more than a broker takes", self.size.max()));
        }
        if u64::from(self.connections) > 4_096 * u64::from(self.threads) {
            return Err("more than 4096 connections for each of the --threads".into());
        }
        Ok(())
    }

    /// Messages of a request.
    #[must_use]
    pub fn batch(&self) -> u32 {
        let reads = matches!(self.workload, Workload::Consume | Workload::Pop | Workload::ColdRead);
        self.batch.unwrap_or(if reads { 32 } else { 1 })
    }

    /// Topics.
    #[must_use]
    pub fn topic_count(&self) -> u32 {
        let default = match self.workload {
            Workload::ManyTopics => 10_000,
            _ if self.vary => 16,
            _ => 1,
        };
        self.topics.unwrap_or(default)
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(|| format!("{text:?} is no number"))
}

fn positive(text: &str) -> Result<f64, String> {
    number(text)
        .and_then(|n| if n > 0.0 && n <= 1e9 { Ok(n) } else { Err("it must be over 0, and at most 1e9".into()) })
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text).and_then(|n| if (0.0..=1e6).contains(&n) { Ok(n) } else { Err("it must not be under 0".into()) })
}

fn part(text: &str) -> Result<f64, String> {
    number(text).and_then(|n| if (0.0..=1.0).contains(&n) { Ok(n) } else { Err("it must be from 0 to 1".into()) })
}

/// `5ms`, `500us`, `1s`, in nanoseconds.
fn time_ns(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(format!("{text:?} has no unit: 500us, 5ms or 1s is needed")),
    };
    Ok((positive(digits)? * unit) as u64)
}

/// `ringmq bench` with these arguments (without those two words).
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let name = std::iter::once(OsString::from("ringmq bench"));
    let mut args = match Args::try_parse_from(name.chain(arguments)) {
        Ok(args) => args,
        Err(error) => {
            // Nothing can be done when not even that can be printed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    args.command = format!("ringmq bench {}", words.join(" "));
    if let Err(error) = args.check() {
        eprintln!("ringmq bench: {error}");
        return ExitCode::from(2);
    }
    crate::run::command(&args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let args = Args::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        args.check().map(|()| args)
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_depend_on_the_workload() {
        let args = parse("bench produce --json --topic t").unwrap();
        assert_eq!((args.batch(), args.topic_count(), args.json), (1, 1, Some("-".into())));
        let args = parse("bench consume --json f").unwrap();
        assert_eq!((args.batch(), args.json), (32, Some("f".into())));
        assert_eq!(parse("bench many-topics").unwrap().topic_count(), 10_000);
        assert_eq!(parse("bench produce --p99-limit 500us --find-max").unwrap().p99_limit, 500_000);
        for workload in Workload::value_variants() {
            let name = workload.to_possible_value().unwrap();
            assert_eq!(workload.name(), name.get_name());
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "bench",
            "bench nothing",
            "bench end-to-end --size 8",
            "bench produce --oneway",
            "bench consume --oneway --rate 5",
            "bench pop --find-max",
            "bench produce --find-max --rate 5",
            "bench transaction --batch 2",
            "bench pop --batch 33",
            "bench pop --header rocketmq",
            "bench produce --size 1m --batch 5",
            "bench produce --rate 0",
            "bench produce --rollback 2",
            "bench produce --connections 5000",
            "bench produce --p99-limit 5",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
