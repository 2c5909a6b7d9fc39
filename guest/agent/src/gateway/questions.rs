//! Questions of programs to the resolver, while the relay looks for the answers.

use std::net::SocketAddrV4;

use super::dns::{self, Question};
use super::flows::Slot;

/// Others are answered "server failure" at once.
pub const MAX_QUESTIONS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Udp {
        client: SocketAddrV4,
        server: SocketAddrV4,
    },
    Tcp(Slot),
}

pub struct Pending {
    pub question: Question,
    pub asker: Asker,
    /// The stream of the RESOLVE; `None` without a relay.
    stream: Option<u32>,
    /// Until when it waits for a relay.
    deadline_ns: u64,
}

#[derive(Default)]
pub struct Questions {
    pending: Vec<Pending>,
}

impl Questions {
    /// Whether the same question is on its way already: a program that waits asks again.
    pub fn has(&self, asker: &Asker, question: &Question) -> bool {
        let is_same = |it: &Pending| it.asker == *asker && it.question == *question;
        self.pending.iter().any(is_same)
    }

    pub fn is_full(&self) -> bool {
        self.pending.len() >= MAX_QUESTIONS
    }

    pub fn add(&mut self, question: Question, asker: Asker, stream: Option<u32>, deadline_ns: u64) {
        self.pending.push(Pending {
            question,
            asker,
            stream,
            deadline_ns,
        });
    }

    pub fn take(&mut self, stream: u32) -> Option<Pending> {
        let at = self
            .pending
            .iter()
            .position(|it| it.stream == Some(stream))?;
        Some(self.pending.swap_remove(at))
    }

    /// The relay has left: all wait for the next one.
    pub fn wait(&mut self, deadline_ns: u64) {
        for pending in self.pending.iter_mut().filter(|it| it.stream.is_some()) {
            pending.stream = None;
            pending.deadline_ns = deadline_ns;
        }
    }

    /// Asks all of them of a new relay, on streams of its own.
    pub fn ask_again(&mut self, mut ask: impl FnMut(&Question) -> Option<u32>) {
        for pending in &mut self.pending {
            pending.stream = ask(&pending.question);
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        let waiting = self.pending.iter().filter(|it| it.stream.is_none());
        waiting.map(|it| it.deadline_ns).min()
    }

    /// A question that has waited for a relay in vain.
    pub fn take_late(&mut self, now_ns: u64) -> Option<Pending> {
        let is_late = |it: &Pending| it.stream.is_none() && it.deadline_ns <= now_ns;
        let at = self.pending.iter().position(is_late)?;
        Some(self.pending.swap_remove(at))
    }
}

/// A connection to port 53: questions of two bytes of length each, one answered after the other.
#[derive(Default)]
pub struct Conversation {
    received: Vec<u8>,
    pub answer: Vec<u8>,
    /// A question is on its way.
    pub is_asking: bool,
    pub has_ended: bool,
}

/// A longer question is none.
const MAX_QUESTION_BYTES: usize = 4_096;

#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    Question(Question),
    Refused,
    /// The rest of a question is to come, or its answer to be taken first.
    Nothing,
    /// The connection is to be reset.
    Nonsense,
}

impl Conversation {
    pub fn receive(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Whether more is to be read now.
    pub fn is_hungry(&self) -> bool {
        !self.is_asking && self.answer.is_empty() && !self.has_ended
    }

    /// The next question that has come whole.
    pub fn hear(&mut self) -> Said {
        if self.is_asking || !self.answer.is_empty() {
            return Said::Nothing;
        }
        let Some(length) = self.received.first_chunk() else {
            return Said::Nothing;
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if length > MAX_QUESTION_BYTES {
            return Said::Nonsense;
        }
        let Some(message) = self.received.get(2..2 + length) else {
            return Said::Nothing;
        };
        let said = dns::read(message);
        self.received.drain(..2 + length);
        match said {
            Ok(question) => Said::Question(question),
            Err(dns::Odd::Silent) => Said::Nonsense,
            Err(dns::Odd::Refused(answer)) => {
                self.say(&answer);
                Said::Refused
            }
        }
    }

    /// `answer`: at most 65 535 bytes.
    pub fn say(&mut self, answer: &[u8]) {
        self.is_asking = false;
        self.answer
            .extend_from_slice(&(answer.len() as u16).to_be_bytes());
        self.answer.extend_from_slice(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_on_a_connection_come_in_any_pieces_and_are_answered_in_turn() {
        let message = dns::tests::message(b"\x07example\x03com\x00", 1, 1, &[]);
        let framed = [&(message.len() as u16).to_be_bytes()[..], &message].concat();
        let mut talk = Conversation::default();
        for byte in framed.iter().take(framed.len() - 1) {
            talk.receive(&[*byte]);
            assert_eq!(talk.hear(), Said::Nothing);
        }
        talk.receive(&framed[framed.len() - 1..]);
        talk.receive(&framed);
        assert!(matches!(talk.hear(), Said::Question(question) if question.name == b"example.com"));
        talk.is_asking = true;
        assert_eq!(talk.hear(), Said::Nothing, "the first is not answered yet");
        talk.say(b"answer");
        assert_eq!(talk.answer, b"\x00\x06answer");
        talk.answer.clear();
        assert!(matches!(talk.hear(), Said::Question(_)));
        talk.receive(b"\xff\xff");
        assert_eq!(talk.hear(), Said::Nonsense);
    }
}
