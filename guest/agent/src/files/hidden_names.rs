//! Temporary names: a file is made under one, and a rename gives it its own. A watch (WATCH) tells nothing of such a name, and
//! learns from its last digit whether the rename replaces a file.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::{self, check};

const PREFIX: &[u8] = b".capsule-";
const DIGITS: usize = 16;
const NEW: u8 = b'0';
const REPLACES: u8 = b'1';

pub fn hidden_name(replaces: bool) -> io::Result<CString> {
    let mut name = [PREFIX, sys::hex(&sys::random::<8>()).as_bytes()].concat();
    if let Some(last) = name.last_mut() {
        *last = if replaces { REPLACES } else { NEW };
    }
    sys::c_string(&name)
}

pub fn is_hidden(name: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix(PREFIX)
        .is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(is_digit))
}

pub fn marks_replacement(name: &[u8]) -> bool {
    name.last() == Some(&REPLACES)
}

/// Renames to another temporary name, which it returns.
pub fn rehide(dir: &OwnedFd, name: &CStr, to_dir: &OwnedFd, replaces: bool) -> io::Result<CString> {
    let hidden = hidden_name(replaces)?;
    let (dir, to_dir) = (dir.as_raw_fd(), to_dir.as_raw_fd());
    // SAFETY: both names end in NUL.
    check(unsafe { libc::renameat(dir, name.as_ptr(), to_dir, hidden.as_ptr()) })?;
    Ok(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_name_says_whether_it_replaces_a_file() {
        for replaces in [false, true] {
            let name = hidden_name(replaces).unwrap();
            assert!(is_hidden(name.to_bytes()), "{name:?}");
            assert_eq!(marks_replacement(name.to_bytes()), replaces);
        }
        for other in [
            ".capsule-0123456789abcde",
            ".capsule-0123456789abcdef0",
            ".capsule-0123456789abcdeg",
            ".capsule-0123456789ABCDEF",
            "x.capsule-0123456789abcdef",
        ] {
            assert!(!is_hidden(other.as_bytes()), "{other}");
        }
    }
}
