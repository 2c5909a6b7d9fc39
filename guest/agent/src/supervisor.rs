//! Starts commands, moves their input and output, signals and freezes them, and ends their sessions.
//!
//! ```text
//!   EXEC, PTY ─► launcher ─► sessions ─► RESULT, when a session is over
//!                               ▲
//!   SIGNAL, STOP ─► kills ──────┤        reap (SIGCHLD) ─► the leader's exit
//! ```

use std::io;

use crate::cgroups::Cgroups;
use crate::effects::{Effect, Effects};
use crate::freezer::Freezer;
use crate::kills::{self, Kills};
use crate::launcher::Launcher;
use crate::protocol::{empty, Code, Failure, Selector};
use crate::reap;
use crate::session::{self, redraw::QUIET_MS};
use crate::sessions::{Logs, Sessions};
use crate::streams::Streams;
use crate::sys::{monotonic_ns, sleep_ms};
use crate::timers::Due;
use starts::StuckStarts;

mod starts;

/// After a leader's end, a pipe that another process holds open is read for this long.
const DRAIN_MS: u64 = 100;
/// How long an ended session is kept for late clients.
const KEPT_MS: u64 = 5 * 60 * 1_000;

pub struct Supervisor {
    sessions: Sessions,
    launcher: Launcher,
    cgroups: Cgroups,
    kills: Kills,
    freezer: Freezer,
    gateway: Option<libc::pid_t>,
    stuck: StuckStarts,
    scratch: Vec<u8>,
    effects: Effects,
}

impl Supervisor {
    pub fn new(cgroups: Cgroups, freezer: Freezer, logs: Logs) -> io::Result<Supervisor> {
        Ok(Supervisor {
            sessions: Sessions::new(logs),
            launcher: Launcher::new()?,
            cgroups,
            kills: Kills::new()?,
            freezer,
            gateway: None,
            stuck: StuckStarts::default(),
            scratch: session::scratch(),
            effects: Effects::new(),
        })
    }

