//! The command line: what can be asked of `ringmq`, and the texts that teach it.
//!
//! Role: arguments to plain values. What they mean together is `config`'s business.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const ABOUT: &str = "A message broker for RocketMQ's clients and tools: name server and broker in one program.";

const EXAMPLES: &str = "\
Examples:
  ringmq                                     name server on 127.0.0.1:9876 and broker on 127.0.0.1:10911,
                                             data in ./ringmq-data
  ringmq --listen 0.0.0.0:10911 --namesrv-listen 0.0.0.0:9876
                                             the same for other machines (open to all that reach these ports)
  ringmq namesrv -c namesrv.conf             a name server alone
  ringmq broker -c broker.conf               a broker alone, with the Java broker's file
  ringmq --set flushDiskType=SYNC_FLUSH      answer a send only when it is on the disk
  ringmq --help-config                       every key of broker.conf and what it does here
  ringmq bench produce                       puts load on a broker and measures it (ringmq bench --help)

Clients connect to the name server's address. A broker also listens on its port minus 2 (the VIP port).
Stop with SIGTERM or Ctrl-C: what is in flight is finished (at most 10 s) and the store is closed in order.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "ringmq", version, about = ABOUT, after_help = EXAMPLES, args_conflicts_with_subcommands = false)]
pub struct Cli {
    /// What to run; both in one process when nothing is named.
    #[command(subcommand)]
    pub role: Option<Role>,
    /// Flags for every role.
    #[command(flatten)]
    pub flags: Flags,
}

/// One of the two servers alone.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// Run a name server alone.
    Namesrv {
        /// Java's namesrv.conf (`.properties`, UTF-8).
        #[arg(short = 'c', long = "config", value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Run a broker alone.
    Broker {
        /// Java's broker.conf (`.properties`, UTF-8).
        #[arg(short = 'c', long = "config", value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

/// Flags for every role. A flag wins over `--set`, and that over the file.
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Folder of all files [default: ./ringmq-data].
    #[arg(long, value_name = "DIR", global = true)]
    pub data: Option<PathBuf>,
    /// Shards of the store: a larger number than it has adds some, a smaller one is refused [default: what the store has,
    /// for a new one a shard for each core].
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub shards: Option<u16>,
    /// Processors to run on, as 0,1 or 2-5 [default: all that the affinity mask and the CPU quota allow].
    #[arg(long, value_name = "LIST", global = true, value_parser = parse_cores)]
    pub cores: Option<Cores>,
    /// Address of the broker [default: 127.0.0.1:10911].
    #[arg(long, value_name = "HOST:PORT", global = true)]
    pub listen: Option<String>,
    /// Address of the name server [default: 127.0.0.1:9876].
    #[arg(long, value_name = "HOST:PORT", global = true)]
    pub namesrv_listen: Option<String>,
    /// Register with these name servers; the one inside is then not started.
    #[arg(long, value_name = "HOST:PORT;…", global = true)]
    pub namesrv: Option<String>,
    /// Set a key of broker.conf (or of namesrv.conf), may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", global = true, value_parser = parse_set)]
    pub set: Vec<(String, String)>,
    /// What is logged to stderr: error, warn, info, debug, or a filter such as warn,broker=debug.
    #[arg(long, value_name = "FILTER", global = true, default_value = "warn")]
    pub log: String,
    /// Print every key of broker.conf as a Markdown page, and end.
    #[arg(long, global = true)]
    pub help_config: bool,
}

/// Processors by number, ascending and each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(pub Vec<usize>);

/// Most processors that a list may name: as many as a store may have shards.
const MAX_CORES: usize = 64;

fn parse_cores(text: &str) -> Result<Cores, String> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number =
            |text: &str| text.trim().parse::<usize>().map_err(|_| format!("{part:?} is no processor or range"));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last - first >= MAX_CORES {
            return Err(format!("{part:?} is no range of at most {MAX_CORES} processors"));
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    if cores.len() > MAX_CORES {
        return Err(format!("more than {MAX_CORES} processors"));
    }
    Ok(Cores(cores))
}

fn parse_set(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("KEY=VALUE is needed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_may_stand_before_and_after_the_role() {
        for line in ["ringmq --data d broker -c f", "ringmq broker -c f --data d"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(cli.flags.data, Some("d".into()), "{line}");
            assert!(matches!(cli.role, Some(Role::Broker { config: Some(_) })));
        }
        let cli = Cli::try_parse_from(["ringmq", "--set", "a=b=c", "--set", "d= e"]).unwrap();
        assert_eq!(cli.flags.set, [("a".into(), "b=c".into()), ("d".into(), " e".into())]);
        assert!(Cli::try_parse_from(["ringmq", "--set", "a"]).is_err());
        assert!(Cli::try_parse_from(["ringmq", "--shards", "0"]).is_err());
    }

    #[test]
    fn core_lists() {
        assert_eq!(parse_cores("0,1"), Ok(Cores(vec![0, 1])));
        assert_eq!(parse_cores("4-6,2,5"), Ok(Cores(vec![2, 4, 5, 6])));
        for bad in ["", "a", "3-1", "0-9999999", "-1", "1,"] {
            assert!(parse_cores(bad).is_err(), "{bad}");
        }
    }
}
