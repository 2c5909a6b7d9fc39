//! The loop. One thread waits for all events, and handles each in a bounded step; file operations, which may block, run
//! on a few worker threads (see workers.rs).
//!
//! One iteration: events and timers ─► frames from the host ─► output of commands ─► frames to the host ─► effects

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::cgroups::Cgroups;
use crate::dispatcher::Dispatcher;
use crate::effects::Effect;
use crate::epoll::{Epoll, Readiness, Source};
use crate::frames::Parser;
use crate::freezer::Freezer;
use crate::gateway::process::GatewayProcess;
use crate::halt::{self, Halt, Stop};
use crate::options::{Mode, Options};
use crate::orphans::Orphans;
use crate::outside::Outside;
use crate::port::Port;
use crate::sessions::Logs;
use crate::signals::Signals;
use crate::supervisor::Supervisor;
use crate::sys::{self, owned};
use crate::tasks::Tasks;
use crate::timers::{Due, Timers};
use crate::wake::WakeState;

/// While more than this waits for the host, the port is not read; except before a HELLO, since nothing is written until
/// then.
const MAX_OUTBOX_BYTES: usize = 1024 * 1024;
/// Bounds how long a flood from the host delays everything else.
const READS_PER_ITERATION: usize = 64;
/// The part of the guest's memory that the kept output of all commands may take.
const KEPT_SHARE: usize = 8;
const HOST_POLL_MS: u64 = 1_000;
const SHUTDOWN_MS: u64 = 1_000;

pub struct Agent {
    mode: Mode,
    epoll: Epoll,
    port: Port,
    parser: Parser,
    listener: Option<OwnedFd>,
    signals: Signals,
    timers: Timers,
    orphans: Orphans,
    dispatcher: Dispatcher,
    is_host_timer_armed: bool,
    /// Asked for by the host, and under way.
    stop: Option<Stop>,
    halt: Option<Halt>,
    /// In a VM with a network.
    gateway: Option<GatewayProcess>,
}

impl Agent {
    /// The host comes from `port` or, in tests, from `listener`.
    pub fn new(
        options: Options,
        port: Option<OwnedFd>,
        listener: Option<OwnedFd>,
    ) -> io::Result<Agent> {
        let cgroups = match &options.cgroup {
            Some(path) => Cgroups::below(path)?,
            None => Cgroups::default(),
        };
        let epoll = Epoll::new()?;
        let signals = Signals::block(&options.mode)?;
        let tasks = Tasks::new()?;
        epoll.watch(tasks.eventfd(), Source::Workers)?;
        epoll.watch(signals.fd(), Source::Signals)?;
        if let Some(fd) = port.as_ref() {
            epoll.watch_input(fd.as_raw_fd(), Source::Port)?;
        }
        if let Some(fd) = listener.as_ref() {
            epoll.watch(fd.as_raw_fd(), Source::Listener)?;
        }
        let outside = match (&options.mode, &options.cgroup) {
            (Mode::Machine, Some(commands)) => Some(Outside::of(commands)?),
            _ => None,
        };
        let kept_bytes = options
            .kept_bytes
            .unwrap_or_else(|| sys::total_memory() / KEPT_SHARE);
        let logs = Logs::within(kept_bytes);
        let supervisor = Supervisor::new(cgroups, Freezer::new(outside), logs)?;
        let wake_state = WakeState::new(&options.mode)?;
        Ok(Agent {
            mode: options.mode,
            epoll,
            port: port.map_or_else(Port::socket, Port::virtio),
            parser: Parser::default(),
            listener,
            signals,
            timers: Timers::default(),
            orphans: Orphans::default(),
            dispatcher: Dispatcher::new(wake_state, options.versions, supervisor, tasks),
            is_host_timer_armed: false,
            stop: None,
            halt: None,
            gateway: None,
        })
    }

    pub fn keep(&mut self, gateway: GatewayProcess) {
        self.dispatcher.supervisor().spare(gateway.pid());
        self.gateway = Some(gateway);
    }

    /// Before its end is reaped with all others.
    fn look_after_gateway(&mut self) {
        let pause_ms = self.gateway.as_mut().and_then(GatewayProcess::look);
        if let Some(pause_ms) = pause_ms {
            self.dispatcher.supervisor().spare(None);
            self.timers.after_ms(pause_ms, Due::Gateway);
        }
    }

    fn restart_gateway(&mut self) {
        let Some(gateway) = self.gateway.as_mut().filter(|_| self.stop.is_none()) else {
            return;
        };
        if let Some(pause_ms) = gateway.restart() {
            self.timers.after_ms(pause_ms, Due::Gateway);
        }
        self.dispatcher.supervisor().spare(gateway.pid());
    }

    /// Serves until a signal ends it.
    pub fn run(mut self) -> Halt {
        let mut ready: Vec<Readiness> = Vec::new();
        loop {
            ready.clear();
            let timeout_ms = self.timeout_ms();
            ready.extend(self.epoll.wait(timeout_ms));
            for readiness in &ready {
                self.handle(*readiness);
            }
            while let Some(due) = self.timers.take_due() {
                match due {
                    Due::Host => self.poll_host(),
                    Due::Halt => self.continue_stop(),
                    Due::Gateway => self.restart_gateway(),
                    due => self.dispatcher.handle_due(due),
                }
            }
            self.read_port();
            self.dispatcher.pump_ready(&self.epoll);
            self.send();
            self.apply_effects();
            if let Some(halt) = self.halt {
                self.shut_down(halt);
                return halt;
            }
        }
    }

