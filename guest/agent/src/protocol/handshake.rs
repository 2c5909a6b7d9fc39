//! HELLO and WELCOME.

use super::{Verb, AGENT, MAGIC, NONCE_BYTES};
use crate::record::{Malformed, Reader, Writer};

pub struct Welcome<'a> {
    pub nonce: &'a [u8],
    pub version: u16,
    pub is_awake: bool,
    pub pid: u32,
    /// The host asked for the list of verbs; an older one takes a WELCOME with a list for a malformed one.
    pub has_verbs: bool,
}

impl Welcome<'_> {
    pub fn record(&self) -> Vec<u8> {
        let mut record = Writer::new()
            .raw(self.nonce)
            .u16(self.version)
            .str(AGENT)
            .u8(self.is_awake.into())
            .u32(self.pid);
        if self.has_verbs {
            record = record.u32(Verb::ALL.len() as u32);
            for verb in Verb::ALL {
                record = record.u16(verb.number());
            }
        }
        record.finish()
    }
}

pub struct Hello {
    pub nonce: [u8; NONCE_BYTES],
    pub version: u16,
}

/// A HELLO with our magic, of any version.
pub fn read_hello(payload: &[u8]) -> Result<Hello, Malformed> {
    let mut fields = Reader::new(payload);
    let magic = fields.str()?;
    let nonce = fields.raw(NONCE_BYTES)?;
    let version = fields.u16()?;
    fields.finish()?;
    if magic != MAGIC {
        return Err(Malformed);
    }
    let nonce = nonce.try_into().map_err(|_| Malformed)?;
    Ok(Hello { nonce, version })
}
