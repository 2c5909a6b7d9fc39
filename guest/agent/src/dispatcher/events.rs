//! Events of the loop that are no frames: readable descriptors, ended children, timers.

use super::Dispatcher;
use crate::epoll::Epoll;
use crate::supervisor::Supervisor;
use crate::timers::Due;

impl Dispatcher {
    pub fn supervisor(&mut self) -> &mut Supervisor {
        &mut self.supervisor
    }

    pub fn reap(&mut self) {
        self.supervisor.reap(&mut self.streams);
    }

    pub fn pump_ready(&mut self, epoll: &Epoll) {
        self.supervisor.pump_ready(&mut self.streams);
        self.dials.pump_ready(&mut self.streams, epoll);
    }

    pub fn has_ready(&mut self) -> bool {
        self.supervisor.sessions().has_ready() || self.dials.has_ready()
    }

    pub fn note_dial(&mut self, stream: u32, readable: bool) {
        self.dials.note(stream, readable);
    }

    pub fn take_reports(&mut self, epoll: &Epoll) {
        self.tasks.take_reports(&mut self.streams, epoll);
    }

    pub fn note_job(&mut self, stream: u32) {
        self.tasks.note_readable(stream, &self.streams);
    }

    /// Leaves nothing running, if that is possible within the time.
    pub fn shut_down(&mut self, timeout_ms: u64) {
        self.tasks.clear();
        self.dials.clear();
        self.supervisor.kill_all(timeout_ms, &mut self.streams);
    }

    /// A timer is due that is not the loop's own.
    pub fn handle_due(&mut self, due: Due) {
        let streams = &mut self.streams;
        match due {
            Due::Drain(key) => self.supervisor.end_drain(key, streams),
            Due::Starts => self.supervisor.poll_starts(streams),
            Due::Kills => self.supervisor.kills_due(streams),
            Due::Freeze => self.supervisor.poll_freezer(streams),
            Due::Redraw(key) => self.supervisor.poll_redraw(key),
            Due::Forget(key) => self.supervisor.sessions().forget(key, streams),
            Due::Host | Due::Halt | Due::Gateway => {}
        }
    }
}
