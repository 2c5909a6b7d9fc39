//! Questions to the resolver on a TCP connection, and their answers.

use super::dns::{self, Question};

/// A connection to port 53: questions of two bytes of length each, one answered after the other.
#[derive(Default)]
pub struct Conversation {
    received: Vec<u8>,
    pub answer: Vec<u8>,
    /// A question is on its way.
    pub is_asking: bool,
    pub has_ended: bool,
    /// A program that asks nothing until then is reset, unless its last question is on its way.
    pub deadline_ns: u64,
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
