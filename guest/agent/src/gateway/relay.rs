//! The gateway's side of the protocol: epochs, its own requests, and the relay's messages.

use super::dns::{Question, SERVER_FAILURE};
use super::flow::{Purpose, State};
use super::flows::Slot;
use super::packet::{Key, Unreachable};
use super::serving::Gateway;
use super::wire::{self, Message, Refusal};
use crate::frames;

impl Gateway {
    /// A HELLO: everything of the epoch before is reset, and what waits is asked again.
    pub(super) fn meet(&mut self, epoch: u16, nonce: &[u8; wire::NONCE_BYTES]) {
        self.relay_left();
        self.pipe.begin(epoch);
        self.next_stream = 1;
        self.pipe.push(frames::WELCOME, 0, &wire::welcome(nonce));
        for slot in self.flows.slots() {
            let flow = self.flows.get(slot);
            let asking = flow.filter(|flow| matches!(flow.state, State::Asking { .. }));
            if let Some(key) = asking.map(|flow| flow.key) {
                self.connect(slot, &key);
            }
        }
        let mut questions = std::mem::take(&mut self.questions);
        questions.ask_again(|question| self.resolve(question));
        self.questions = questions;
    }

    /// Connections are reset; those that ask wait for the next relay, and questions too.
    pub(super) fn relay_left(&mut self) {
        self.pipe.end();
        for slot in self.flows.slots() {
            let Some(flow) = self.flows.get(slot) else {
                continue;
            };
            if !matches!(flow.purpose, Purpose::Relay) || flow.stream.is_none() {
                continue;
            }
            if flow.is_open() {
                self.break_off(slot);
                continue;
            }
            let deadline = self.relay_deadline();
            if let Some(State::Asking { deadline_ns, .. }) =
                self.flows.get(slot).map(|flow| &mut flow.state)
            {
                *deadline_ns = deadline;
            }
            self.set_stream(slot, None);
        }
        let deadline_ns = self.relay_deadline();
        self.questions.wait(deadline_ns);
    }

    fn set_stream(&mut self, slot: Slot, number: Option<u32>) {
        if let Some(before) = self.flows.set_stream(slot, number) {
            before.release(&mut self.pool);
        }
    }

    /// A stream of this epoch, opened by `request`. `None`: there is no relay.
    fn open(&mut self, request: &[u8]) -> Option<u32> {
        self.pipe.epoch()?;
        let number = self.next_stream;
        self.next_stream = number.checked_add(1)?;
        self.pipe.push(frames::OPEN, number, request);
        Some(number)
    }

    pub(super) fn connect(&mut self, slot: Slot, key: &Key) {
        let destination = key.destination;
        let number = self.open(&wire::connect(*destination.ip(), destination.port()));
        self.set_stream(slot, number);
    }

    pub(super) fn resolve(&mut self, question: &Question) -> Option<u32> {
        self.open(&wire::resolve(&question.name, question.kind))
    }

    pub(super) fn receive(&mut self, number: u32, message: Message) {
        if let Some(pending) = self.questions.take(number) {
            return match message {
                Message::Answers(answers) => {
                    self.answer(
                        &pending.question,
                        pending.asker,
                        answers.rcode,
                        &answers.records,
                    );
                }
                _ => self.answer(&pending.question, pending.asker, SERVER_FAILURE, &[]),
            };
        }
        let Some(slot) = self.flows.of_stream(number) else {
            return;
        };
        let Some(flow) = self.flows.get(slot) else {
            return;
        };
        let is_asking = matches!(flow.state, State::Asking { .. });
        let stream = flow.stream.as_mut();
        match (message, stream) {
            (Message::Opened, _) if is_asking => self.opened(slot),
            (Message::Fail(refusal), _) if is_asking => self.failed(slot, Some(refusal)),
            (Message::Reset, _) if is_asking => self.failed(slot, None),
            (Message::Fail(_) | Message::Reset, _) => self.reset(slot),
            (Message::Data(bytes), Some(stream)) if !is_asking => {
                if stream.receive(bytes) {
                    self.queue(slot);
                } else {
                    self.break_off(slot);
                }
            }
            (Message::End, Some(stream)) if !is_asking => {
                stream.relay_ended();
                self.queue(slot);
            }
            (Message::Window(credit), Some(stream)) if !is_asking => {
                stream.widen(credit);
                self.queue(slot);
            }
            _ => {}
        }
    }

    /// The held packet goes on its way.
    fn opened(&mut self, slot: Slot) {
        let opening = self.opening();
        let Some(flow) = self.flows.get(slot) else {
            return;
        };
        if let State::Asking { syn, .. } = std::mem::replace(&mut flow.state, opening) {
            self.let_through(&syn);
        }
    }

    /// The program gets the reason; `None`: a reset.
    fn failed(&mut self, slot: Slot, refusal: Option<Refusal>) {
        self.set_stream(slot, None);
        let Some(flow) = self.flows.remove(slot) else {
            return;
        };
        if let State::Asking { syn, .. } = flow.state {
            match refusal {
                None | Some(Refusal::Refused) => self.refuse_by_reset(&syn),
                Some(Refusal::Denied) => self.refuse(&syn, Unreachable::Prohibited),
                Some(Refusal::Unreachable) => self.refuse(&syn, Unreachable::Host),
            }
        }
    }

    /// The stream is closed by the relay. A connection that is being made is reset once it is accepted.
    fn reset(&mut self, slot: Slot) {
        self.set_stream(slot, None);
        let Some(flow) = self.flows.get(slot) else {
            return;
        };
        if flow.is_open() {
            self.break_off(slot);
        }
    }
}
