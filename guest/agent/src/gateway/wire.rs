//! Frames and records between gateway and relay: docs/NETWORK-PROTOCOL.md.

use std::net::Ipv4Addr;

use crate::frames::{self, Header};
use crate::record::{Malformed, Reader, Writer};

pub const MAGIC: &[u8] = b"capsule-net";
pub const VERSION: u16 = 1;
pub const GATEWAY: &str = concat!("capsule-gateway/", env!("CARGO_PKG_VERSION"));
pub const NONCE_BYTES: usize = 16;
/// Both ways: the connection is reset, and the stream is closed.
pub const RESET: u8 = 0x0c;

const CONNECT: u16 = 51;
const RESOLVE: u16 = 52;
const OPENED: u16 = 1;

/// Bytes that a side may send on a stream before the first WINDOW.
pub const FIRST_WINDOW: u32 = 16_384;
/// Credit of one stream beyond what was taken.
pub const MAX_WINDOW: u32 = 1024 * 1024;
/// Credit of all streams beyond each one's first window.
pub const MAX_WIDENED: u32 = 4 * 1024 * 1024;

/// The nonce of a HELLO of any version.
pub fn read_hello(payload: &[u8]) -> Result<[u8; NONCE_BYTES], Malformed> {
    let mut fields = Reader::new(payload);
    let magic = fields.str()?;
    let nonce = fields.raw(NONCE_BYTES)?;
    fields.u16()?;
    fields.finish()?;
    if magic != MAGIC {
        return Err(Malformed);
    }
    nonce.try_into().map_err(|_| Malformed)
}

pub fn welcome(nonce: &[u8; NONCE_BYTES]) -> Vec<u8> {
    Writer::new().raw(nonce).u16(VERSION).str(GATEWAY).finish()
}

pub fn connect(address: Ipv4Addr, port: u16) -> Vec<u8> {
    let record = Writer::new().u16(CONNECT).u32(u32::from(address));
    record.u16(port).finish()
}

/// `name`: in lower case, without the last dot.
pub fn resolve(name: &[u8], kind: u16) -> Vec<u8> {
    Writer::new().u16(RESOLVE).str(name).u16(kind).finish()
}

pub fn window(credit: u32) -> Vec<u8> {
    Writer::new().u32(credit).finish()
}

pub fn end(total: u64) -> Vec<u8> {
    Writer::new().u64(total).finish()
}

pub fn reset() -> Vec<u8> {
    Writer::new().finish()
}

pub fn header(kind: u8, epoch: u16, stream: u32, length: usize) -> Header {
    Header {
        kind,
        flags: 0,
        epoch,
        stream,
        length: length as u32,
    }
}

/// Why a connection does not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Refused,
    Denied,
    /// No route, or no answer in time.
    Unreachable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub kind: u16,
    pub ttl: u32,
    pub data: &'a [u8],
}

#[derive(Debug, PartialEq, Eq)]
pub struct Answers<'a> {
    pub rcode: u8,
    pub records: Vec<Record<'a>>,
}

/// A frame of the relay on a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    Opened,
    Data(&'a [u8]),
    End,
    Window(u32),
    Answers(Answers<'a>),
    Fail(Refusal),
    Reset,
}

/// Frames of other types are malformed too.
pub fn read_message(kind: u8, payload: &[u8]) -> Result<Message<'_>, Malformed> {
    if kind == frames::DATA {
        return Ok(Message::Data(payload));
    }
    let mut fields = Reader::new(payload);
    let message = match kind {
        frames::EVENT if fields.u16()? == OPENED => Message::Opened,
        frames::END => {
            fields.u64()?;
            Message::End
        }
        frames::WINDOW => Message::Window(fields.u32()?),
        frames::RESULT => Message::Answers(read_answers(&mut fields)?),
        frames::FAIL => {
            let refusal = read_refusal(fields.str()?);
            fields.str()?;
            Message::Fail(refusal)
        }
        RESET => Message::Reset,
        _ => return Err(Malformed),
    };
    fields.finish()?;
    Ok(message)
}

/// A code of a later relay is taken for the one that says least.
fn read_refusal(code: &[u8]) -> Refusal {
    match code {
        b"refused" => Refusal::Refused,
        b"denied" => Refusal::Denied,
        _ => Refusal::Unreachable,
    }
}

/// Each record takes bytes of the payload, so a count that is too high fails before it uses memory.
fn read_answers<'a>(fields: &mut Reader<'a>) -> Result<Answers<'a>, Malformed> {
    let rcode = fields.u8()?;
    let count = fields.u32()?;
    let mut records = Vec::new();
    for _ in 0..count {
        records.push(Record {
            kind: fields.u16()?,
            ttl: fields.u32()?,
            data: fields.str()?,
        });
    }
    Ok(Answers { rcode, records })
}
