//! Requests that come in several OPEN frames.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::memory;
use crate::protocol::{Code, Failure, MAX_REQUEST_BYTES};

/// Requests whose last frame has not come yet.
const MAX_REQUESTS: usize = 64;
const MAX_BYTES: usize = 4 * MAX_REQUEST_BYTES;

#[derive(Default)]
pub struct PartialRequests {
    /// By stream.
    requests: BTreeMap<u32, Vec<u8>>,
}

impl PartialRequests {
    pub fn clear(&mut self) {
        self.requests.clear();
    }

    pub fn remove(&mut self, stream: u32) {
        self.requests.remove(&stream);
    }

    /// Adds a frame's payload. `None`: more of the request is to come. A request in one frame is not copied.
    pub fn add<'a>(
        &mut self,
        stream: u32,
        has_more: bool,
        payload: &'a [u8],
    ) -> Option<Result<Cow<'a, [u8]>, Failure>> {
        if !has_more && !self.requests.contains_key(&stream) {
            return Some(Ok(Cow::Borrowed(payload)));
        }
        let total: usize = self.requests.values().map(Vec::len).sum();
        let request = self.requests.entry(stream).or_default();
        if let Err(failure) = memory::extend(request, payload) {
            self.requests.remove(&stream);
            return Some(Err(failure));
        }
        let refusal = if request.len() > MAX_REQUEST_BYTES {
            Some((Code::TooLarge, "the request is too long"))
        } else if total + payload.len() > MAX_BYTES || self.requests.len() > MAX_REQUESTS {
            Some((Code::TooMany, "too many long requests at once"))
        } else {
            None
        };
        if let Some((code, message)) = refusal {
            self.requests.remove(&stream);
            return Some(Err(Failure::new(code, message)));
        }
        if has_more {
            return None;
        }
        self.requests.remove(&stream).map(Cow::Owned).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_put_together_and_forgotten() {
        let mut partial = PartialRequests::default();
        assert!(partial.add(7, true, b"one ").is_none());
        assert!(partial.add(8, true, b"other").is_none());
        let whole = partial.add(7, false, b"two").unwrap();
        assert_eq!(whole.as_deref(), Ok(b"one two".as_slice()));
        let alone = partial.add(7, false, b"alone").unwrap();
        assert_eq!(alone, Ok(Cow::Borrowed(b"alone".as_slice())));
        partial.remove(8);
        let rest = partial.add(8, false, b"rest").unwrap();
        assert_eq!(rest.as_deref(), Ok(b"rest".as_slice()));
    }

    #[test]
    fn long_and_many_requests_are_refused() {
        let mut partial = PartialRequests::default();
        let code = |result: Option<Result<Cow<[u8]>, Failure>>| result.unwrap().unwrap_err().code;
        let half = vec![0; MAX_REQUEST_BYTES / 2 + 1];
        assert!(partial.add(1, true, &half).is_none());
        assert_eq!(code(partial.add(1, false, &half)), Code::TooLarge);
        for stream in 0..MAX_REQUESTS as u32 {
            assert!(partial.add(stream, true, b"").is_none());
        }
        assert_eq!(code(partial.add(1_000, true, b"")), Code::TooMany);
        partial.clear();
        let whole = vec![0; MAX_REQUEST_BYTES];
        for stream in 0..4 {
            assert!(partial.add(stream, true, &whole).is_none());
        }
        assert_eq!(code(partial.add(4, true, b"x")), Code::TooMany);
    }
}
