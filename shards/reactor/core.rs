//! The turn of a core.
//!
//! Reap completions, give frames, messages, results and timers, let the service end the turn, then carry out what it asked
//! and enter the kernel once. A core that has nothing to do sleeps in that one call, until a completion, a notification or
//! the next timer.
//! Invariants: nothing here blocks but that call; the time is read when an input is taken in (completions, mail; and once
//! more when the core is about to sleep), never for each message; a core sleeps only after it looked into its mailboxes behind its announcement (see `wake`).

use crate::background::{Background, BackgroundRequest, Job, JobOutput, Reply};
use crate::connections::Connections;
use crate::context::{Command, Context};
use crate::injector::{Injected, Injector};
use crate::limits::Limits;
use crate::listeners::Listeners;
use crate::mail::Mail;
use crate::service::{CoreId, Drain, Now, Service, Token};
use crate::spin::Spin;
use crate::timers::Timers;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sys::clock;
use sys::disk::DiskFile;
use sys::ring::{Event, Ring, RingSizes};

/// Longest sleep, when no timer says less.
const LONGEST_SLEEP_US: u64 = 60_000_000;

/// Longest sleep while something has to be asked again: room in a mailbox, the end of others in a stop.
const RETRY_US: u64 = 200;
const STOPPING_STEP_US: u64 = 2_000;

/// What a core is made of, besides its service.
pub(crate) struct Parts<M> {
    pub(crate) core: CoreId,
    pub(crate) limits: Limits,
    pub(crate) mail: Mail<M>,
    pub(crate) injectors: Vec<Arc<Injector<M>>>,
    pub(crate) listeners: Listeners<M>,
    pub(crate) background: Arc<dyn Background>,
    /// For each core: it has nothing left to do. Written by that core only.
    pub(crate) done: Arc<[AtomicBool]>,
}

/// A core and its service.
pub(crate) struct Core<S: Service> {
    service: S,
    cx: Context<S::Message>,
    connections: Connections,
    mail: Mail<S::Message>,
    injector: Arc<Injector<S::Message>>,
    injected: Vec<Injected<S::Message>>,
    listeners: Listeners<S::Message>,
    background: Arc<dyn Background>,
    background_jobs: usize,
    timers: Timers,
    /// Results that are known already; given next turn.
    results: VecDeque<(Token, io::Result<JobOutput>)>,
    commands: Vec<Command>,
    limits: Limits,
    /// Since when the core is to stop.
    stopping_us: Option<u64>,
    done: Arc<[AtomicBool]>,
    spin: Spin,
}

impl<S: Service> Core<S> {
    /// A core on the calling thread, which must be the one that runs it.
    pub(crate) fn new(service: S, parts: Parts<S::Message>) -> io::Result<Core<S>> {
        let Parts { core, limits, mail, injectors, listeners, background, done } = parts;
        let mut ring = Ring::new(RingSizes {
            entries: limits.ring_entries,
            buffers: limits.receive_buffers,
            buffer_bytes: limits.receive_buffer_bytes,
        })?;
        let injector = injectors[core.0 as usize].clone();
        ring.watch(injector.wake.raw_fd())?;
        let load = listeners.load(core);
        Ok(Core {
            service,
            cx: Context::new(core, injectors.len() as u16, &limits),
            connections: Connections::new(ring, limits.clone(), load),
            mail,
            injector,
            injected: Vec::new(),
            listeners,
            background,
            background_jobs: 0,
            timers: Timers::default(),
            results: VecDeque::new(),
            commands: Vec::new(),
            spin: Spin::new(limits.spin_us),
            limits,
            stopping_us: None,
            done,
        })
    }

    /// Runs until the engine stops. Whether this core was drained. Errors: the ring failed, which nothing survives.
    pub(crate) fn run(mut self) -> io::Result<bool> {
        loop {
            self.turn();
            if let Some(drained) = self.stop_is_over() {
                self.end_connections()?;
                return Ok(drained);
            }
            self.sleep_or_go_on()?;
        }
    }

    fn turn(&mut self) {
        self.cx.counters_mut().turns += 1;
        self.mail.set_rooms(&mut self.cx);
        self.give_completions();
        self.connections.give_ready(&mut self.service, &mut self.cx);
        self.give_mail();
        self.give_results_and_timers();
        self.connections.sweep(&mut self.cx);
        self.connections.tell_closed(&mut self.service, &mut self.cx);
        self.service.turn_end(&mut self.cx);
        self.ask_whether_done();
        self.carry_out();
    }