    /// Requests to the loop since the last call.
    pub fn effects(&mut self) -> impl Iterator<Item = Effect> + '_ {
        self.effects.drain(..)
    }

    pub fn sessions(&mut self) -> &mut Sessions {
        &mut self.sessions
    }

    /// A new epoch: pending kills and FREEZE have no stream to answer.
    pub fn forget_streams(&mut self) {
        self.kills.forget_streams();
        self.freezer.forget_stream();
    }

    /// Reuses or removes cgroups that have become empty.
    pub fn sweep_cgroups(&mut self) {
        self.cgroups.sweep();
    }

    pub fn connect(
        &mut self,
        stream: u32,
        tag: &[u8],
        is_whole: bool,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        let key = self.sessions.connect(stream, tag, is_whole, streams)?;
        self.effects.push(Effect::arm(QUIET_MS, Due::Redraw(key)));
        Ok(())
    }

    pub fn poll_redraw(&mut self, key: u32) {
        let session = self.sessions.get_mut(key);
        if let Some(ms) = session.and_then(|it| it.poll_redraw()) {
            self.effects.push(Effect::arm(ms, Due::Redraw(key)));
        }
    }

    // ---- Output

    pub fn pump_ready(&mut self, streams: &mut Streams) {
        for key in self.sessions.take_ready() {
            self.pump(key, streams);
        }
    }

    fn pump(&mut self, key: u32, streams: &mut Streams) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.poll_start(key, streams);
        if session.is_starting() {
            return; // nobody receives its output yet
        }
        let log_size = session.log_size();
        if session.pump(streams, &mut self.scratch, &mut self.effects) {
            self.sessions.mark_ready(key);
        }
        self.sessions.log_changed(key, log_size, streams);
        self.settle(key, streams);
    }

    // ---- Ends

    /// Reaps all processes that have ended.
    pub fn reap(&mut self, streams: &mut Streams) {
        let mut has_reaped = false;
        while let Some((pid, status)) = reap::next() {
            has_reaped = true;
            if let Some(key) = self.sessions.leader_reaped(pid) {
                if !self.end_failed_start(key, streams) {
                    self.leader_ended(key, status, streams);
                }
            }
        }
        if has_reaped {
            self.cgroups.processes_ended();
            self.poll_kills(streams);
        }
    }

    fn leader_ended(&mut self, key: u32, status: i32, streams: &mut Streams) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.leader_ended(reap::exit(status, session.leader().started_ns));
        self.pump(key, streams);
        if self.sessions.get(key).is_some_and(|it| !it.is_over()) {
            let effect = Effect::arm(DRAIN_MS, Due::Drain(key));
            self.effects.push(effect);
        }
    }

    pub fn end_drain(&mut self, key: u32, streams: &mut Streams) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.end_drain();
            self.pump(key, streams);
        }
    }

    fn settle(&mut self, key: u32, streams: &mut Streams) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if !session.settle(streams) {
            return;
        }
        if let Some(cgroup) = session.release(&mut self.effects) {
            self.cgroups.release(cgroup);
        }
        if self.sessions.retire(key, streams) {
            let effect = Effect::arm(KEPT_MS, Due::Forget(key));
            self.effects.push(effect);
        }
    }

    // ---- Signals

    pub fn signal(
        &mut self,
        stream: u32,
        selector: &Selector,
        signal: u8,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        let signal = kills::signal_number(signal)?;
        let session = self.sessions.select(selector);
        match (session, selector) {
            (Some(key), _) if signal == libc::SIGKILL => self.kill(key, Some(stream)),
            (Some(key), _) => {
                if let Some(session) = self.sessions.get(key) {
                    kills::signal_group(session.leader().pid, signal);
                }
                streams.result(stream, empty());
            }
            (None, Selector::Pid(pid)) => {
                let pidfd = kills::signal_process(*pid, signal);
                let pidfd = pidfd.ok_or_else(|| selector.not_found())?;
                if signal == libc::SIGKILL {
                    let effects = &mut self.effects;
                    self.kills.await_process(pidfd, stream, effects);
                } else {
                    streams.result(stream, empty());
                }
            }
            (None, Selector::Tag(_)) => return Err(selector.not_found()),
        }
        Ok(())
    }

    /// Kills everything a session has started. The session's own end follows.
    pub fn kill(&mut self, key: u32, stream: Option<u32>) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.begin_kill();
        let (cgroups, effects) = (&mut self.cgroups, &mut self.effects);
        self.kills
            .kill_session(key, stream, &self.sessions, cgroups, effects);
    }

    /// Kills all commands and waits for their ends.
    pub fn kill_all(&mut self, timeout_ms: u64, streams: &mut Streams) {
        for key in self.sessions.keys() {
            self.kill(key, None);
        }
        let deadline_ns = monotonic_ns() + timeout_ms * 1_000_000;
        while !self.kills.is_empty() && monotonic_ns() < deadline_ns {
            sleep_ms(1);
            self.reap(streams);
            self.poll_kills(streams);
        }
    }

    pub fn kills_due(&mut self, streams: &mut Streams) {
        self.poll_kills(streams);
        self.kills.arm_again(&mut self.effects);
    }

    fn poll_kills(&mut self, streams: &mut Streams) {
        for ended in self.kills.poll(&self.sessions, &mut self.cgroups) {
            match ended.stream {
                Some(stream) if ended.is_gone => streams.result(stream, empty()),
                Some(stream) => {
                    let message = "the process is killed but does not end";
                    streams.fail(stream, &Failure::new(Code::Internal, message));
                }
                None => {}
            }
            if let Some(key) = ended.session {
                if let Some(session) = self.sessions.get_mut(key) {
                    session.end_kill();
                }
                self.settle(key, streams);
            }
        }
    }

    // ---- Stop

    /// The gateway, which FREEZE leaves running.
    pub fn spare(&mut self, pid: Option<libc::pid_t>) {
        self.gateway = pid;
        self.freezer.spare(pid);
    }

    pub fn gateway(&self) -> Option<libc::pid_t> {
        self.gateway
    }

    pub fn halt(&mut self, term_ms: u32) {
        self.effects.push(Effect::Halt { term_ms });
    }

    /// Sends SIGTERM to the commands' process groups.
    pub fn terminate(&self) {
        for session in self.sessions.living() {
            kills::signal_group(session.leader().pid, libc::SIGTERM);
        }
    }

    /// Sends SIGHUP to the leaders of terminals: an interactive shell ignores SIGTERM.
    pub fn hang_up(&self) {
        for session in self.sessions.living().filter(|it| it.has_terminal()) {
            // SAFETY: plain call. A leader that has not been reaped keeps its number.
            unsafe { libc::kill(session.leader().pid, libc::SIGHUP) };
        }
    }

    // ---- Sleep

    pub fn is_awake(&self) -> bool {
        self.freezer.is_awake()
    }

    pub fn freeze(&mut self, stream: u32, streams: &mut Streams) {
        let effects = &mut self.effects;
        self.freezer.freeze(stream, &self.cgroups, streams, effects);
    }

    pub fn poll_freezer(&mut self, streams: &mut Streams) {
        let effects = &mut self.effects;
        self.freezer.poll(&self.cgroups, streams, effects);
    }

    pub fn thaw(&mut self, stream: u32, streams: &mut Streams) {
        self.freezer.thaw(stream, &self.cgroups, streams);
    }
}
