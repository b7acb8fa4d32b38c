//! The background executor: glommio on a thread of its own, and the thread of the tasks that somebody waits for beside it.
//!
//! Two task queues share glommio's thread: reads before upkeep. Cold reads go through its buffered file interface, so that
//! the thread waits for none of them; tasks run step by step, with a yield after each. Its sockets and mesh are not used, and its timer only to look for jobs whose wake-up was lost.
//! If glommio cannot start, or its thread ends, every job fails with the reason and the cores serve on. If it sleeps and does
//! not come back although jobs wait, a second one takes them over. Idle, the thread sleeps in the kernel but for that look.

use crate::background::{
    Background, BackgroundRequest, BackgroundTask, Job, JobClass, JobOutput, Reply, Step, read_range,
};
use crate::waited_tasks::WaitedTasks;
use bytes::Bytes;
use glommio::io::BufferedFile;
use glommio::sync::Semaphore;
use glommio::{GlommioError, Latency, LocalExecutorBuilder, Placement, Shares, TaskQueueHandle};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::disk::{Disk, DiskFile};

/// Memory that glommio registers with its rings; more is taken from the heap when needed. Small, because older kernels
/// count it against the locked-memory limit.
const IO_MEMORY_BYTES: usize = 64 << 10;

/// Entries of glommio's rings: as many operations as run at once, and some for itself.
const RING_DEPTH: usize = 64;

/// Locked memory that glommio insists on.
const LOCKED_MEMORY_BYTES: u64 = 512 << 10;

/// Bytes that one read asks for; longer ranges are read piece by piece.
const READ_PIECE_BYTES: u64 = 4 << 20;

/// How long tasks may run before glommio looks for completed reads: about one step. A read takes several such looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Jobs wait and the thread has not looked for so long: it sleeps for good. Longer than any step on a disk that works. glommio
/// 0.9 was seen so on a busy machine, from its first sleep on: in the wait of its ring, with neither its own timer nor a
/// wake-up coming through.
const ASLEEP: Duration = Duration::from_secs(1);

/// Executors started in place of one that sleeps; also a bound for a disk on which single steps take seconds.
const REPLACEMENTS: usize = 3;

/// How long a stop waits for an executor; one that sleeps for good is left behind.
const END_WAIT: Duration = Duration::from_secs(1);

/// How often the thread looks for work without being woken. glommio 0.9 can sleep through a wake-up that comes from another
/// thread while it falls asleep (seen after some thousand jobs that each followed the end of the one before): without this
/// look, such a job waits for ever. Costs about 0.1 % of a core.
const LOST_WAKE_INTERVAL: Duration = Duration::from_millis(20);

/// A line of jobs: which task queue runs it, with what share of the thread, and how many jobs at once.
struct Line {
    name: &'static str,
    shares: usize,
    at_once: u64,
}

const LINES: [Line; 2] =
    [Line { name: "reads", shares: 1000, at_once: 32 }, Line { name: "upkeep", shares: 100, at_once: 2 }];

/// Places in [`LINES`].
const READS: usize = 0;
const UPKEEP: usize = 1;

/// The executor; dropping it ends the threads, and fails the jobs that are under way.
pub struct GlommioBackground {
    queue: Arc<Queue>,
    watch: Option<JoinHandle<()>>,
    waited: WaitedTasks,
}

impl GlommioBackground {
    /// Starts the threads. Never fails: without a thread, or without glommio, the jobs fail with the reason.
    pub fn start(disk: Arc<dyn Disk>) -> GlommioBackground {
        let queue = Arc::new(Queue::default());
        let of_watch = queue.clone();
        let waited = WaitedTasks::start(disk.clone());
        let spawned = std::thread::Builder::new().name("watch".into()).spawn(move || watch(&of_watch, &disk));
        if let Err(error) = &spawned {
            queue.end(&format!("the background thread did not start: {error}"));
        }
        GlommioBackground { queue, watch: spawned.ok(), waited }
    }
}

impl Background for GlommioBackground {
    fn submit(&self, request: BackgroundRequest) {
        match &request.job {
            Job::Task { class: JobClass::Waited, .. } => self.waited.submit(request),
            Job::Read { .. } => self.queue.push(READS, request),
            Job::Task { class: JobClass::Upkeep, .. } => self.queue.push(UPKEEP, request),
        }
    }
}

impl Drop for GlommioBackground {
    fn drop(&mut self) {
        self.queue.end("the background executor was stopped");
        if let Some(watch) = self.watch.take() {
            // A panic there has been reported.
            let _ = watch.join();
        }
    }
}