    fn give_completions(&mut self) {
        let count = self.connections.ring.reap(self.limits.completions_per_turn);
        self.cx.set_now(clock_now());
        for _ in 0..count {
            let Some(event) = self.connections.ring.next_event() else { break };
            let Core { service, cx, connections, .. } = self;
            match event {
                Event::Received { connection, result, armed } => {
                    connections.received(service, cx, connection, result, armed);
                }
                Event::Sent { connection, gather, from, result } => {
                    connections.sent(cx, connection, gather, from, result);
                }
                Event::Synced { token, result } => {
                    service.completed(cx, Token(token), result.map(|()| JobOutput::Synced));
                }
                Event::WroteBack(result) => cx.counters_mut().write_back_failures += u64::from(result.is_err()),
                Event::Accepted { listener, result, armed } => {
                    self.listeners.accepted(service, cx, connections, listener, result, armed);
                }
                Event::Woken { armed: true } | Event::Cancelled => {}
                Event::Woken { armed: false } => {
                    connections.ring.watch(self.injector.wake.raw_fd()).expect("the ring takes a poll");
                }
            }
        }
    }

    fn give_mail(&mut self) {
        if self.stopping_us.is_some() && (self.mail.has_arrived() || self.injector.is_filled()) {
            // Before the sender can see that its message was taken: else it might end while this core still needs it.
            self.done[self.cx.core().0 as usize].store(false, Ordering::Release);
        }
        self.mail.give(&mut self.service, &mut self.cx, clock_now);
        let mut injected = std::mem::take(&mut self.injected);
        self.injector.take(&mut injected);
        for item in injected.drain(..) {
            let Core { service, cx, connections, .. } = self;
            match item {
                Injected::Message(message) => service.message(cx, None, message),
                Injected::Accepted(socket, listener) => connections.adopt(service, cx, socket, listener),
                Injected::Listen(list) => self.listeners.listen(cx, &mut connections.ring, list),
                Injected::Completed(token, result) => {
                    self.background_jobs -= 1;
                    service.completed(cx, token, result);
                }
                Injected::Stop => {
                    self.stopping_us.get_or_insert(cx.now().mono_us);
                    self.listeners.close(&mut connections.ring);
                }
            }
        }
        self.injected = injected;
    }

    fn give_results_and_timers(&mut self) {
        let now_us = self.cx.now().mono_us;
        for _ in 0..self.results.len() {
            let Some((token, result)) = self.results.pop_front() else { break };
            self.service.completed(&mut self.cx, token, result);
        }
        while let Some(token) = self.timers.pop_due(now_us) {
            self.service.timer(&mut self.cx, token);
        }
        self.listeners.retry(&mut self.cx, &mut self.connections.ring);
    }

    /// Carries out what the service asked, then sends and publishes.
    fn carry_out(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        self.cx.swap_commands(&mut commands);
        for command in commands.drain(..) {
            match command {
                Command::Release(conn) => self.connections.released(&self.cx, conn),
                Command::Close(conn) => self.connections.close_by_service(&mut self.cx, conn, false),
                Command::CloseAfterFlush(conn) => self.connections.close_by_service(&mut self.cx, conn, true),
                Command::Sync { file, token } => self.sync(file, token),
                Command::WriteBack { file, offset, len } => self.write_back(file, offset, len),
                Command::Background { job, token } => self.start_job(job, token),
                Command::Timer { at_us, token } => {
                    assert!(self.timers.len() < self.limits.timers, "a service sets timers without end");
                    self.timers.set(at_us, token);
                }
            }
        }
        self.commands = commands;
        self.connections.send_outputs(&mut self.cx);
        self.mail.publish(&mut self.cx);
    }

    fn sync(&mut self, file: Arc<dyn DiskFile>, token: Token) {
        if file.raw_fd().is_none() {
            let result = file.sync_data().map(|()| JobOutput::Synced);
            self.results.push_back((token, result));
        } else if let Err(error) = self.connections.ring.sync(file, token.0) {
            self.results.push_back((token, Err(error)));
        }
    }

    fn write_back(&mut self, file: Arc<dyn DiskFile>, offset: u64, len: u64) {
        let result = match file.raw_fd() {
            None => file.start_write_back(offset, len),
            Some(_) => self.connections.ring.write_back(file, offset, len),
        };
        self.cx.counters_mut().write_back_failures += u64::from(result.is_err());
    }

    fn start_job(&mut self, job: Job, token: Token) {
        if self.background_jobs >= self.limits.background_jobs {
            self.cx.counters_mut().background_refused += 1;
            let error = io::Error::new(io::ErrorKind::ResourceBusy, "too many background jobs are under way");
            self.results.push_back((token, Err(error)));
            return;
        }
        self.background_jobs += 1;
        let injector = self.injector.clone();
        let reply = Reply::new(move |result| injector.push(Injected::Completed(token, result)));
        self.background.submit(BackgroundRequest { job, reply });
    }

