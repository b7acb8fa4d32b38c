//! What runs on each core: the broker's part of it and, on core 0, the name server.
//!
//! Role: joins the two behind one `reactor::Service`. Each connection belongs to the listener that accepted it, each token
//! to the kind in it. Invariants: the name server's connections are all on core 0; a frame that does not decode closes its
//! connection. It serves no request itself.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use broker::router::{TokenKind, split, token};
use broker::{BrokerCore, CoreMessage};
use namesrv::{NameServer, NsAction, NsDone, NsOrigin};
use reactor::{CloseReason, ConnectionId, Context, CoreId, Drain, JobOutput, ListenerId, Service, Token};
use remoting::Command;
use tokio::sync::mpsc::UnboundedSender;

use crate::control::NsWork;

/// The name server's port.
pub const NAMESRV_LISTENER: ListenerId = ListenerId(3);
/// Period of the name server's clock.
const NAMESRV_TICK_US: u64 = 1_000_000;

/// A finished job of the name server, on its way back to core 0.
pub struct NsFinished {
    /// Token of the job.
    pub token: u64,
    /// What came of it.
    pub done: NsDone,
}

/// The service of one core.
pub struct CoreService {
    broker: Option<BrokerCore>,
    namesrv: Option<NamesrvHost>,
    /// Cores whose shards were all closed in order.
    clean: Arc<AtomicUsize>,
    counted: bool,
}

impl CoreService {
    /// A core with these parts. `clean` counts the cores that end in order.
    #[must_use]
    pub fn new(broker: Option<BrokerCore>, namesrv: Option<NamesrvHost>, clean: Arc<AtomicUsize>) -> Self {
        Self { broker, namesrv, clean, counted: false }
    }

    fn namesrv_of(&mut self, conn: ConnectionId) -> Option<&mut NamesrvHost> {
        self.namesrv.as_mut().filter(|namesrv| namesrv.peer(conn).is_some())
    }
}

impl Service for CoreService {
    type Message = CoreMessage;

    fn connected(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, listener: ListenerId, peer: SocketAddr) {
        match (&mut self.namesrv, &mut self.broker) {
            (Some(namesrv), _) if listener == NAMESRV_LISTENER => namesrv.connected(cx, conn, peer),
            (_, Some(broker)) => broker.connected(conn, listener, peer),
            _ => cx.close(conn),
        }
    }

    fn frame(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, frame: &[u8]) {
        if let Some(namesrv) = self.namesrv_of(conn) {
            namesrv.frame(cx, conn, frame);
        } else if let Some(broker) = &mut self.broker {
            broker.frame(cx, conn, frame);
        }
    }

    fn closed(&mut self, _cx: &mut Context<CoreMessage>, conn: ConnectionId, why: CloseReason) {
        if let Some(namesrv) = self.namesrv_of(conn) {
            namesrv.closed(conn);
        } else if let Some(broker) = &mut self.broker {
            broker.closed(conn, why);
        }
    }

    fn message(&mut self, cx: &mut Context<CoreMessage>, _from: Option<CoreId>, message: CoreMessage) {
        match message {
            CoreMessage::Host(message) => match (message.downcast::<NsFinished>(), &mut self.namesrv) {
                (Ok(finished), Some(namesrv)) => namesrv.finished(cx, *finished),
                _ => tracing::error!("a message for a name server that is not here"),
            },
            message => {
                if let Some(broker) = &mut self.broker {
                    broker.message(cx, message);
                }
            }
        }
    }

    fn completed(&mut self, cx: &mut Context<CoreMessage>, token: Token, result: io::Result<JobOutput>) {
        if let Some(broker) = &mut self.broker {
            broker.completed(cx, token, result);
        }
    }

    fn timer(&mut self, cx: &mut Context<CoreMessage>, token: Token) {
        match (split(token).0, &mut self.namesrv, &mut self.broker) {
            (TokenKind::NameServer, Some(namesrv), _) => namesrv.tick(cx),
            (_, _, Some(broker)) => broker.timer(cx, token),
            _ => {}
        }
    }

