//! Where things are and how programs are run. Everything is found from this package's folder and from the running
//! program's own path; nothing else is assumed about the machine.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The folder of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in a folder of the workspace").to_path_buf()
}

/// The folder that cargo builds into.
pub fn target() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("finding the path of this program")?;
    let target = exe.parent().and_then(Path::parent).context("this program does not lie in a cargo target folder")?;
    Ok(target.to_path_buf())
}

/// The folder of the shared test suites beside the checkout, when it is there.
pub fn shared() -> Option<PathBuf> {
    let folder = root().parent()?.join("shared");
    folder.join("interop").is_dir().then_some(folder)
}

/// A new empty folder of this run.
pub fn work_folder(name: &str) -> Result<PathBuf> {
    let folder = target()?.join("xtask").join(format!("{name}-{}", std::process::id()));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

/// A cargo command in the workspace that builds into the folder of this program.
pub fn cargo<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).env("CARGO_TARGET_DIR", target()?);
    Ok(command)
}

/// Builds the release binary and gives its path.
pub fn ringmq() -> Result<PathBuf> {
    run(&mut cargo(["build", "--release", "--locked", "--bin", "ringmq"])?)?;
    let binary = target()?.join("release/ringmq");
    ensure!(binary.is_file(), "cargo built no {}", binary.display());
    Ok(binary)
}

/// Runs a command with its output shown; anything but success is an error.
pub fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", text(command));
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("starting {}", text(command)))?;
    ensure!(status.success(), "`{}` ended with {status}", text(command));
    Ok(())
}

/// Runs a command and gives what it wrote to its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {}", text(command)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}\n{}", text(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn text(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A loopback port `p` such that `p - 2`, `p`, `p + 1` and `p + 10` are free now, below the range of outgoing connections:
/// room for a broker (with its second and its replication port) and a name server. `RINGMQ_TEST_PORTS` says where to begin.
pub fn free_ports() -> Result<u16> {
    let wish = std::env::var("RINGMQ_TEST_PORTS").ok().and_then(|v| v.parse().ok());
    let first: u16 = wish.unwrap_or(20_000 + (std::process::id() % 400) as u16 * 20);
    let free = |port: u16| TcpListener::bind(loopback(port)).is_ok();
    (first + 2..32_700)
        .step_by(20)
        .find(|p| [p - 2, *p, p + 1, p + 10].into_iter().all(free))
        .context("no free loopback ports below 32768")
}

/// An address of this machine only.
pub fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Copies a folder with `cp`, which keeps holes in sparse files.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("-r").arg("--sparse=always").arg(from).arg(to))
}