    fn ask_whether_done(&mut self) {
        let Some(since_us) = self.stopping_us else { return };
        // A peer that does not read must not use up the time of the others.
        let waits_for_sends = self.cx.now().mono_us.saturating_sub(since_us) < self.limits.close_flush_ms * 1000;
        let idle = self.background_jobs == 0
            && self.results.is_empty()
            && self.connections.ring.file_operations() == 0
            && (self.connections.ring.sends() == 0 || !waits_for_sends)
            && self.mail.is_drained()
            && !self.mail.has_arrived();
        let asked_us = clock::monotonic_us();
        let ready = self.service.stopping(&mut self.cx) == Drain::Done;
        // What the service does itself (closing its files) is work, not waiting: it has the time that it takes.
        self.stopping_us = Some(since_us + (clock::monotonic_us() - asked_us));
        let done = ready && idle && !self.asks_something();
        self.done[self.cx.core().0 as usize].store(done, Ordering::Release);
    }

    /// Whether the service asked for something in this turn that is not carried out yet.
    fn asks_something(&mut self) -> bool {
        let cores = self.cx.cores();
        self.cx.has_requests() || (0..cores).any(|to| !self.cx.outbox(CoreId(to)).is_empty())
    }

    /// `Some` when the core is to end: whether it was drained. A core that is done waits for the others, which end by themselves.
    fn stop_is_over(&mut self) -> Option<bool> {
        let since_us = self.stopping_us?;
        if self.done.iter().all(|done| done.load(Ordering::Acquire)) {
            return Some(true);
        }
        let own = &self.done[self.cx.core().0 as usize];
        let late = clock::monotonic_us().saturating_sub(since_us) >= self.limits.stop_ms * 1000;
        if own.load(Ordering::Acquire) || !late {
            return None;
        }
        own.store(true, Ordering::Release);
        Some(false)
    }

    /// The one call of a turn.
    fn sleep_or_go_on(&mut self) -> io::Result<()> {
        let wait = self.wait_us();
        if wait == 0 {
            return self.connections.ring.enter(None);
        }
        let since_us = clock::monotonic_us();
        if self.spin.is_worthwhile() {
            self.connections.ring.enter(None)?;
            if self.finds_work(since_us, wait.min(self.limits.spin_us)) || wait <= self.limits.spin_us {
                return self.connections.ring.enter(None);
            }
        }
        self.injector.wake.before_sleep();
        if self.mail.has_arrived() || self.injector.is_filled() {
            self.injector.wake.awake();
            return self.connections.ring.enter(None);
        }
        self.cx.counters_mut().sleeps += 1;
        let result = self.connections.ring.enter(Some(Duration::from_micros(wait)));
        self.injector.wake.awake();
        self.spin.slept(clock::monotonic_us() - since_us);
        result
    }

    /// How long the core may sleep; 0 when there is something to do.
    fn wait_us(&mut self) -> u64 {
        let refused = self.cx.take_refused();
        if self.connections.has_work()
            || !self.results.is_empty()
            || self.mail.has_arrived()
            || self.injector.is_filled()
            || self.connections.ring.has_completions()
        {
            return 0;
        }
        let due_us = [self.timers.next_us(), self.connections.next_us(), self.listeners.next_us()];
        let mut wait = LONGEST_SLEEP_US;
        if let Some(next_us) = due_us.into_iter().flatten().min() {
            wait = wait.min(next_us.saturating_sub(clock::monotonic_us()));
        }
        if self.stopping_us.is_some() {
            wait = wait.min(STOPPING_STEP_US);
        }
        if refused { wait.min(RETRY_US) } else { wait }
    }

    /// Looks for work until `since_us + limit_us`. Whether there is some.
    fn finds_work(&mut self, since_us: u64, limit_us: u64) -> bool {
        loop {
            let found = self.mail.has_arrived() || self.injector.is_filled() || self.connections.ring.has_completions();
            let waited_us = clock::monotonic_us() - since_us;
            if found {
                self.spin.found(waited_us);
                return true;
            }
            if waited_us >= limit_us {
                self.spin.in_vain();
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Closes what is open and waits for the operations to end, so that their memory can be freed.
    fn end_connections(&mut self) -> io::Result<()> {
        self.connections.abort_all(&mut self.cx);
        for _ in 0..100 {
            if self.connections.open() == 0 {
                break;
            }
            self.connections.ring.enter(Some(Duration::from_millis(10)))?;
            self.connections.ring.reap(usize::MAX);
            while let Some(event) = self.connections.ring.next_event() {
                match event {
                    Event::Received { connection, result, armed } => {
                        self.connections.received(&mut self.service, &mut self.cx, connection, result, armed);
                    }
                    Event::Sent { connection, gather, from, result } => {
                        self.connections.sent(&mut self.cx, connection, gather, from, result);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The time now. Read after an input was taken in, not before: a core may lose its processor in between, and what it then takes
/// in must not get a time before it was sent.
fn clock_now() -> Now {
    Now { mono_us: clock::monotonic_us(), wall_ms: clock::wall_ms() }
}
