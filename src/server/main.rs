//! The `ringmq` program.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser;
use server::{boot, cli::Cli, config::Config, settings};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|role| role == "bench") {
        // The load generator shares no flag with the servers.
        return bench::main(arguments);
    }
    let cli = Cli::parse();
    if cli.flags.help_config {
        print!("{}", settings::reference_page());
        return ExitCode::SUCCESS;
    }
    match start(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringmq: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::builder().parse(&cli.flags.log)?;
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let config = Config::load(cli)?;
    for warning in &config.warnings {
        eprintln!("ringmq: warning: {warning}");
    }
    boot::run(config)
}
