//! Starting and stopping the cores of an engine.
//!
//! A core's thread makes its own ring and its own service, because neither may move. A panic on it ends the process:
//! nothing then waits for an answer that cannot come.

use crate::background::Background;
use crate::core::{Core, Parts};
use crate::injector::{Injected, Injector};
use crate::limits::Limits;
use crate::listeners::Listeners;
use crate::mail::Mail;
use crate::service::{CoreId, ListenerId, Service};
use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use sys::affinity;

/// How an engine is built.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The processor of each core; its length is the number of cores.
    pub cores: Vec<usize>,
    /// Whether each core's thread is pinned to its processor.
    pub pin: bool,
    /// Every limit.
    pub limits: Limits,
}

/// A port to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// How the service recognises it.
    pub id: ListenerId,
    /// The address; for messages only, the socket is bound already.
    pub addr: SocketAddr,
    /// Connections go to the core with the fewest; otherwise they stay on core 0.
    pub spread: bool,
}

/// Sends messages to a core from any thread, and wakes it.
pub struct CoreHandle<M>(Arc<dyn Fn(M) + Send + Sync>);

impl<M> CoreHandle<M> {
    /// A handle that calls `post`: the engine's own go to a core; a test's may go anywhere.
    pub fn new(post: impl Fn(M) + Send + Sync + 'static) -> CoreHandle<M> {
        CoreHandle(Arc::new(post))
    }

    /// Sends a message; the service gets it with `from` = `None`. Never given if the core has ended.
    pub fn post(&self, message: M) {
        (self.0)(message);
    }
}

