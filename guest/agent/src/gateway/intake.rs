//! Packets: those of the guest, and those of the gateway's own kernel, which go out as they are.

use std::io;

use super::flow::{Flow, Purpose, State};
use super::owners::Protocol;
use super::packet::{Key, Packet, Segment, Unreachable, GATEWAY, VNET_BYTES};
use super::serving::{Gateway, BATCH};
use crate::sys::monotonic_ns;

/// A first packet with data beyond this is dropped; the kernel repeats it without.
const MAX_SYN_BYTES: usize = 256;
const RESOLVER_PORT: u16 = 53;
const DISCARD_PORT: u16 = 9;

impl Gateway {
    pub(super) fn read_outer(&mut self) -> io::Result<()> {
        let mut space = std::mem::take(&mut self.space);
        let mut result = Ok(());
        for _ in 0..BATCH {
            match self.outer.read(&mut space) {
                Ok(Some(count)) if count >= VNET_BYTES => self.take_packet(&space[..count]),
                Ok(_) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.space = space;
        result
    }

    pub(super) fn read_inner(&mut self) -> io::Result<()> {
        for _ in 0..BATCH {
            let Some(count) = self.inner.read(&mut self.space)? else {
                break;
            };
            self.outer.write(&self.space[..count]);
        }
        Ok(())
    }

    /// A packet of the guest, with its header.
    fn take_packet(&mut self, bytes: &[u8]) {
        let Some(packet) = Packet::read(&bytes[VNET_BYTES..]) else {
            return;
        };
        if let Some(segment) = packet.segment() {
            if segment.is_opening() {
                return self.begin(bytes, &packet, &segment);
            }
            if segment.is_reset() {
                self.note_reset(&segment.key);
            }
            return self.inner.write(bytes);
        }
        match packet.datagram() {
            Some(datagram) if datagram.key.destination.port() == RESOLVER_PORT => {
                self.take_question(&datagram);
            }
            _ => self.prohibit(&packet),
        }
    }

    fn prohibit(&mut self, packet: &Packet) {
        if packet.may_be_refused() && self.refusals.take(monotonic_ns()) {
            self.outer
                .write(&packet.unreachable(Unreachable::Prohibited));
        }
    }

    /// Tells the program of a held packet.
    pub(super) fn refuse(&self, syn: &[u8], code: Unreachable) {
        if let Some(packet) = Packet::read(&syn[VNET_BYTES..]) {
            self.outer.write(&packet.unreachable(code));
        }
    }

    pub(super) fn refuse_by_reset(&self, syn: &[u8]) {
        let packet = Packet::read(&syn[VNET_BYTES..]);
        if let Some(segment) = packet.and_then(|packet| packet.segment()) {
            self.outer.write(&segment.refusal());
        }
    }

    pub(super) fn let_through(&self, syn: &[u8]) {
        self.inner.write(syn);
    }

    fn begin(&mut self, bytes: &[u8], packet: &Packet, segment: &Segment) {
        let key = segment.key;
        self.leftovers.forget(&key);
        if let Some(slot) = self.flows.find(&key) {
            match self.flows.get(slot).map(|flow| &mut flow.state) {
                // Repeated, or of a program that came after the one that asked.
                Some(State::Asking { syn, .. }) if bytes.len() <= MAX_SYN_BYTES => {
                    syn.clear();
                    syn.extend_from_slice(bytes);
                }
                Some(State::Asking { .. }) => {}
                _ => self.inner.write(bytes),
            }
            return;
        }
        let owner = self.owners.of(Protocol::Tcp, key.source.port());
        if !self.flows.has_place(owner) || !packet.may_be_refused() {
            return self.prohibit(packet);
        }
        let is_own = *key.destination.ip() == GATEWAY && key.destination.port() == DISCARD_PORT;
        let purpose = match key.destination.port() {
            RESOLVER_PORT => Purpose::Resolver(Default::default()),
            _ if is_own => Purpose::Discard,
            _ => Purpose::Relay,
        };
        if !matches!(purpose, Purpose::Relay) {
            let opening = self.opening();
            self.flows.add(Flow::new(key, owner, purpose, opening));
            return self.inner.write(bytes);
        }
        if bytes.len() <= MAX_SYN_BYTES {
            let (syn, deadline_ns) = (bytes.to_vec(), self.relay_deadline());
            let asking = State::Asking { syn, deadline_ns };
            let slot = self.flows.add(Flow::new(key, owner, purpose, asking));
            self.connect(slot, &key);
        }
    }

    /// A program has given up before the listener has accepted.
    fn note_reset(&mut self, key: &Key) {
        let Some(slot) = self.flows.find(key) else {
            return;
        };
        let flow = self.flows.get(slot);
        if flow.is_some_and(|flow| matches!(flow.state, State::Opening { .. })) {
            self.break_off(slot);
        }
    }
}
