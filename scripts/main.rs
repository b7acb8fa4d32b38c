//! `cargo xtask`: the checks, tests and measurements of the project that need more than one crate. It starts `ringmq`,
//! the Java reference and the shared suites as processes. Of the product it links nothing but the judge of histories
//! (`simulator::history`), which is pure: its clients and their codecs are its own.

mod client;
mod clock;
mod compare;
mod compat;
mod costs;
mod instructions;
mod interop;
mod kill;
mod project;
mod reference;
mod report;
mod server;
mod soak;
mod suites;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::report::Report;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks, tests and measurements of RingMQ")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lints, layers, code map, texts
    Verify,
    /// Everything: checks, tests of the crates, fuzz drivers, crashes, Java both ways, the shared suites
    Test,
    /// The fuzz drivers of all decoders alone
    Fuzz {
        /// Executions of each target.
        #[arg(long, default_value_t = 1_000_000)]
        executions: u64,
    },
    /// The golden frames, records and files of the reference against our codecs
    Golden,
    /// Official clients and socket cases of ../shared against a release build, at each number of shards
    Interop(interop::Arguments),
    /// `kill -9` under load in each flush mode at one and two shards; starts with other numbers of cores and shards
    Kill(kill::Arguments),
    /// Every kind of message under `kill -9` for minutes; what clients sent and saw is judged at the end
    Soak(soak::Arguments),
    /// The Java store library, broker, name server and client with ours, each way
    Compat(compat::Arguments),
    /// RingMQ and the Java broker side by side under the same load; results go to perf/results
    Compare(compare::Arguments),
    /// Instructions and allocations of the hot functions against the figures of perf/instructions.json: 5 % more at most
    Instructions(instructions::Arguments),
    /// Processor time of the broker for each kind of message, and of a send against another build
    Costs(costs::Arguments),
    /// One test server in a folder, for the commands that suites call
    #[command(hide = true)]
    Server {
        #[command(subcommand)]
        verb: Verb,
    },
}

#[derive(Subcommand)]
enum Verb {
    Start { folder: PathBuf },
    Stop { folder: PathBuf },
    Kill { folder: PathBuf },
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(Some(report)) => report.finish(),
        Ok(None) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why:?}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<Option<Report>> {
    Ok(match task {
        Task::Verify => Some(verify::run()),
        Task::Test => Some(suites::run()?),
        Task::Fuzz { executions } => Some(suites::cargo_tests(executions, Some("fuzz"))?),
        Task::Golden => Some(suites::cargo_tests(0, Some("golden"))?),
        Task::Interop(arguments) => Some(interop::run(&arguments)?),
        Task::Kill(arguments) => Some(kill::run(&arguments)?),
        Task::Soak(arguments) => Some(soak::run(&arguments)?),
        Task::Compat(arguments) => Some(compat::run(&arguments)?),
        Task::Compare(arguments) => Some(compare::run(&arguments)?),
        Task::Instructions(arguments) => Some(instructions::run(&arguments)?).filter(|_| !arguments.lists()),
        Task::Costs(arguments) => Some(costs::run(&arguments)?),
        Task::Server { verb } => {
            match verb {
                Verb::Start { folder } => server::start(&folder)?,
                Verb::Stop { folder } => server::stop(&folder)?,
                Verb::Kill { folder } => server::kill(&folder)?,
            }
            None
        }
    })
}