impl<M> Clone for CoreHandle<M> {
    fn clone(&self) -> CoreHandle<M> {
        CoreHandle(self.0.clone())
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No core was asked for, or more than there are numbers for.
    #[error("an engine needs at least one core, and takes at most 1024")]
    NoCores,
    /// A core's thread, ring or wake-up could not be made.
    #[error("core {}: {source}", core.0)]
    Core {
        /// The core.
        core: CoreId,
        /// What the system said.
        source: io::Error,
    },
    /// The service of a core could not be built.
    #[error("core {}: {source}", core.0)]
    Build {
        /// The core.
        core: CoreId,
        /// What the builder said.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// A running engine. It goes on when this is dropped without `stop`.
pub struct Engine<M> {
    handles: Vec<CoreHandle<M>>,
    injectors: Vec<Arc<Injector<M>>>,
    threads: Vec<JoinHandle<bool>>,
}

/// Starts the cores. `build` makes the service of each core on the core's own thread, so that they build in parallel;
/// this returns when all are built, or one failed (then the others are stopped).
pub fn start<S, F>(
    options: EngineOptions,
    background: Arc<dyn Background>,
    build: F,
) -> Result<Engine<S::Message>, StartError>
where
    S: Service + 'static,
    F: Fn(CoreId, &[CoreHandle<S::Message>]) -> Result<S, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
{
    options.limits.validate();
    if !(1..=1024).contains(&options.cores.len()) {
        return Err(StartError::NoCores);
    }
    let (mut engine, all_parts) = wire(&options, background)?;
    let build = Arc::new(build);
    let (report, reports) = mpsc::channel();
    let mut failure = None;
    for (parts, cpu) in all_parts.into_iter().zip(options.cores.iter().copied()) {
        let core = parts.core;
        let (build, handles, report) = (build.clone(), engine.handles.clone(), report.clone());
        let pinned = options.pin.then_some(cpu);
        let body = move || run_core::<S, F>(parts, pinned, &build, &handles, report);
        match std::thread::Builder::new().name(format!("core-{}", core.0)).spawn(body) {
            Ok(thread) => engine.threads.push(thread),
            Err(source) => {
                failure = Some(StartError::Core { core, source });
                break;
            }
        }
    }
    drop(report);
    for result in reports.iter().take(engine.threads.len()) {
        failure = failure.or(result.err());
    }
    match failure {
        None => Ok(engine),
        Some(error) => {
            engine.stop();
            Err(error)
        }
    }
}

impl<M> Engine<M> {
    /// One handle for each core.
    pub fn handles(&self) -> &[CoreHandle<M>] {
        &self.handles
    }

    /// Accepts on these sockets from now on.
    pub fn listen(&self, listeners: Vec<(ListenerSpec, TcpListener)>) {
        self.injectors[0].push(Injected::Listen(listeners));
    }

    /// Stops: no new connections, the services drain (at most [`Limits::stop_ms`]), the threads end. Tells whether
    /// everything was drained.
    pub fn stop(self) -> bool {
        for injector in &self.injectors {
            injector.push(Injected::Stop);
        }
        // A thread that panicked has ended the process.
        self.threads.into_iter().map(|thread| thread.join().unwrap_or(false)).fold(true, |all, drained| all & drained)
    }
}

/// Everything that the cores share, and what each of them gets.
fn wire<M: Send + 'static>(
    options: &EngineOptions,
    background: Arc<dyn Background>,
) -> Result<(Engine<M>, Vec<Parts<M>>), StartError> {
    let cores = options.cores.len();
    let mut injectors = Vec::with_capacity(cores);
    for core in 0..cores {
        let injector = Injector::new().map_err(|source| StartError::Core { core: CoreId(core as u16), source })?;
        injectors.push(Arc::new(injector));
    }
    let loads: Vec<Arc<AtomicUsize>> = (0..cores).map(|_| Arc::default()).collect();
    let done: Arc<[AtomicBool]> = (0..cores).map(|_| AtomicBool::new(false)).collect();
    let mails = Mail::between(&injectors, options.limits.mailbox_slots);
    let parts = mails.into_iter().enumerate().map(|(core, mail)| Parts {
        core: CoreId(core as u16),
        limits: options.limits.clone(),
        mail,
        injectors: injectors.clone(),
        listeners: Listeners::new(&loads, &injectors, &options.limits),
        background: background.clone(),
        done: done.clone(),
    });
    let parts = parts.collect();
    let handle = |injector: &Arc<Injector<M>>| {
        let injector = injector.clone();
        CoreHandle::new(move |message| injector.push(Injected::Message(message)))
    };
    let handles = injectors.iter().map(handle).collect();
    Ok((Engine { handles, injectors, threads: Vec::new() }, parts))
}

/// The body of a core's thread. Whether everything was drained at its end.
fn run_core<S, F>(
    parts: Parts<S::Message>,
    cpu: Option<usize>,
    build: &F,
    handles: &[CoreHandle<S::Message>],
    report: mpsc::Sender<Result<(), StartError>>,
) -> bool
where
    S: Service,
    F: Fn(CoreId, &[CoreHandle<S::Message>]) -> Result<S, Box<dyn Error + Send + Sync>>,
{
    let _guard = AbortOnPanic;
    let (core, done) = (parts.core, parts.done.clone());
    if let Some(cpu) = cpu
        && !affinity::pin_current_thread(cpu)
    {
        tracing::warn!(core = core.0, cpu, "the core could not be pinned to its processor");
    }
    let built = build(core, handles)
        .map_err(|source| StartError::Build { core, source })
        .and_then(|service| Core::new(service, parts).map_err(|source| StartError::Core { core, source }));
    let running = match built {
        Ok(running) => running,
        Err(error) => {
            done[core.0 as usize].store(true, Ordering::Release);
            // The starter waits for it.
            let _ = report.send(Err(error));
            return false;
        }
    };
    let _ = report.send(Ok(()));
    drop(report);
    match running.run() {
        Ok(drained) => drained,
        Err(error) => {
            tracing::error!(core = core.0, %error, "the ring of a core failed: the process ends");
            std::process::abort();
        }
    }
}

/// A core that panics must not leave the others waiting.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
