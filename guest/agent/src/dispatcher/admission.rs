//! Which requests are served now.

use super::Dispatcher;
use crate::memory;
use crate::protocol::{Code, Failure, Verb};
use crate::request::is_served_asleep;

/// A decoded request, with its strings for the kernel and the pointers to them, takes at most this many times its bytes:
/// an empty string has 4 of them.
const DECODED_SIZE: usize = 10;

impl Dispatcher {
    /// The verb that a request's number names, if it may be served. `bytes`: of the request.
    pub(super) fn admit(&self, number: u16, bytes: usize) -> Result<Verb, Failure> {
        let verb = Verb::from_number(number);
        let is_vital = verb.is_some_and(is_served_asleep);
        let (code, message) = if self.streams.is_full() {
            let message = "the capsule has too many operations under way";
            (Code::TooMany, message.to_string())
        } else if !self.supervisor.is_awake() && !is_vital {
            (Code::Asleep, "the capsule is asleep".to_string())
        } else if let Some(verb) = verb {
            if !is_vital {
                memory::admit(bytes * DECODED_SIZE)?;
            }
            return Ok(verb);
        } else {
            (Code::Invalid, format!("this agent has no verb {number}"))
        };
        Err(Failure::new(code, message))
    }
}
