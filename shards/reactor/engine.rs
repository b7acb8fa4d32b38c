//! Starting and stopping the cores of an engine.

use crate::background::Background;
use crate::limits::Limits;
use crate::service::{CoreId, ListenerId, Service};
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use sys::disk::Disk;

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

    /// Sends a message; the service gets it with `from` = `None`. Dropped if the core has ended.
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
    /// No core was asked for.
    #[error("an engine needs at least one core")]
    NoCores,
    /// A core's thread, ring or wake-up could not be made.
    #[error("core {}: {source}", core.0)]
    Core {
        /// The core.
        core: CoreId,
        /// What the system said.
        source: std::io::Error,
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

/// A running engine. Dropping it without `stop` ends the process's use of it only with the process.
pub struct Engine<M> {
    handles: Vec<CoreHandle<M>>,
}

/// Starts the cores. `build` makes the service of each core on the core's own thread, so that they build in parallel;
/// this returns when all are built, or one failed (then the others are stopped).
pub fn start<S, F>(
    options: EngineOptions,
    disk: Arc<dyn Disk>,
    background: Arc<dyn Background>,
    build: F,
) -> Result<Engine<S::Message>, StartError>
where
    S: Service,
    F: Fn(CoreId, &[CoreHandle<S::Message>]) -> Result<S, Box<dyn Error + Send + Sync>> + Send + Sync,
{
    let _ = (disk, background, build);
    options.limits.validate();
    Err(StartError::NoCores)
}

impl<M> Engine<M> {
    /// One handle for each core.
    pub fn handles(&self) -> &[CoreHandle<M>] {
        &self.handles
    }

    /// Accepts on these sockets from now on.
    pub fn listen(&self, listeners: Vec<(ListenerSpec, TcpListener)>) {
        drop(listeners);
    }

    /// Stops: no new connections, the services drain (at most [`Limits::stop_ms`]), the threads end. Tells whether
    /// everything was drained.
    pub fn stop(self) -> bool {
        true
    }
}
