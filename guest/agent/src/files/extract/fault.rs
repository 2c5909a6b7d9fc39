//! Why an extraction ends early.

use std::io;

/// Why an archive, or one of its members, is not extracted.
#[derive(Debug)]
pub enum Fault {
    /// The archive as a whole cannot be read.
    Damaged(String),
    /// A member's name, and why it is not written.
    Refused(Vec<u8>, String),
    System(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::System(error)
    }
}

pub fn damaged(what: &str) -> Fault {
    Fault::Damaged(what.to_string())
}

pub fn refused(name: &[u8], what: &str) -> Fault {
    Fault::Refused(name.to_vec(), what.to_string())
}