/// Starts the executor, and another one when it sleeps for good; ends with them.
fn watch(queue: &Arc<Queue>, disk: &Arc<dyn Disk>) {
    let start = || {
        queue.looked();
        let (queue, disk) = (queue.clone(), disk.clone());
        std::thread::Builder::new().name("background".into()).spawn(move || run(&queue, disk))
    };
    let mut executors = Vec::new();
    loop {
        match start() {
            Ok(thread) => executors.push(thread),
            Err(error) if executors.is_empty() => {
                queue.end(&format!("the background thread did not start: {error}"));
            }
            Err(error) => tracing::error!(%error, "no second background executor could be started"),
        }
        let may_replace = executors.len() <= REPLACEMENTS;
        if !queue.wait_until_asleep(may_replace) {
            break;
        }
        tracing::warn!(
            executors = executors.len(),
            "the background executor sleeps although jobs wait: starting another one"
        );
    }
    let until = Instant::now() + END_WAIT;
    while executors.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Jobs on their way to the thread, one line for each class.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// For the one who watches: the end.
    over: Condvar,
}

#[derive(Default)]
struct State {
    /// When the executor was seen awake.
    looked: Option<Instant>,
    lines: [VecDeque<BackgroundRequest>; LINES.len()],
    /// The dispatcher of each line, when it waits.
    wakers: [Option<Waker>; LINES.len()],
    /// Why there is no executor any more.
    ended: Option<String>,
}

