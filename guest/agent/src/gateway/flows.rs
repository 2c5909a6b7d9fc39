//! The table of connections, from the first packet of a program to the end of the stream.
//!
//! ```text
//!   asking ─ OPENED ─► opening ─ the listener accepts ─► open ─► gone
//!      └─ FAIL ─► gone     └─ RST, or too long ─► gone
//! ```
//!
//! While it asks, the packet is held here. Opening, the packet is let through, and the kernel makes the connection. Connections to
//! the gateway itself begin as opening.

use std::collections::BTreeMap;

use super::flow::{Flow, Stream};
use super::owners::{self, Uid};
use super::packet::Key;

pub const MAX_FLOWS: usize = 1_024;
/// One bit less than a word: the event of a flow has it in its number.
const GENERATIONS: u32 = u32::MAX >> 1;

/// A place in the table, and which of its flows in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub index: u32,
    pub generation: u32,
}

#[derive(Default)]
pub struct Flows {
    places: Vec<(u32, Option<Flow>)>,
    free: Vec<u32>,
    by_key: BTreeMap<Key, u32>,
    by_stream: BTreeMap<u32, u32>,
}

impl Flows {
    pub fn has_place(&self, owner: Uid) -> bool {
        let flows = self.places.iter().filter_map(|(_, flow)| flow.as_ref());
        let own = || flows.filter(|flow| flow.owner == owner).count();
        owners::may_have(owner, MAX_FLOWS, self.by_key.len(), own)
    }

    /// The key must be new.
    pub fn add(&mut self, flow: Flow) -> Slot {
        let index = self.free.pop().unwrap_or(self.places.len() as u32);
        if index as usize == self.places.len() {
            self.places.push((0, None));
        }
        self.by_key.insert(flow.key, index);
        if let Some(stream) = &flow.stream {
            self.by_stream.insert(stream.number, index);
        }
        let (generation, place) = &mut self.places[index as usize];
        *place = Some(flow);
        Slot {
            index,
            generation: *generation,
        }
    }

    pub fn get(&mut self, slot: Slot) -> Option<&mut Flow> {
        let (generation, flow) = self.places.get_mut(slot.index as usize)?;
        flow.as_mut().filter(|_| *generation == slot.generation)
    }

    pub fn find(&self, key: &Key) -> Option<Slot> {
        self.by_key.get(key).map(|index| self.slot(*index))
    }

    pub fn of_stream(&self, stream: u32) -> Option<Slot> {
        self.by_stream.get(&stream).map(|index| self.slot(*index))
    }

    fn slot(&self, index: u32) -> Slot {
        Slot {
            index,
            generation: self.places[index as usize].0,
        }
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Flow> {
        let (generation, place) = self.places.get_mut(slot.index as usize)?;
        if *generation != slot.generation {
            return None;
        }
        let flow = place.take()?;
        *generation = generation.wrapping_add(1) & GENERATIONS;
        self.free.push(slot.index);
        self.by_key.remove(&flow.key);
        if let Some(stream) = &flow.stream {
            self.by_stream.remove(&stream.number);
        }
        Some(flow)
    }

    /// Gives it a new stream, or none. Returns the one before.
    pub fn set_stream(&mut self, slot: Slot, number: Option<u32>) -> Option<Stream> {
        let flow = self.get(slot)?;
        let before = std::mem::replace(&mut flow.stream, number.map(Stream::new));
        if let Some(before) = &before {
            self.by_stream.remove(&before.number);
        }
        if let Some(number) = number {
            self.by_stream.insert(number, slot.index);
        }
        before
    }

    pub fn slots(&self) -> Vec<Slot> {
        self.by_key
            .values()
            .map(|index| self.slot(*index))
            .collect()
    }

    pub fn next_deadline(&self) -> Option<u64> {
        let flows = self.places.iter().filter_map(|(_, flow)| flow.as_ref());
        flows.filter_map(Flow::deadline_ns).min()
    }

    pub fn late(&self, now_ns: u64) -> Vec<Slot> {
        let is_late = |flow: &Flow| flow.deadline_ns().is_some_and(|it| it <= now_ns);
        let places = self.places.iter().enumerate();
        let late = places.filter(|(_, (_, flow))| flow.as_ref().is_some_and(is_late));
        late.map(|(index, _)| self.slot(index as u32)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use super::super::flow::{Purpose, State};
    use super::*;

    fn key(port: u16) -> Key {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        Key {
            source: at(port),
            destination: at(80),
        }
    }

    fn asking(port: u16, deadline_ns: u64) -> Flow {
        Flow::new(
            key(port),
            0,
            Purpose::Relay,
            State::Asking {
                syn: vec![],
                deadline_ns,
            },
        )
    }

    #[test]
    fn a_flow_is_found_by_key_and_stream_until_it_is_removed() {
        let mut flows = Flows::default();
        let (first, second) = (flows.add(asking(1, 7)), flows.add(asking(2, 5)));
        flows.set_stream(first, Some(9));
        assert_eq!(
            (flows.find(&key(1)), flows.of_stream(9)),
            (Some(first), Some(first))
        );
        assert_eq!(
            flows.next_deadline(),
            Some(5),
            "one with a stream waits for the relay"
        );
        assert_eq!(flows.late(6), [second]);
        assert!(flows.remove(first).is_some() && flows.remove(first).is_none());
        assert_eq!((flows.find(&key(1)), flows.of_stream(9)), (None, None));
        let third = flows.add(asking(3, 5));
        assert_eq!(third.index, first.index);
        assert!(flows.get(first).is_none() && flows.get(third).is_some());
    }

    #[test]
    fn a_new_epoch_gives_other_streams() {
        let mut flows = Flows::default();
        let slot = flows.add(asking(1, 7));
        flows.set_stream(slot, Some(9));
        flows.set_stream(slot, Some(1));
        assert_eq!((flows.of_stream(9), flows.of_stream(1)), (None, Some(slot)));
        flows.set_stream(slot, None);
        assert_eq!((flows.of_stream(1), flows.next_deadline()), (None, Some(7)));
    }
}
