//! The names in an open directory, without a `DIR` of the C library.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::check;

/// How much is read at once.
const NAMES_BYTES: usize = 32 * 1024;

/// Some of a directory's names, from its beginning; none when it is empty.
pub fn read_names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    // The directory may have been read before.
    // SAFETY: plain call.
    unsafe { libc::lseek(dir.as_raw_fd(), 0, libc::SEEK_SET) };
    let mut buffer = vec![0u8; NAMES_BYTES];
    let mut names = Vec::new();
    while names.is_empty() {
        // SAFETY: `buffer` has that much room.
        let count = unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                dir.as_raw_fd(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        let count = check(count as libc::c_int)? as usize;
        if count == 0 {
            break;
        }
        names = parse_names(&buffer[..count]);
    }
    Ok(names)
}

/// From the kernel's `struct linux_dirent64`s.
fn parse_names(mut records: &[u8]) -> Vec<CString> {
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let mut names = Vec::new();
    while records.len() > NAME_AT {
        let length = u16::from_ne_bytes([records[LENGTH_AT], records[LENGTH_AT + 1]]) as usize;
        if length <= NAME_AT || length > records.len() {
            break;
        }
        if let Ok(name) = CStr::from_bytes_until_nul(&records[NAME_AT..length]) {
            if name != c"." && name != c".." {
                names.push(name.to_owned());
            }
        }
        records = &records[length..];
    }
    names
}
