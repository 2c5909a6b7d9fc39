//! The records of kept output: ATTACH_FROM and LOGS.

use super::event;
use crate::record::{Malformed, Reader, Writer};

/// Where a client's output begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    Start,
    Now,
    Offset(u64),
    /// A terminal's last output.
    Screen,
}

impl Position {
    pub fn read(fields: &mut Reader) -> Result<Position, Malformed> {
        match (fields.u8()?, fields.u64()?) {
            (0, 0) => Ok(Position::Start),
            (1, 0) => Ok(Position::Now),
            (2, offset) => Ok(Position::Offset(offset)),
            (3, 0) => Ok(Position::Screen),
            _ => Err(Malformed),
        }
    }
}

/// The offset of the first byte of output that follows.
pub fn position_event(offset: u64) -> Vec<u8> {
    Writer::new().u16(event::POSITION).u64(offset).finish()
}

/// How much output follows, and how much was dropped before.
pub fn kept_event(size: u64, dropped: u64) -> Vec<u8> {
    let event = Writer::new().u16(event::KEPT);
    event.u64(size).u64(dropped).finish()
}
