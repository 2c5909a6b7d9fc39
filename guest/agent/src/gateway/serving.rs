//! The loop of the gateway, and what it does with each packet, frame and connection. One thread, each step bounded.
//!
//! ```text
//!   program ─► eth0 ─ SYN held, CONNECT asked ─────────────────────────┐
//!                └─ other segments ─► gw0 ─► kernel ─► listener ─► flow ◄─► port ◄─► relay
//!                └─ questions to port 53 ─► RESOLVE ───────────────────┘
//!                └─ everything else: ICMP "prohibited"
//! ```
//!
//! Segments that open no connection go between the interfaces as they are. The kernel of this network namespace knows the
//! connections that were let through, and answers all others with RST.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;

use super::budget::Budget;
use super::credit::Pool;
use super::dns;
use super::flow::{self, Flow, Purpose, State, Turn};
use super::flows::{Flows, Slot};
use super::leftovers::Leftovers;
use super::owners::Owners;
use super::packet::Unreachable;
use super::pipe::Pipe;
use super::poll::{Poll, Readiness, Source};
use super::questions::Questions;
use super::steering::Steering;
use super::tun::{self, Tun};
use super::wire;
use crate::frames::{self, Parser};
use crate::sys::monotonic_ns;

/// How long a connection or a question waits for a relay.
const RELAY_NS: u64 = 2_000_000_000;
/// How long a connection may take that the relay has opened. The kernel gives up earlier.
const OPENING_NS: u64 = 90_000_000_000;
/// How long a connection to the resolver lasts without a question and without an answer under way.
const IDLE_NS: u64 = 10_000_000_000;
/// Packets, frames and connections that are handled before others get their turn.
pub(super) const BATCH: usize = 64;

pub struct Gateway {
    pub(super) poll: Poll,
    pub(super) outer: Tun,
    pub(super) owners: Owners,
    pub(super) inner: Tun,
    steering: Steering,
    pub(super) pipe: Pipe,
    pub(super) flows: Flows,
    pub(super) questions: Questions,
    pub(super) leftovers: Leftovers,
    pub(super) pool: Pool,
    ready: VecDeque<Slot>,
    pub(super) next_stream: u32,
    pub(super) refusals: Budget,
    pub(super) space: Box<[u8]>,
    /// No flow and no question is late before this, and no leftover is to be asked again.
    due_ns: u64,
    awaits_room: bool,
}

impl Gateway {
    pub fn new(
        (outer, owners): (Tun, Owners),
        inner: Tun,
        steering: Steering,
        pipe: Pipe,
        leftovers: Leftovers,
    ) -> io::Result<Gateway> {
        let poll = Poll::new()?;
        poll.watch_level(outer.fd(), Source::Outer)?;
        poll.watch_level(inner.fd(), Source::Inner)?;
        poll.watch_level(steering.listener.as_raw_fd(), Source::Listener)?;
        poll.watch_input(pipe.fd(), Source::Port)?;
        Ok(Gateway {
            poll,
            outer,
            owners,
            inner,
            steering,
            pipe,
            flows: Flows::default(),
            questions: Questions::default(),
            due_ns: leftovers.due_ns().unwrap_or(u64::MAX),
            leftovers,
            pool: Pool::default(),
            ready: VecDeque::new(),
            next_stream: 1,
            refusals: Budget::default(),
            space: vec![0; tun::MAX_BYTES].into_boxed_slice(),
            awaits_room: false,
        })
    }

    /// Ends when an interface is gone.
    pub fn run(mut self) -> io::Error {
        let mut parser = Parser::default();
        let mut events: Vec<Readiness> = Vec::new();
        loop {
            let timeout_ms = self.timeout_ms();
            events.clear();
            events.extend(self.poll.wait(timeout_ms));
            for event in &events {
                if let Err(error) = self.handle(event) {
                    return error;
                }
            }
            self.read_port(&mut parser);
            if monotonic_ns() >= self.due_ns {
                self.expire();
            }
            self.take_turns();
            self.leftovers.take_turn(&self.outer);
            self.flush();
        }
    }

    fn timeout_ms(&self) -> i32 {
        let has_turns = !self.ready.is_empty() && self.pipe.has_room();
        if has_turns || self.pipe.is_readable() || self.leftovers.has_turn() {
            return 0;
        }
        if self.due_ns == u64::MAX {
            return -1;
        }
        let left_ns = self.due_ns.saturating_sub(monotonic_ns());
        left_ns.div_ceil(1_000_000).min(60_000) as i32
    }

    fn handle(&mut self, event: &Readiness) -> io::Result<()> {
        match event.source {
            Source::Port => self.pipe.ready(event.readable, event.writable),
            Source::Outer => return self.read_outer(),
            Source::Inner => return self.read_inner(),
            Source::Listener => self.accept(),
            Source::Flow(slot) => {
                let Some(flow) = self.flows.get(slot) else {
                    return Ok(());
                };
                flow.readable |= event.readable;
                flow.writable |= event.writable;
                if event.is_broken {
                    self.break_off(slot);
                } else {
                    self.queue(slot);
                }
            }
        }
        Ok(())
    }

