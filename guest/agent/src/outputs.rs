//! The road of a command's output to whoever listens, and the command's end, which comes after all of it.
//!
//! ```text
//!   pipe or terminal ─► pump ─► deliver ─► each listener's stream
//!   waitpid ─► leader_ended ─► drain ─► settle ─► RESULT
//! ```
//!
//! A pipe's writing end is held by us too until the leader has ended. So we are not woken twice while it exits, once for each
//! pipe that it lets go of, and it is not held up by us. After its end, reading tells whether somebody else has the pipe: one
//! who was left behind, or for a moment another command, which has everything of ours until its program runs.
//!
//! A foreground command has one listener, and is read no faster than that one takes. Any other command is read always;
//! a listener that falls too far behind is cut off, so that it never holds up the command or the others.

use crate::agent::Agent;
use crate::protocol::{Code, Failure};
use crate::sessions::{Kind, Output};
use crate::sys;
use crate::timers::Due;

/// Read from one output in one turn.
pub const CHUNK_BYTES: usize = 65_536;
/// A foreground command is not read while this much of its output waits.
const FOREGROUND_QUEUE_BYTES: usize = 2 * CHUNK_BYTES;
/// Any other listener is cut off when this much waits for it.
const LISTENER_QUEUE_BYTES: usize = 1024 * 1024;
/// After a leader's end, a pipe that somebody else still holds open is read for this long.
const DRAIN_MS: u64 = 100;

impl Agent {
    /// Reads what a session's outputs have, one turn's worth.
    pub fn pump(&mut self, key: u32) {
        self.feed(key);
        let Some(count) = self.sessions.get(key).map(|session| session.outputs.len()) else {
            return;
        };
        for index in 0..count {
            self.pump_output(key, index);
        }
        self.settle(key);
    }

    fn pump_output(&mut self, key: u32, index: usize) {
        let room = self.room(key);
        let Some(output) = self.output(key, index).filter(|output| output.is_readable) else {
            return;
        };
        let (Some(fd), channel) = (output.raw(), output.channel) else {
            return;
        };
        // Without room: whoever makes room comes back.
        let mut budget = room.min(CHUNK_BYTES);
        let mut scratch = std::mem::take(&mut self.scratch);
        while budget > 0 {
            let Ok(Some(count @ 1..)) = self.read_output(key, index, fd, &mut scratch[..budget])
            else {
                break;
            };
            self.deliver(key, channel, &scratch[..count]);
            budget -= count;
        }
        self.scratch = scratch;
        let is_readable = self
            .output(key, index)
            .is_some_and(|output| output.is_readable && !output.is_over());
        if is_readable && room > 0 {
            self.sessions.again(key);
        }
    }

    fn read_output(
        &mut self,
        key: u32,
        index: usize,
        fd: i32,
        space: &mut [u8],
    ) -> std::io::Result<Option<usize>> {
        let result = sys::read(fd, space);
        // A leader that has closed its terminal and not ended yet would be hung up on if we let go of it now.
        let is_kept = self
            .sessions
            .get(key)
            .is_some_and(|session| session.kind == Kind::Terminal && session.exit.is_none());
        let mut spent = None;
        if let Some(output) = self.output(key, index) {
            match &result {
                Ok(None) => output.is_readable = false,
                Err(_) if is_kept => output.is_readable = false,
                // A terminal whose last user is gone answers an error instead of an end.
                Ok(Some(0)) | Err(_) => spent = output.fd.take(),
                Ok(Some(count)) => {
                    output.owed = output.owed.map(|owed| owed.saturating_sub(*count));
                }
            }
        }
        self.spent.extend(spent);
        result
    }

    fn output(&mut self, key: u32, index: usize) -> Option<&mut Output> {
        self.sessions.get_mut(key)?.outputs.get_mut(index)
    }

