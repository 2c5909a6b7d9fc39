//! Output to the host, and the parts that wait until it is sent.

use super::Dispatcher;
use crate::frames;
use crate::halt::{self, Halt};
use crate::outbox::Outbox;
use crate::stream::Role;

impl Dispatcher {
    pub fn outbox_bytes(&self) -> usize {
        self.streams.outbox_bytes()
    }

    pub fn fill_outbox(&mut self) -> &mut Outbox {
        self.streams.pump();
        self.streams.outbox()
    }

    pub fn notify(&mut self, halt: Halt) -> &mut Outbox {
        let notice = halt::notice(halt);
        self.streams.control(frames::NOTICE, 0, &notice);
        self.streams.outbox()
    }

    /// To be called after sending: resumes the producers of drained streams, and detaches closed ones.
    pub fn sent(&mut self) {
        for (stream, role) in self.streams.take_drained() {
            match role {
                Role::Foreground(key) | Role::Reading(key) => {
                    self.supervisor.sessions().mark_ready(key);
                }
                Role::Dial => self.dials.mark_ready(stream),
                Role::Work => self.tasks.advance(stream, &self.streams),
                Role::Starting(_)
                | Role::Attached(_)
                | Role::Terminal(_)
                | Role::Waiting(_)
                | Role::Input(_)
                | Role::Call => {}
            }
        }
        for (stream, role) in self.streams.take_closed() {
            if let Role::Foreground(key)
            | Role::Attached(key)
            | Role::Reading(key)
            | Role::Terminal(key) = role
            {
                self.supervisor.sessions().detach(stream, key, &[]);
            }
        }
    }
}
