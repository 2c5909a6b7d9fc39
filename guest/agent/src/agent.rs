//! The loop: one thread waits for everything, and each thing that happens is dealt with in a bounded step. What may
//! block for long, the file system, is done by a few threads (see work.rs).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::cgroups::Cgroups;
use crate::epoll::{Epoll, Readiness, Source};
use crate::frames::Parser;
use crate::freeze::Freezing;
use crate::halt::{self, Halt};
use crate::jobs::Tasks;
use crate::kill::Kill;
use crate::options::{Options, Place};
use crate::orphans::Orphans;
use crate::port::Port;
use crate::sessions::Sessions;
use crate::spawn::Stack;
use crate::stream::Role;
use crate::streams::Streams;
use crate::sys::{self, check, owned};
use crate::timers::{Due, Timers};
use crate::work::Workers;

/// While the host does not read, neither do we; but for a HELLO, since nothing is written before that.
const MAX_OUTBOX_BYTES: usize = 1024 * 1024;
/// Reads from the port in one turn, so that a flood cannot keep the rest waiting.
const READS_PER_TURN: usize = 64;
const HOST_LOOK_MS: u64 = 1_000;
const GOODBYE_MS: u64 = 1_000;

pub struct Agent {
    pub options: Options,
    pub epoll: Epoll,
    pub port: Port,
    pub streams: Streams,
    pub sessions: Sessions,
    pub orphans: Orphans,
    pub timers: Timers,
    pub cgroups: Cgroups,
    pub kills: Vec<Kill>,
    pub workers: Workers,
    pub tasks: Tasks,
    pub last_serial: u64,
    /// Ended sessions with a terminal, the oldest first.
    pub kept: VecDeque<u32>,
    pub freezing: Option<Freezing>,
    pub is_awake: bool,
    /// /dev/null, for commands' standard input.
    pub null: OwnedFd,
    /// Every read from a command goes through here.
    pub scratch: Vec<u8>,
    pub stack: Stack,
    /// Outputs that have been read to their end. Letting go of them takes longer than an answer should wait.
    pub spent: Vec<OwnedFd>,
    /// Requests of which more frames are to come.
    pub partial: BTreeMap<u32, Vec<u8>>,
    signals: OwnedFd,
    listener: Option<OwnedFd>,
    halt: Option<Halt>,
    is_looking_for_host: bool,
}