impl Queue {
    fn push(&self, line: usize, request: BackgroundRequest) {
        let mut state = self.state();
        if let Some(why) = &state.ended {
            let error = io::Error::other(why.clone());
            drop(state);
            request.reply.send(Err(error));
            return;
        }
        state.lines[line].push_back(request);
        // The waker stays: if glommio loses this wake-up, the look wakes once more.
        let waker = state.wakers[line].clone();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes, on the executor's own thread, every dispatcher that waits although its line holds a job.
    fn look(&self) {
        let mut state = self.state();
        state.looked = Some(Instant::now());
        let State { lines, wakers, .. } = &mut *state;
        let waiting = lines.iter().zip(wakers).filter(|(line, _)| !line.is_empty());
        let wakers: Vec<Waker> = waiting.filter_map(|(_, waker)| waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The executor is awake, or new.
    fn looked(&self) {
        self.state().looked = Some(Instant::now());
    }

    /// Waits until jobs wait for an executor that does not look; `false` at the end. Without `may_replace` only for that.
    fn wait_until_asleep(&self, may_replace: bool) -> bool {
        let mut state = self.state();
        while state.ended.is_none() {
            let waiting = may_replace && state.lines.iter().any(|line| !line.is_empty());
            let away = state.looked.map_or(ASLEEP, |looked| looked.elapsed());
            if waiting && away >= ASLEEP {
                return true;
            }
            // A look now and then, so that nobody has to tell of each job.
            state = self.over.wait_timeout(state, ASLEEP / 2).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Fails what waits and what will come.
    fn end(&self, why: &str) {
        let mut state = self.state();
        let why = state.ended.get_or_insert_with(|| why.to_owned()).clone();
        let waiting: Vec<BackgroundRequest> = state.lines.iter_mut().flat_map(std::mem::take).collect();
        let wakers: Vec<Waker> = state.wakers.iter_mut().filter_map(Option::take).collect();
        drop(state);
        self.over.notify_one();
        for request in waiting {
            request.reply.send(Err(io::Error::other(why.clone())));
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The next job of a line; `None` at the end.
    async fn next(&self, line: usize) -> Option<BackgroundRequest> {
        std::future::poll_fn(|context| {
            let mut state = self.state();
            if state.ended.is_some() {
                return Poll::Ready(None);
            }
            match state.lines[line].pop_front() {
                Some(request) => {
                    state.wakers[line] = None;
                    Poll::Ready(Some(request))
                }
                None => {
                    state.wakers[line] = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn has_ended(&self) -> bool {
        self.state().ended.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock can panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// However the thread ends, nobody waits for it.
struct EndOnDrop<'a>(&'a Queue);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end("the background executor has died");
    }
}

/// The body of the thread.
fn run(queue: &Arc<Queue>, disk: Arc<dyn Disk>) {
    let _guard = EndOnDrop(queue);
    raise_locked_memory();
    let executor = LocalExecutorBuilder::new(Placement::Unbound)
        .name("background")
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(RING_DEPTH)
        .preempt_timer(LOOK_INTERVAL)
        .make();
    let executor = match executor {
        Ok(executor) => executor,
        Err(error) => {
            tracing::error!(%error, "the background executor did not start: cold reads and upkeep will fail");
            return queue.end(&format!("the background executor did not start: {error}"));
        }
    };
    executor.run(async {
        let dispatchers: Vec<_> = LINES
            .iter()
            .enumerate()
            .map(|(line, settings)| {
                // Not latency: such a queue reads through the ring whose completions do not end a sleep by themselves.
                let shares = Shares::Static(settings.shares);
                let tasks = glommio::executor().create_task_queue(shares, Latency::NotImportant, settings.name);
                glommio::spawn_local(dispatch(queue.clone(), disk.clone(), line, tasks))
            })
            .collect();
        let of_look = queue.clone();
        let look = glommio::spawn_local(async move {
            loop {
                glommio::timer::sleep(LOST_WAKE_INTERVAL).await;
                of_look.look();
            }
        });
        for dispatcher in dispatchers {
            dispatcher.await;
        }
        look.cancel().await;
    });
}

/// Starts the jobs of a line in its task queue, so many at once as it allows.
async fn dispatch(queue: Arc<Queue>, disk: Arc<dyn Disk>, line: usize, tasks: TaskQueueHandle) {
    let slots = Rc::new(Semaphore::new(LINES[line].at_once));
    while let Ok(slot) = slots.acquire_static_permit(1).await {
        let Some(request) = queue.next(line).await else { break };
        let (queue, disk) = (queue.clone(), disk.clone());
        let job = async move {
            work(request, &queue, &*disk).await;
            drop(slot);
        };
        match glommio::spawn_local_into(job, tasks) {
            Ok(task) => drop(task.detach()),
            // The job was dropped with its reply, which has told the core.
            Err(error) => tracing::error!(%error, "a background job could not be started"),
        }
    }
}

async fn work(request: BackgroundRequest, queue: &Queue, disk: &dyn Disk) {
    let BackgroundRequest { job, reply } = request;
    match job {
        Job::Read { file, ranges } => reply.send(read(&*file, ranges).await.map(JobOutput::Read)),
        Job::Task { task, .. } => step_by_step(task, queue, disk, reply).await,
    }
}

async fn step_by_step(mut task: Box<dyn BackgroundTask>, queue: &Queue, disk: &dyn Disk, reply: Reply) {
    // At the end the reply is dropped, which tells the core.
    while !queue.has_ended() {
        match task.step(disk) {
            Ok(Step::More) => glommio::executor().yield_task_queue_now().await,
            Ok(Step::Done(output)) => return reply.send(Ok(JobOutput::Task(output))),
            Err(error) => return reply.send(Err(error)),
        }
    }
}

async fn read(file: &dyn DiskFile, ranges: Vec<Range<u64>>) -> io::Result<Vec<Bytes>> {
    // A second open file of the same inode, whatever has become of its path since.
    let own = match file.raw_fd() {
        Some(fd) => BufferedFile::open(format!("/proc/self/fd/{fd}")).await.ok(),
        None => None,
    };
    let mut outputs = Vec::with_capacity(ranges.len());
    for range in ranges {
        outputs.push(match &own {
            Some(own) => read_waiting(own, range).await?,
            // Simulated, or a machine without /proc.
            None => read_range(file, range)?,
        });
        glommio::yield_if_needed().await;
    }
    if let Some(own) = own {
        own.close().await.map_err(to_io)?;
    }
    Ok(outputs)
}

async fn read_waiting(file: &BufferedFile, range: Range<u64>) -> io::Result<Bytes> {
    let len = range.end.checked_sub(range.start).ok_or(io::ErrorKind::InvalidInput)?;
    let mut bytes = Vec::with_capacity(usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?);
    let mut position = range.start;
    while position < range.end {
        let piece = (range.end - position).min(READ_PIECE_BYTES) as usize;
        let result = file.read_at(position, piece).await.map_err(to_io)?;
        if result.is_empty() {
            break;
        }
        bytes.extend_from_slice(&result);
        position += result.len() as u64;
    }
    Ok(bytes.into())
}

fn to_io(error: GlommioError<()>) -> io::Error {
    error.into()
}

/// Uses what the administrator allows, when the default is too low for glommio.
fn raise_locked_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Memlock);
    if limit.current.is_some_and(|bytes| bytes < LOCKED_MEMORY_BYTES) {
        // If refused, glommio says so.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}
