//! Messages of DNS: the question of a program, and the answer to it. An odd question is refused.

use super::wire::Record;

pub const SERVER_FAILURE: u8 = 2;
pub const REFUSED: u8 = 5;

const HEADER_BYTES: usize = 12;
const MAX_NAME_BYTES: usize = 255;
const INTERNET: u16 = 1;
const OPT: u16 = 41;
/// A UDP answer to a program that names no size.
const PLAIN_BYTES: usize = 512;
/// A UDP answer to one that names any.
const MAX_UDP_BYTES: usize = 4_096;
const ANSWER: u16 = 0x8080; // an answer, recursion available
const TRUNCATED: u16 = 0x0200;
/// Operation and "recursion desired", which come back as they were asked.
const KEPT: u16 = 0x7900;
/// The owner's name: a pointer to that of the question.
const OWNER: [u8; 2] = [0xc0, HEADER_BYTES as u8];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub id: u16,
    flags: u16,
    /// In lower case, without the last dot.
    pub name: Vec<u8>,
    pub kind: u16,
    /// Name, type and class as they were asked.
    asked: Vec<u8>,
    /// The size that a program with EDNS takes.
    size: Option<usize>,
}

/// A message that is not passed on.
#[derive(Debug, PartialEq, Eq)]
pub enum Odd {
    /// The answer to it.
    Refused(Vec<u8>),
    /// No question at all.
    Silent,
}

pub fn read(message: &[u8]) -> Result<Question, Odd> {
    let word = |at: usize| {
        let bytes = message.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map(|bytes| u16::from_be_bytes(*bytes))
    };
    let (Some(id), Some(flags), Some(_)) = (word(0), word(2), message.get(..HEADER_BYTES)) else {
        return Err(Odd::Silent);
    };
    if flags & 0x8000 != 0 {
        return Err(Odd::Silent);
    }
    let refused = || Odd::Refused(head(id, flags, REFUSED, 0, 0, 0));
    let is_query = flags & 0x7800 == 0;
    let sections = [word(4), word(6), word(8)];
    if !is_query || sections != [Some(1), Some(0), Some(0)] {
        return Err(refused());
    }
    let (name, end) = read_name(message).ok_or_else(refused)?;
    let (Some(kind), Some(INTERNET)) = (word(end), word(end + 2)) else {
        return Err(refused());
    };
    Ok(Question {
        id,
        flags,
        name,
        kind,
        asked: message[HEADER_BYTES..end + 4].to_vec(),
        size: read_size(&message[end + 4..], word(10).unwrap_or(0)),
    })
}

/// The name of the question, and where it ends.
fn read_name(message: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut name, mut at) = (Vec::new(), HEADER_BYTES);
    loop {
        let length = usize::from(*message.get(at)?);
        let label = message.get(at + 1..at + 1 + length)?;
        at += 1 + length;
        if length == 0 {
            return Some((name, at));
        }
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        // A length above 63 is that of a compressed name.
        if length > 63 || at - HEADER_BYTES >= MAX_NAME_BYTES || !label.iter().all(is_plain) {
            return None;
        }
        if !name.is_empty() {
            name.push(b'.');
        }
        name.extend(label.iter().map(u8::to_ascii_lowercase));
    }
}

/// The size in the OPT record, where that comes first behind the question, as all programs send it.
fn read_size(rest: &[u8], additional: u16) -> Option<usize> {
    let [0, kind @ .., _, _] = rest.get(..5)? else {
        return None;
    };
    let size = u16::from_be_bytes([rest[3], rest[4]]);
    let is_opt = additional > 0 && kind == OPT.to_be_bytes();
    is_opt.then(|| usize::from(size).clamp(PLAIN_BYTES, MAX_UDP_BYTES))
}

fn head(id: u16, flags: u16, rcode: u8, questions: u16, answers: u16, additional: u16) -> Vec<u8> {
    let flags = ANSWER | flags & (KEPT | TRUNCATED) | u16::from(rcode & 15);
    let words = [id, flags, questions, answers, 0, additional];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

impl Question {
    /// The most that a UDP answer may have.
    pub fn udp_bytes(&self) -> usize {
        self.size.unwrap_or(PLAIN_BYTES)
    }

    /// An answer of at most `limit` bytes: without records, and marked so, where they do not fit.
    pub fn answer(&self, rcode: u8, records: &[Record], limit: usize) -> Vec<u8> {
        let rcode = if rcode > 15 { SERVER_FAILURE } else { rcode };
        let sized = |record: &Record| OWNER.len() + 10 + record.data.len();
        let own = HEADER_BYTES + self.asked.len() + self.opt().len();
        let fits = own + records.iter().map(sized).sum::<usize>() <= limit;
        let records = if fits { records } else { &[] };
        let flags = self.flags & KEPT | if fits { 0 } else { TRUNCATED };
        let additional = u16::from(self.size.is_some());
        let mut message = head(self.id, flags, rcode, 1, records.len() as u16, additional);
        message.extend_from_slice(&self.asked);
        for record in records {
            message.extend_from_slice(&OWNER);
            message.extend_from_slice(&record.kind.to_be_bytes());
            message.extend_from_slice(&INTERNET.to_be_bytes());
            message.extend_from_slice(&record.ttl.to_be_bytes());
            message.extend_from_slice(&(record.data.len() as u16).to_be_bytes());
            message.extend_from_slice(record.data);
        }
        message.extend_from_slice(&self.opt());
        message
    }

    /// The root's name, OPT, the size that the gateway reads, and nothing else.
    fn opt(&self) -> Vec<u8> {
        let fields = [OPT, MAX_UDP_BYTES as u16, 0, 0, 0];
        let words = fields.iter().flat_map(|word| word.to_be_bytes());
        let record = std::iter::once(0).chain(words);
        self.size.map_or_else(Vec::new, |_| record.collect())
    }
}

#[cfg(test)]
#[path = "dns/tests.rs"]
pub mod tests;
