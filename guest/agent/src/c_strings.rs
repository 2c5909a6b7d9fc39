//! Strings for the kernel, each ended by a NUL, in one allocation: a command has a dozen of them, and an allocation for
//! each would cost more than the copying.

use std::ffi::CStr;

use crate::protocol::{Code, Failure};

const USUAL_BYTES: usize = 256;

pub struct CStrings {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl CStrings {
    pub fn with_room_for(count: usize) -> CStrings {
        CStrings {
            bytes: Vec::with_capacity(USUAL_BYTES),
            starts: Vec::with_capacity(count),
        }
    }

    /// Adds one string, given in parts. A NUL in it is refused; the failure names the string as `what`.
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

    /// As `execve` takes them, with a null pointer last. Valid until these strings change.
    pub fn pointers(&self) -> Vec<*const libc::c_char> {
        let mut pointers = Vec::with_capacity(self.starts.len() + 1);
        let text = |&start: &usize| self.bytes[start..].as_ptr().cast();
        pointers.extend(self.starts.iter().map(text));
        pointers.push(std::ptr::null());
        pointers
    }
}

/// With `memchr`, which compares sixteen bytes at a time.
fn has_nul(text: &[u8]) -> bool {
    // SAFETY: `text` is as long as we say.
    !unsafe { libc::memchr(text.as_ptr().cast(), 0, text.len()) }.is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_joined_from_parts_and_separated() {
        let mut strings = CStrings::with_room_for(1);
        strings.push(&[b"A", b"=", b""], "it").unwrap();
        strings.push(&[], "it").unwrap();
        strings.push(&[&[b'x'; 2 * USUAL_BYTES]], "it").unwrap();
        let lengths: Vec<_> = strings.iter().map(|text| text.to_bytes().len()).collect();
        assert_eq!(lengths, [2, 0, 2 * USUAL_BYTES]);
        let pointers = strings.pointers();
        assert_eq!(pointers.len(), 4);
        assert!(pointers[3].is_null());
        // SAFETY: `strings` is unchanged, and each string ends in NUL.
        assert_eq!(unsafe { CStr::from_ptr(pointers[0]) }, c"A=");
    }

    #[test]
    fn a_nul_is_refused() {
        let mut strings = CStrings::with_room_for(1);
        let failure = strings.push(&[b"a", b"b\0c"], "an argument").unwrap_err();
        assert_eq!(
            failure,
            Failure::new(Code::Invalid, "an argument contains a NUL")
        );
        assert!(strings.is_empty());
    }
}
