//! The control thread: signals, registration with the name servers, and the jobs of the name server.
//!
//! Role: one ordinary thread with a current-thread tokio runtime. It talks to the cores through their mailboxes and can
//! never delay them. Invariants: it outlives the cores, so that no job of theirs is lost; it tells the main thread what it
//! sees and decides nothing.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use broker::CoreMessage;
use broker::config::BrokerOptions;
use broker::registration::{self, ControlMessage, ControlReceiver};
use namesrv::{NsFile, NsJob};
use reactor::CoreHandle;
use store::ConfigDir;
use sys::disk::Disk;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use crate::service::NsFinished;

/// A job of the name server.
#[derive(Debug)]
pub struct NsWork {
    /// Its token.
    pub token: u64,
    /// The work.
    pub job: NsJob,
}

/// What the control thread tells the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every core has its metadata.
    Ready,
    /// The name servers know the broker's topics, or have failed to take them.
    Registered,
    /// A signal asks to stop.
    Stop(&'static str),
    /// The name servers were told that the broker goes.
    SaidGoodbye,
}

/// The files of the name server.
#[derive(Clone)]
pub struct NsFiles {
    key_values: (ConfigDir, String),
    settings: (ConfigDir, String),
}

impl NsFiles {
    /// These two files.
    #[must_use]
    pub fn new(disk: &Arc<dyn Disk>, key_values: &Path, settings: &Path) -> Self {
        let place = |path: &Path| {
            let dir = path.parent().map(PathBuf::from).unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (ConfigDir::new(disk.clone(), dir), name)
        };
        Self { key_values: place(key_values), settings: place(settings) }
    }

    /// Content of a file, or of its backup when it is damaged; `None` when there is none.
    ///
    /// # Errors
    /// The disk's, or neither is whole.
    pub fn read(&self, file: NsFile, valid: &dyn Fn(&[u8]) -> bool) -> io::Result<Option<Vec<u8>>> {
        let (dir, name) = self.of(file);
        dir.read(name, valid)
    }

    fn write(&self, file: NsFile, bytes: &[u8]) -> Result<(), String> {
        let (dir, name) = self.of(file);
        dir.write(name, bytes).map_err(|error| format!("{}: {error}", dir.dir().join(name).display()))
    }

    fn of(&self, file: NsFile) -> &(ConfigDir, String) {
        match file {
            NsFile::KeyValues => &self.key_values,
            NsFile::Settings => &self.settings,
        }
    }
}

/// What the thread works with.
pub struct Parts {
    /// The broker's settings and the owner's channel.
    pub broker: Option<(Arc<BrokerOptions>, ControlReceiver)>,
    /// The name server's files and jobs.
    pub namesrv: Option<(NsFiles, UnboundedReceiver<NsWork>)>,
    /// Messages to core 0.
    pub core: CoreHandle<CoreMessage>,
    /// To the main thread.
    pub events: Sender<Event>,
}

/// The running thread.
pub struct Control {
    thread: JoinHandle<()>,
    goodbye: watch::Sender<bool>,
}

impl Control {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread, or no signals.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (goodbye, asked) = watch::channel(false);
        let signals = {
            let _guard = runtime.enter();
            Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? }
        };
        let body = move || runtime.block_on(run(parts, signals, asked));
        let thread = std::thread::Builder::new().name("control".into()).spawn(body)?;
        Ok(Self { thread, goodbye })
    }

    /// Tells the name servers that the broker goes; [`Event::SaidGoodbye`] follows.
    pub fn say_goodbye(&self) {
        self.goodbye.send_replace(true);
    }

    /// Waits for the thread. Only after the cores have ended.
    pub fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("the control thread has panicked");
        }
    }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

async fn run(parts: Parts, signals: Signals, goodbye: watch::Receiver<bool>) {
    let Parts { broker, namesrv, core, events } = parts;
    tokio::spawn(watch_signals(signals, events.clone()));
    let broker = async {
        if let Some((options, receiver)) = broker {
            run_broker(options, receiver, &core, &events, goodbye).await;
        }
    };
    let namesrv = async {
        if let Some((files, work)) = namesrv {
            run_namesrv(files, work, &core).await;
        }
    };
    tokio::join!(broker, namesrv);
}

async fn run_broker(
    options: Arc<BrokerOptions>,
    mut receiver: ControlReceiver,
    core: &CoreHandle<CoreMessage>,
    events: &Sender<Event>,
    mut goodbye: watch::Receiver<bool>,
) {
    // The main thread waits for these as long as it lives: a failed send means that it is gone, and so is the process.
    let ready = {
        let mut receiver = receiver.clone();
        let events = events.clone();
        async move {
            if receiver.ready().await {
                let _ = events.send(Event::Ready);
            }
        }
    };
    let stop: Box<dyn Future<Output = ()> + Unpin> = Box::new(Box::pin(async move {
        let _ = goodbye.wait_for(|asked| *asked).await;
    }));
    let registration = async {
        receiver.announced().await;
        let post = |message| {
            if matches!(message, ControlMessage::Registered { .. }) {
                let _ = events.send(Event::Registered);
            }
            core.post(CoreMessage::Control(message));
        };
        registration::run(options, receiver, post, stop).await;
        let _ = events.send(Event::SaidGoodbye);
    };
    tokio::join!(ready, registration);
}

async fn run_namesrv(files: NsFiles, mut work: UnboundedReceiver<NsWork>, core: &CoreHandle<CoreMessage>) {
    while let Some(NsWork { token, job }) = work.recv().await {
        let done = job.run(|file, bytes| files.write(file, bytes));
        core.post(CoreMessage::Host(Box::new(NsFinished { token, done })));
    }
}

/// Signals that come together count as one: `timeout` and some supervisors signal the process and its group.
const SIGNAL_REPEAT: Duration = Duration::from_secs(1);

/// The first signal asks for an orderly stop, a later one ends the process.
async fn watch_signals(mut signals: Signals, events: Sender<Event>) {
    let mut first: Option<Instant> = None;
    loop {
        let name = tokio::select! {
            _ = signals.terminate.recv() => "SIGTERM",
            _ = signals.interrupt.recv() => "SIGINT",
        };
        let at = *first.get_or_insert_with(|| {
            let _ = events.send(Event::Stop(name));
            Instant::now()
        });
        if at.elapsed() >= SIGNAL_REPEAT {
            eprintln!("ringmq: a second signal: stopped at once; the next start recovers the store");
            std::process::exit(130);
        }
    }
}