impl Agent {
    /// `port` or, for tests, `listener` is where the host comes from.
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
        let signals = block_signals()?;
        let workers = Workers::new()?;
        epoll.watch(workers.bell(), Source::Workers)?;
        epoll.watch(signals.as_raw_fd(), Source::Signals)?;
        if let Some(fd) = port.as_ref() {
            epoll.watch_input(fd.as_raw_fd(), Source::Port)?;
        }
        if let Some(fd) = listener.as_ref() {
            epoll.watch(fd.as_raw_fd(), Source::Listener)?;
        }
        Ok(Agent {
            options,
            epoll,
            port: port.map_or_else(Port::socket, Port::virtio),
            streams: Streams::default(),
            sessions: Sessions::default(),
            orphans: Orphans::default(),
            timers: Timers::default(),
            cgroups,
            kills: Vec::new(),
            workers,
            tasks: Tasks::new(),
            last_serial: 0,
            kept: VecDeque::new(),
            freezing: None,
            is_awake: false,
            null: sys::open(c"/dev/null", libc::O_RDWR)?,
            scratch: vec![0; crate::outputs::CHUNK_BYTES],
            stack: Stack::default(),
            spent: Vec::new(),
            partial: BTreeMap::new(),
            signals,
            listener,
            halt: None,
            is_looking_for_host: false,
        })
    }

    /// Serves until a signal ends it.
    pub fn run(mut self) -> Halt {
        let mut parser = Parser::default();
        let mut ready: Vec<Readiness> = Vec::new();
        loop {
            let has_more = self.port.is_readable() && self.outbox_has_room();
            let timeout_ms = if has_more || self.sessions.has_again() {
                0
            } else {
                self.timers.timeout_ms()
            };
            ready.clear();
            ready.extend(self.epoll.wait(timeout_ms));
            for readiness in &ready {
                self.happened(*readiness, &mut parser);
            }
            while let Some(due) = self.timers.take_due() {
                self.due(due);
            }
            self.read_port(&mut parser);
            for key in self.sessions.take_again() {
                self.pump(key);
            }
            self.send();
            self.tidy();
            if let Some(halt) = self.halt {
                self.say_goodbye(halt);
                return halt;
            }
        }
    }

    fn happened(&mut self, readiness: Readiness, parser: &mut Parser) {
        match readiness.source {
            Source::Port => self.port.ready(readiness.readable, readiness.writable),
            Source::Listener => self.accept(parser),
            Source::Signals => self.take_signals(),
            Source::Workers => self.take_reports(),
            Source::Session(key, index) => {
                let session = self.sessions.get_mut(key);
                let output =
                    session.and_then(|session| session.outputs.get_mut(usize::from(index)));
                if let Some(output) = output {
                    output.is_readable |= readiness.readable;
                    self.sessions.again(key);
                }
            }
            Source::Orphan(key) => self.orphans.discard(key, &mut self.scratch),
        }
    }

    fn due(&mut self, due: Due) {
        match due {
            Due::Drain(key) => self.drain_is_over(key),
            Due::Kills => self.kills_are_due(),
            Due::Freeze => self.look_at_freezer(),
            Due::Forget(key) => self.forget(key),
            Due::Host => {
                self.is_looking_for_host = false;
                self.port.ready(true, true);
            }
        }
    }

    fn read_port(&mut self, parser: &mut Parser) {
        for _ in 0..READS_PER_TURN {
            if !self.outbox_has_room() {
                return;
            }
            let count = self.port.read(parser.space());
            if count == 0 {
                break;
            }
            parser.filled(count);
            while let Some(frame) = parser.next() {
                self.take(frame);
            }
        }
        if !self.port.has_host() {
            parser.forget_half_data();
            if !self.is_looking_for_host {
                self.is_looking_for_host = true;
                self.timers.after_ms(HOST_LOOK_MS, Due::Host);
            }
        }
    }

    fn outbox_has_room(&self) -> bool {
        self.port.is_silent() || self.streams.outbox_bytes() < MAX_OUTBOX_BYTES
    }

    /// Fills the pipe as far as it goes, and lets those go on who waited for that.
    fn send(&mut self) {
        loop {
            self.streams.pump();
            let is_empty = self.streams.outbox().is_empty();
            self.port.flush(self.streams.outbox());
            if is_empty || !self.streams.outbox().is_empty() {
                break;
            }
        }
        if let (Some(fd), Some(is_wanted)) = (
            self.port.fd(),
            self.port.awaits_room_anew(self.streams.outbox()),
        ) {
            let _ = self.epoll.watch_output_too(fd, Source::Port, is_wanted);
        }
        for (stream, role) in self.streams.take_drained() {
            match role {
                Role::Foreground(key) => self.sessions.again(key),
                Role::Work => self.advance_job(stream),
                Role::Attached(_) | Role::Terminal(_) | Role::Waiting(_) | Role::Call => {}
            }
        }
        for (stream, role) in self.streams.take_closed() {
            if let Role::Foreground(key) | Role::Attached(key) | Role::Terminal(key) = role {
                self.detach(stream, key, &[]);
            }
        }
    }

    /// What nobody waits for, done when all answers are on their way.
    fn tidy(&mut self) {
        self.spent.clear();
        self.cgroups.sweep();
    }

    fn accept(&mut self, parser: &mut Parser) {
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let (address, length) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the peer's address is not asked for.
        while let Ok(connection) =
            owned(unsafe { libc::accept4(listener.as_raw_fd(), address, length, flags) })
        {
            if self
                .epoll
                .watch_input(connection.as_raw_fd(), Source::Port)
                .is_ok()
            {
                self.port.replace(connection);
                parser.reset();
            }
        }
    }

    fn take_signals(&mut self) {
        const INFO_BYTES: usize = std::mem::size_of::<libc::signalfd_siginfo>();
        let mut infos = [0u8; 8 * INFO_BYTES];
        let mut has_children = false;
        while let Ok(Some(count)) = sys::read(self.signals.as_raw_fd(), &mut infos) {
            for info in infos[..count].chunks_exact(INFO_BYTES) {
                // ssi_signo comes first.
                let signal = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]) as i32;
                match signal {
                    libc::SIGCHLD => has_children = true,
                    libc::SIGUSR2 => self.halt = Some(Halt::PowerOff),
                    _ => self.halt = Some(Halt::Reboot),
                }
            }
            if count < infos.len() {
                break;
            }
        }
        if has_children {
            self.reap();
        }
    }

    fn say_goodbye(&mut self, halt: Halt) {
        if self.options.place == Place::Machine {
            halt::notify(&mut self.streams, halt);
            self.port
                .flush_within(self.streams.outbox(), halt::NOTICE_MS);
            return;
        }
        self.tasks.clear();
        self.kill_everything(GOODBYE_MS);
    }
}

/// Signals that are read rather than delivered. SIGPIPE is blocked and never read: a write tells by its error. Programs
/// that are started get an empty mask.
fn block_signals() -> io::Result<OwnedFd> {
    // SAFETY: the sets are ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGUSR2] {
            libc::sigaddset(&mut set, signal);
        }
        let fd = owned(libc::signalfd(
            -1,
            &set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        ))?;
        libc::sigaddset(&mut set, libc::SIGPIPE);
        check(libc::sigprocmask(
            libc::SIG_BLOCK,
            &set,
            std::ptr::null_mut(),
        ))?;
        Ok(fd)
    }
}

/// A listening UNIX socket; an old file of that name is in the way and goes.
pub fn listen(path: &std::path::Path) -> io::Result<OwnedFd> {
    use std::os::unix::net::UnixListener;
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    // SAFETY: `into_raw_fd` gives the descriptor away.
    Ok(unsafe { OwnedFd::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(listener)) })
}
