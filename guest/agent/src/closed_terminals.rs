//! Terminals' streams that are closed on our side: a host that leaves may not have read their last output, which then
//! belongs to the terminal's next client.

use std::collections::{BTreeMap, VecDeque};

use crate::stream::{Dropped, Role, Stream};

/// Each holds at most a window.
const MAX_STREAMS: usize = 16;

#[derive(Default)]
pub struct ClosedTerminals {
    /// The oldest first.
    streams: VecDeque<(u32, Box<Stream>)>,
}

impl ClosedTerminals {
    /// Beyond the limit the oldest is forgotten.
    pub fn push(&mut self, id: u32, stream: Box<Stream>) {
        if self.streams.len() >= MAX_STREAMS {
            self.streams.pop_front();
        }
        self.streams.push_back((id, stream));
    }

    /// TAKEN from a host that is about to leave.
    pub fn set_taken(&mut self, id: u32, total: u64) -> Option<Dropped> {
        let at = self.streams.iter().position(|(of, _)| *of == id)?;
        let (_, mut stream) = self.streams.remove(at)?;
        stream.set_taken(total);
        Some(stream.into_dropped(id))
    }

    /// Forgets all; returns those of which the outbox still `held` bytes. Only the last of a terminal's streams
    /// is returned, since all of them carried the same output.
    pub fn take_held(
        &mut self,
        held: &BTreeMap<u32, u64>,
    ) -> impl Iterator<Item = (u32, Box<Stream>)> {
        let mut found = BTreeMap::new();
        for (id, stream) in std::mem::take(&mut self.streams) {
            if let (Role::Terminal(key), true) = (stream.role(), held.contains_key(&id)) {
                found.insert(key, (id, stream));
            }
        }
        found.into_values()
    }
}