    fn room(&self, key: u32) -> usize {
        match self.sessions.get(key) {
            Some(session) if session.kind == Kind::Foreground => {
                session.clients.first().map_or(usize::MAX, |&stream| {
                    match self.streams.queued(stream) {
                        0 => FOREGROUND_QUEUE_BYTES,
                        _ if self.streams.is_congested() => 0,
                        queued => FOREGROUND_QUEUE_BYTES.saturating_sub(queued),
                    }
                })
            }
            _ => usize::MAX,
        }
    }

    fn deliver(&mut self, key: u32, channel: u8, bytes: &[u8]) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if session.clients.is_empty() {
            self.miss(key, bytes);
            return;
        }
        let is_patient = session.kind == Kind::Foreground;
        let streams = &mut self.streams;
        let mut unsent = Vec::new();
        session.clients.retain(|&stream| {
            let behind = streams.queued(stream);
            let is_too_slow = behind + bytes.len() > LISTENER_QUEUE_BYTES
                || behind > CHUNK_BYTES && streams.is_congested();
            if !is_patient && is_too_slow {
                let message = format!("reads too slowly: {behind} bytes behind");
                unsent = streams.fail(stream, &Failure::new(Code::SlowReader, message));
                return false;
            }
            streams.data(stream, channel, bytes);
            true
        });
        if session.clients.is_empty() {
            self.miss(key, &unsent);
            self.miss(key, bytes);
        }
    }

    /// The leader has ended; what it wrote is still to be read.
    pub fn leader_ended(&mut self, key: u32) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        for output in &mut session.outputs {
            output.held = None;
            output.is_readable = true;
        }
        self.pump(key);
        if self
            .sessions
            .get(key)
            .is_some_and(|session| !session.is_over)
        {
            self.timers.after_ms(DRAIN_MS, Due::Drain(key));
        }
    }

    /// Somebody else holds an output open: from now on only what is in it already belongs to the command.
    pub fn drain_is_over(&mut self, key: u32) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        for output in &mut session.outputs {
            if let Some(fd) = output.raw() {
                let mut waiting: libc::c_int = 0;
                // SAFETY: `waiting` is what the request fills.
                unsafe { libc::ioctl(fd, libc::FIONREAD, &mut waiting) };
                output.owed = Some(waiting.max(0) as usize);
                output.is_readable = true;
            }
        }
        self.pump(key);
    }

    /// Says the session's last word once everything that comes before it is done.
    pub fn settle(&mut self, key: u32) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let is_done = session.kills == 0 && session.outputs.iter().all(Output::is_over);
        let Some(exit) = session.exit.filter(|_| is_done && !session.is_over) else {
            return;
        };
        session.is_over = true;
        let kind = session.kind;
        let waiters = std::mem::take(&mut session.waiters);
        session.is_told = !waiters.is_empty();
        for stream in session.clients.iter().copied().chain(waiters) {
            self.streams.result(stream, exit.record());
        }
        if kind != Kind::Foreground {
            self.keep(key);
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        for output in std::mem::take(&mut session.outputs) {
            if let Some(fd) = output.fd.filter(|_| kind != Kind::Terminal) {
                self.orphans.adopt(fd, &self.epoll);
            }
        }
        if let Some(cgroup) = session.cgroup.take() {
            self.cgroups.give_back(cgroup);
        }
        if kind == Kind::Foreground {
            self.sessions.remove(key);
        }
    }

    /// The stream is gone, and waits for the end no more.
    pub fn stop_waiting(&mut self, stream: u32, key: u32) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.waiters.retain(|&waiter| waiter != stream);
        }
    }

    /// The stream is gone, whoever ended it. What the last client of a terminal has not got, the next one gets.
    pub fn detach(&mut self, stream: u32, key: u32, unsent: &[u8]) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.clients.retain(|&client| client != stream);
        session.is_told = session.is_over && unsent.is_empty();
        if session.clients.is_empty() {
            self.miss(key, unsent);
        }
    }
}