    fn turn_end(&mut self, cx: &mut Context<CoreMessage>) {
        if let Some(broker) = &mut self.broker {
            broker.turn_end(cx);
        }
    }

    fn stopping(&mut self, cx: &mut Context<CoreMessage>) -> Drain {
        let namesrv = self.namesrv.as_ref().map_or(Drain::Done, NamesrvHost::stopping);
        let broker = self.broker.as_mut().map_or(Drain::Done, |broker| broker.stopping(cx));
        if namesrv == Drain::Busy || broker == Drain::Busy {
            return Drain::Busy;
        }
        if !self.counted && self.broker.as_ref().is_none_or(BrokerCore::closed_cleanly) {
            self.counted = true;
            self.clean.fetch_add(1, Ordering::Release);
        }
        Drain::Done
    }
}

/// The name server on core 0: its connections, and the way to the control thread.
pub struct NamesrvHost {
    server: NameServer,
    /// By slot of the connection: generation and peer.
    peers: Vec<Option<(u32, SocketAddr)>>,
    control: UnboundedSender<NsWork>,
    ticking: bool,
    actions: Vec<NsAction>,
}

impl NamesrvHost {
    /// Hosts a name server; its jobs go to `control`.
    #[must_use]
    pub fn new(server: NameServer, control: UnboundedSender<NsWork>) -> Self {
        Self { server, peers: Vec::new(), control, ticking: false, actions: Vec::new() }
    }

    fn peer(&self, conn: ConnectionId) -> Option<SocketAddr> {
        let (generation, peer) = (*self.peers.get(conn.slot as usize)?)?;
        (generation == conn.generation).then_some(peer)
    }

    fn connected(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, peer: SocketAddr) {
        let slot = conn.slot as usize;
        if self.peers.len() <= slot {
            self.peers.resize(slot + 1, None);
        }
        self.peers[slot] = Some((conn.generation, peer));
        self.arm(cx);
    }

    fn frame(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, frame: &[u8]) {
        let Some(peer) = self.peer(conn) else { return };
        match Command::decode(frame) {
            Ok(request) => {
                let origin = NsOrigin { connection: conn, peer };
                self.server.request(cx.now(), origin, request, &mut self.actions);
                self.act(cx);
            }
            Err(error) => {
                tracing::info!(%peer, %error, "closed: a frame that cannot be trusted");
                cx.close(conn);
            }
        }
    }

    fn closed(&mut self, conn: ConnectionId) {
        self.peers[conn.slot as usize] = None;
        self.server.connection_closed(conn);
    }

    fn finished(&mut self, cx: &mut Context<CoreMessage>, finished: NsFinished) {
        self.server.done(cx.now(), finished.token, finished.done, &mut self.actions);
        self.act(cx);
    }

    fn tick(&mut self, cx: &mut Context<CoreMessage>) {
        self.ticking = false;
        self.server.tick(cx.now(), &mut self.actions);
        self.act(cx);
        // Without connections there is no broker that could fall silent.
        if self.peers.iter().any(Option::is_some) {
            self.arm(cx);
        }
    }

    fn stopping(&self) -> Drain {
        if self.server.is_busy() { Drain::Busy } else { Drain::Done }
    }

    fn arm(&mut self, cx: &mut Context<CoreMessage>) {
        if !self.ticking {
            self.ticking = true;
            cx.timer_at(cx.now().mono_us + NAMESRV_TICK_US, token(TokenKind::NameServer, 0));
        }
    }

    fn act(&mut self, cx: &mut Context<CoreMessage>) {
        for action in self.actions.drain(..) {
            match action {
                NsAction::Reply(conn, response) => {
                    if let Some(out) = cx.output(conn) {
                        response.encode(out.bytes());
                    }
                }
                // The control thread outlives the cores: it ends after they have.
                NsAction::Run(token, job) => drop(self.control.send(NsWork { token, job })),
                NsAction::Hold(conn) => cx.hold(conn),
                NsAction::Release(conn) => cx.release(conn),
                NsAction::Close(conn) => cx.close(conn),
            }
        }
    }
}
