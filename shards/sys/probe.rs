//! Whether this kernel can run the engine, and if not, what is missing and how to get it.

use crate::ring::{Ring, RingSizes, builder};
use io_uring::{IoUring, Probe, opcode};
use std::io;

/// Why the engine cannot run here. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel was built without io_uring or is far too old.
    #[error("this kernel has no io_uring: Linux 6.1 or newer is needed")]
    Absent,
    /// An administrator switched it off.
    #[error(
        "io_uring is disabled on this machine (kernel.io_uring_disabled = {value}): allow it with \
         `sysctl -w kernel.io_uring_disabled=0`{}",
        if *value == 1 { ", or add this user's group to kernel.io_uring_group" } else { "" }
    )]
    Disabled {
        /// The setting: 1 for unprivileged processes, 2 for all.
        value: u32,
    },
    /// A container's filter refuses it.
    #[error(
        "io_uring is forbidden to this process, most likely by a container's seccomp profile: allow io_uring_setup, \
         io_uring_enter and io_uring_register in it (Docker: `--security-opt seccomp=<profile>`)"
    )]
    Forbidden,
    /// Not enough memory may be locked (old kernels count rings against it).
    #[error("io_uring got no memory: raise the locked-memory limit (`ulimit -l`, LimitMEMLOCK= for a service)")]
    Memory,
    /// The kernel is too old for an operation.
    #[error("this kernel's io_uring cannot do {operation}: Linux 6.1 or newer is needed")]
    Missing {
        /// What it cannot do.
        operation: &'static str,
    },
    /// Something else.
    #[error("io_uring does not work here: {0}")]
    Other(io::Error),
}

/// The operations that the engine uses.
const NEEDED: [(u8, &str); 8] = [
    (opcode::AcceptMulti::CODE, "accept"),
    (opcode::RecvMulti::CODE, "receive"),
    (opcode::Send::CODE, "send"),
    (opcode::SendMsg::CODE, "send of several parts"),
    (opcode::Fsync::CODE, "fsync"),
    (opcode::SyncFileRange::CODE, "sync of a file range"),
    (opcode::PollAdd::CODE, "poll"),
    (opcode::AsyncCancel::CODE, "cancellation"),
];

/// Tries everything that the engine needs of io_uring.
pub fn probe() -> Result<(), ProbeError> {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let disabled = setting.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let plain = IoUring::new(4).map_err(|error| setup_error(error, disabled))?;
    let mut known = Probe::new();
    plain.submitter().register_probe(&mut known).map_err(ProbeError::Other)?;
    for (code, operation) in NEEDED {
        if !known.is_supported(code) {
            return Err(ProbeError::Missing { operation });
        }
    }
    if !plain.params().is_feature_ext_arg() {
        return Err(ProbeError::Missing { operation: "waiting with a timeout" });
    }
    builder().build(4).map_err(|_| ProbeError::Missing { operation: "deferred completions (DEFER_TASKRUN)" })?;
    match Ring::new(RingSizes { entries: 4, buffers: 4, buffer_bytes: 4096 }) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(ProbeError::Memory),
        Err(_) => Err(ProbeError::Missing { operation: "receive buffers picked by the kernel" }),
    }
}

fn setup_error(error: io::Error, disabled: u32) -> ProbeError {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => ProbeError::Absent,
        Some(libc::EPERM | libc::EACCES) if disabled > 0 => ProbeError::Disabled { value: disabled },
        Some(libc::EPERM | libc::EACCES) => ProbeError::Forbidden,
        Some(libc::ENOMEM) => ProbeError::Memory,
        _ => ProbeError::Other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can() {
        probe().unwrap();
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let text = |errno, disabled| setup_error(io::Error::from_raw_os_error(errno), disabled).to_string();
        assert!(text(libc::ENOSYS, 0).contains("Linux 6.1"));
        assert!(text(libc::EPERM, 0).contains("seccomp"));
        assert!(text(libc::EPERM, 2).contains("kernel.io_uring_disabled=0"));
        assert!(text(libc::EPERM, 1).contains("io_uring_group"));
        assert!(text(libc::ENOMEM, 0).contains("ulimit -l"));
        assert!(text(libc::EMFILE, 0).contains("open files"));
    }
}
