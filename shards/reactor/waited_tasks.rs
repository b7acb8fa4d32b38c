//! The tasks that somebody waits for, on a thread of their own.
//!
//! Role: changes of metadata files, new segments, walks for a query. They are few and short, and an answer hangs on each: a
//! lock and a condition variable carry them, and no executor's sleep can hold them up. Tasks take turns, a step each.
//! Invariants: each task's reply is sent once, or dropped when the thread ends, which tells the core; idle, the thread sleeps.

use crate::background::{BackgroundRequest, BackgroundTask, Job, JobOutput, Reply, Step};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use sys::disk::Disk;

/// Tasks that take turns; the rest waits until one is done.
const AT_ONCE: usize = 8;

/// The thread; dropping it ends it after the step it is at, and fails the tasks that are under way.
pub(crate) struct WaitedTasks {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Box<dyn BackgroundTask>, Reply)>,
    /// Why there is no thread any more.
    ended: Option<String>,
}

impl WaitedTasks {
    /// Starts the thread. Never fails: without one, the tasks fail with the reason.
    pub(crate) fn start(disk: Arc<dyn Disk>) -> Self {
        let shared = Arc::new(Shared::default());
        let of_thread = EndOnDrop(shared.clone());
        let spawned = std::thread::Builder::new().name("waited".into()).spawn(move || of_thread.0.run(&*disk));
        if let Err(error) = &spawned {
            shared.end(&format!("the thread of waited tasks did not start: {error}"));
        }
        Self { shared, thread: spawned.ok() }
    }

    /// Takes a task. A request that is none is answered with an error.
    pub(crate) fn submit(&self, request: BackgroundRequest) {
        let BackgroundRequest { job, reply } = request;
        let Job::Task { task, .. } = job else {
            return reply.send(Err(io::Error::from(io::ErrorKind::InvalidInput)));
        };
        let mut state = self.shared.state();
        if let Some(why) = &state.ended {
            let error = io::Error::other(why.clone());
            drop(state);
            return reply.send(Err(error));
        }
        state.waiting.push_back((task, reply));
        drop(state);
        self.shared.filled.notify_one();
    }
}

impl Drop for WaitedTasks {
    fn drop(&mut self) {
        self.shared.end("the background executor was stopped");
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported, and its tasks have failed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, disk: &dyn Disk) {
        let mut active = VecDeque::with_capacity(AT_ONCE);
        while self.fill(&mut active) {
            let Some((mut task, reply)) = active.pop_front() else { continue };
            match task.step(disk) {
                Ok(Step::More) => active.push_back((task, reply)),
                Ok(Step::Done(output)) => reply.send(Ok(JobOutput::Task(output))),
                Err(error) => reply.send(Err(error)),
            }
        }
    }

    /// Takes up what waits, and waits itself while there is nothing at all; `false` at the end.
    fn fill(&self, active: &mut VecDeque<(Box<dyn BackgroundTask>, Reply)>) -> bool {
        let mut state = self.state();
        while active.is_empty() && state.waiting.is_empty() && state.ended.is_none() {
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        while active.len() < AT_ONCE
            && let Some(task) = state.waiting.pop_front()
        {
            active.push_back(task);
        }
        state.ended.is_none()
    }

    /// Fails what waits and what will come.
    fn end(&self, why: &str) {
        let mut state = self.state();
        let why = state.ended.get_or_insert_with(|| why.to_owned()).clone();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.filled.notify_one();
        for (_, reply) in waiting {
            reply.send(Err(io::Error::other(why.clone())));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock can panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// However the thread ends, nobody waits for it.
struct EndOnDrop(Arc<Shared>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end("the thread of waited tasks has died");
    }
}