    fn timeout_ms(&mut self) -> i32 {
        let can_read = self.port.is_readable() && self.has_outbox_room();
        if can_read || self.dispatcher.has_ready() {
            return 0;
        }
        self.timers.timeout_ms()
    }

    fn handle(
        &mut self,
        Readiness {
            source,
            readable,
            writable,
        }: Readiness,
    ) {
        match source {
            Source::Port => self.port.ready(readable, writable),
            Source::Listener => self.accept(),
            Source::Signals => self.read_signals(),
            Source::Workers => self.dispatcher.take_reports(&self.epoll),
            Source::Session(key, index) => {
                let sessions = self.dispatcher.supervisor().sessions();
                sessions.note_readable(key, index, readable);
            }
            Source::Job(stream) => self.dispatcher.note_job(stream),
            Source::Dial(stream) => self.dispatcher.note_dial(stream, readable),
            Source::Orphan(key) => self.orphans.discard(key),
        }
    }

    /// Reads a port without a host again, in case the event that one has connected was lost.
    fn poll_host(&mut self) {
        self.is_host_timer_armed = false;
        self.port.ready(true, true);
    }

    fn read_signals(&mut self) {
        let received = self.signals.read();
        self.halt = received.halt.or(self.halt);
        if received.has_children {
            self.look_after_gateway();
            self.dispatcher.reap();
            self.end_stop();
        }
    }

    /// The loop goes on meanwhile, so that output and exits still reach the host.
    fn begin_stop(&mut self, term_ms: u32) {
        if self.stop.is_some() {
            return;
        }
        match self.mode {
            Mode::Machine => halt::terminate_all(),
            Mode::Socket { .. } => self.dispatcher.supervisor().terminate(),
        }
        let stop = Stop::within(term_ms);
        self.timers.after_ms(stop.next_ms(), Due::Halt);
        self.stop = Some(stop);
        self.end_stop();
    }

    fn continue_stop(&mut self) {
        self.dispatcher.supervisor().hang_up();
        self.end_stop();
        if let Some(stop) = self.stop.as_ref().filter(|_| self.halt.is_none()) {
            self.timers.after_ms(stop.next_ms(), Due::Halt);
        }
    }

    /// Powers off if all programs have ended, or their time is up.
    fn end_stop(&mut self) {
        if self.stop.as_ref().is_some_and(Stop::is_over) {
            self.halt = Some(Halt::PowerOff);
        }
    }

    /// A new connection replaces the old one.
    fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let (address, length) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the peer's address is not asked for.
        while let Ok(connection) =
            owned(unsafe { libc::accept4(listener.as_raw_fd(), address, length, flags) })
        {
            let fd = connection.as_raw_fd();
            if self.epoll.watch_input(fd, Source::Port).is_ok() {
                self.port.replace(connection);
                self.parser.reset();
            }
        }
    }

    fn has_outbox_room(&self) -> bool {
        self.port.awaits_hello() || self.dispatcher.outbox_bytes() < MAX_OUTBOX_BYTES
    }

    fn read_port(&mut self) {
        for _ in 0..READS_PER_ITERATION {
            if !self.has_outbox_room() {
                return;
            }
            let count = self.port.read(self.parser.space());
            if count == 0 {
                break;
            }
            self.parser.filled(count);
            while let Some(frame) = self.parser.next() {
                let is_new_epoch = self.dispatcher.receive(&frame, &self.epoll);
                if is_new_epoch {
                    self.port.hello_received();
                }
            }
        }
        if !self.port.has_host() {
            self.parser.forget_half_data();
            if !self.is_host_timer_armed {
                self.is_host_timer_armed = true;
                self.timers.after_ms(HOST_POLL_MS, Due::Host);
            }
        }
    }

    /// Writes as much as the pipe takes.
    fn send(&mut self) {
        let outbox = loop {
            let outbox = self.dispatcher.fill_outbox();
            let was_empty = outbox.is_empty();
            self.port.flush(outbox);
            if was_empty || !outbox.is_empty() {
                break outbox;
            }
        };
        if let (Some(fd), Some(is_wanted)) = (self.port.fd(), self.port.awaits_room_changed(outbox))
        {
            let _ = self.epoll.watch_output_too(fd, Source::Port, is_wanted);
        }
        self.dispatcher.sent();
    }

    /// After all answers are sent, so that none waits for it.
    fn apply_effects(&mut self) {
        let mut asked_ms = None;
        for effect in self.dispatcher.supervisor().effects() {
            match effect {
                Effect::Halt { term_ms } => asked_ms = Some(term_ms),
                Effect::Arm { after_ms, due } => self.timers.after_ms(after_ms, due),
                Effect::Close(fd) => drop(fd),
                Effect::Orphan(fd) => self.orphans.adopt(fd, &self.epoll),
            }
        }
        self.dispatcher.supervisor().sweep_cgroups();
        if let Some(term_ms) = asked_ms {
            self.begin_stop(term_ms);
        }
    }

    fn shut_down(&mut self, halt: Halt) {
        if self.mode == Mode::Machine {
            let outbox = self.dispatcher.notify(halt);
            self.port.flush_within(outbox, halt::NOTICE_MS);
            return;
        }
        self.dispatcher.shut_down(SHUTDOWN_MS);
    }
}
