//! Texts for the kernel, each ended by a NUL, in one piece of memory: a command has a dozen of them, and an allocation for
//! each would cost more than all that is written.

use std::ffi::CStr;

use crate::protocol::{Code, Failure};

const USUAL_BYTES: usize = 256;

pub struct Texts {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Texts {
    pub fn with_room_for(count: usize) -> Texts {
        Texts {
            bytes: Vec::with_capacity(USUAL_BYTES),
            starts: Vec::with_capacity(count),
        }
    }

    /// One text, given in parts. Refused when there is a NUL in it; `what` it is goes into the failure.
    pub fn push(&mut self, parts: &[&[u8]], what: &str) -> Result<(), Failure> {
        if parts.iter().any(|part| has_nul(part)) {
            let message = format!("{what} contains a NUL");
            return Err(Failure::new(Code::Invalid, message));
        }
        self.starts.push(self.bytes.len());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.bytes.push(0);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &CStr> {
        let text = |&start| CStr::from_bytes_until_nul(&self.bytes[start..]).unwrap_or_default();
        self.starts.iter().map(text)
    }

    /// As `execve` takes them, a null pointer last. Valid as long as these texts are left as they are.
    pub fn pointers(&self) -> Vec<*const libc::c_char> {
        let mut pointers = Vec::with_capacity(self.starts.len() + 1);
        let text = |&start: &usize| self.bytes[start..].as_ptr().cast();
        pointers.extend(self.starts.iter().map(text));
        pointers.push(std::ptr::null());
        pointers
    }
}

/// By the C library, which looks at sixteen bytes at a time.
fn has_nul(text: &[u8]) -> bool {
    // SAFETY: `text` is as long as we say.
    !unsafe { libc::memchr(text.as_ptr().cast(), 0, text.len()) }.is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_put_together_and_told_apart() {
        let mut texts = Texts::with_room_for(1);
        texts.push(&[b"A", b"=", b""], "it").unwrap();
        texts.push(&[], "it").unwrap();
        texts.push(&[&[b'x'; 2 * USUAL_BYTES]], "it").unwrap();
        let lengths: Vec<_> = texts.iter().map(|text| text.to_bytes().len()).collect();
        assert_eq!(lengths, [2, 0, 2 * USUAL_BYTES]);
        let pointers = texts.pointers();
        assert_eq!(pointers.len(), 4);
        assert!(pointers[3].is_null());
        // SAFETY: `texts` is unchanged, and each of its texts ends in NUL.
        assert_eq!(unsafe { CStr::from_ptr(pointers[0]) }, c"A=");
    }

    #[test]
    fn a_nul_would_hide_the_rest() {
        let mut texts = Texts::with_room_for(1);
        let failure = texts.push(&[b"a", b"b\0c"], "an argument").unwrap_err();
        assert_eq!(
            failure,
            Failure::new(Code::Invalid, "an argument contains a NUL")
        );
        assert!(texts.is_empty());
    }
}
