//! Work beside the hot path: cold reads and long steps, on an executor of their own.
//!
//! A core hands a [`Job`] over with a [`Reply`]; the executor calls the reply once, from its own thread, which takes the
//! result back to the core that asked. A reply that is dropped (the executor died) is an error for the core, never silence.
//! The jobs themselves know the disk only through [`sys::disk::Disk`].

use bytes::Bytes;
use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use sys::disk::{Disk, DiskFile};

/// How urgent a task is. Reads of [`Job::Read`] go before both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobClass {
    /// A client, or the log's next segment, waits for it: config files, segment preparation.
    Waited,
    /// Nobody waits: index merge, checkpoint passes, retention.
    Upkeep,
}

/// Something to do in the background.
pub enum Job {
    /// Read ranges of a file: [`JobOutput::Read`], one buffer for each range, shorter only at the end of the file.
    Read {
        /// The file; kept open until the end.
        file: Arc<dyn DiskFile>,
        /// Byte ranges.
        ranges: Vec<Range<u64>>,
    },
    /// Run the steps of a task: [`JobOutput::Task`].
    Task {
        /// How urgent it is.
        class: JobClass,
        /// The task.
        task: Box<dyn BackgroundTask>,
    },
}

/// What a job, or a sync, gave.
pub enum JobOutput {
    /// The data of the file is durable.
    Synced,
    /// The bytes of each range that was asked.
    Read(Vec<Bytes>),
    /// What the task was done with.
    Task(Box<dyn Any + Send>),
}

/// Whether a task wants another step.
pub enum Step {
    /// Call `step` again, after others had their share.
    More,
    /// Done, with this for the one who asked.
    Done(Box<dyn Any + Send>),
}

/// A long piece of work in short steps.
pub trait BackgroundTask: Send {
    /// One step: at most about 4 MiB of disk traffic or 5 ms. An error ends the task.
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step>;
}

/// Takes a job's result back to the core that asked. Called once, or dropped: then the core gets an error.
pub struct Reply(Option<Box<dyn FnOnce(io::Result<JobOutput>) + Send>>);

impl Reply {
    /// A reply that calls `send`.
    pub fn new(send: impl FnOnce(io::Result<JobOutput>) + Send + 'static) -> Reply {
        Reply(Some(Box::new(send)))
    }

    /// Sends the result.
    pub fn send(mut self, result: io::Result<JobOutput>) {
        if let Some(send) = self.0.take() {
            send(result);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(send) = self.0.take() {
            send(Err(io::Error::other("the background executor has stopped")));
        }
    }
}

/// A job and where its result goes.
pub struct BackgroundRequest {
    /// What to do.
    pub job: Job,
    /// Where the result goes.
    pub reply: Reply,
}

/// An executor of jobs.
pub trait Background: Send + Sync {
    /// Takes a job; never blocks on it (except [`InlineBackground`]).
    fn submit(&self, request: BackgroundRequest);
}

/// Runs each job to its end inside `submit`: for tests and the simulator.
pub struct InlineBackground {
    disk: Arc<dyn Disk>,
}

impl InlineBackground {
    /// An executor whose tasks see this disk.
    pub fn new(disk: Arc<dyn Disk>) -> InlineBackground {
        InlineBackground { disk }
    }
}

impl Background for InlineBackground {
    fn submit(&self, request: BackgroundRequest) {
        let BackgroundRequest { job, reply } = request;
        reply.send(run(job, &*self.disk));
    }
}

/// Runs a job to its end on this thread.
pub fn run(job: Job, disk: &dyn Disk) -> io::Result<JobOutput> {
    match job {
        Job::Read { file, ranges } => {
            ranges.into_iter().map(|range| read_range(&*file, range)).collect::<io::Result<_>>().map(JobOutput::Read)
        }
        Job::Task { mut task, .. } => loop {
            if let Step::Done(output) = task.step(disk)? {
                return Ok(JobOutput::Task(output));
            }
        },
    }
}

/// Reads one range, waiting for the device; shorter at the end of the file.
pub(crate) fn read_range(file: &dyn DiskFile, range: Range<u64>) -> io::Result<Bytes> {
    let len = range.end.checked_sub(range.start).and_then(|len| usize::try_from(len).ok());
    let mut bytes = vec![0; len.ok_or(io::ErrorKind::InvalidInput)?];
    let n = file.read_at(&mut bytes, range.start)?;
    bytes.truncate(n);
    Ok(bytes.into())
}