    pub(super) fn queue(&mut self, slot: Slot) {
        if let Some(flow) = self.flows.get(slot).filter(|flow| !flow.is_queued) {
            flow.is_queued = true;
            self.ready.push_back(slot);
        }
    }

    fn take_turns(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(slot) = self.ready.pop_front() else {
                return;
            };
            let Some(flow) = self.flows.get(slot) else {
                continue;
            };
            flow.is_queued = false;
            if matches!(flow.purpose, Purpose::Resolver(_)) {
                self.converse(slot);
                continue;
            }
            match flow.take_turn(&mut self.pipe, &mut self.pool) {
                Turn::Idle => {}
                Turn::Again => self.queue(slot),
                Turn::Over => drop(self.remove(slot)),
                Turn::Broken => self.break_off(slot),
            }
        }
    }

    fn flush(&mut self) {
        let awaits_room = self.pipe.flush();
        if awaits_room != self.awaits_room {
            self.awaits_room = awaits_room;
            let _ = self
                .poll
                .watch_room(self.pipe.fd(), Source::Port, awaits_room);
        }
    }

    /// The program and the relay get a reset.
    pub(super) fn break_off(&mut self, slot: Slot) {
        let Some(flow) = self.remove(slot) else {
            return;
        };
        if let State::Open(fd) = flow.state {
            flow::reset(fd);
        }
    }

    /// The relay gets a reset, unless its stream is closed.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Flow> {
        let mut flow = self.flows.remove(slot)?;
        if let Some(stream) = flow.stream.take() {
            if !stream.is_over() {
                self.pipe.push(wire::RESET, stream.number, &wire::reset());
            }
            stream.release(&mut self.pool);
        }
        Some(flow)
    }

    fn note_due(&mut self, deadline_ns: u64) -> u64 {
        self.due_ns = self.due_ns.min(deadline_ns);
        deadline_ns
    }

    pub(super) fn relay_deadline(&mut self) -> u64 {
        self.note_due(monotonic_ns() + RELAY_NS)
    }

    pub(super) fn opening(&mut self) -> State {
        let deadline_ns = self.note_due(monotonic_ns() + OPENING_NS);
        State::Opening { deadline_ns }
    }

    /// A connection to the resolver stands, or has an answer.
    pub(super) fn idle_deadline(&mut self) -> u64 {
        self.note_due(monotonic_ns() + IDLE_NS)
    }

    fn expire(&mut self) {
        let now_ns = monotonic_ns();
        for slot in self.flows.late(now_ns) {
            match self.remove(slot).map(|flow| flow.state) {
                Some(State::Asking { syn, .. }) => self.refuse(&syn, Unreachable::Prohibited),
                Some(State::Open(fd)) => flow::reset(fd),
                _ => {}
            }
        }
        while let Some(pending) = self.questions.take_late(now_ns) {
            self.answer(&pending.question, pending.asker, dns::REFUSED, &[]);
        }
        self.leftovers.look_again(now_ns);
        let deadlines = [
            self.flows.next_deadline(),
            self.questions.next_deadline(),
            self.leftovers.due_ns(),
        ];
        self.due_ns = deadlines.into_iter().flatten().min().unwrap_or(u64::MAX);
    }

    fn accept(&mut self) {
        for _ in 0..BATCH {
            let Ok((fd, key)) = self.steering.accept() else {
                return;
            };
            let Some(slot) = self.flows.find(&key) else {
                flow::reset(fd);
                continue;
            };
            let is_watched = self.poll.watch_both(fd.as_raw_fd(), Source::Flow(slot));
            let Some(flow) = self.flows.get(slot).filter(|_| is_watched.is_ok()) else {
                flow::reset(fd);
                continue;
            };
            flow.state = State::Open(fd);
            match flow.purpose {
                Purpose::Resolver(_) => self.begin_conversation(slot),
                Purpose::Relay if flow.stream.is_none() => self.break_off(slot),
                Purpose::Discard => drop(self.remove(slot)),
                _ => self.queue(slot),
            }
        }
    }

    fn read_port(&mut self, parser: &mut Parser) {
        for _ in 0..BATCH {
            if !self.pipe.is_readable() {
                return;
            }
            match self.pipe.read(parser) {
                None => return self.relay_left(),
                Some(false) => return,
                Some(true) => {}
            }
            while let Some(frame) = parser.next() {
                if frame.kind == frames::HELLO {
                    if let Ok(nonce) = wire::read_hello(frame.payload) {
                        self.meet(frame.epoch, &nonce);
                    }
                } else if self.pipe.epoch() == Some(frame.epoch) {
                    if let Ok(message) = wire::read_message(frame.kind, frame.payload) {
                        self.receive(frame.stream, message);
                    }
                }
            }
        }
    }
}
