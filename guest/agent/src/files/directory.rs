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
    read_names_at(dir, 0).map(|(names, _)| names)
}

/// Some of a directory's names from a position on, and the position behind them; none at its end. The position is 0 or one
/// that was returned for this directory, perhaps through another descriptor.
pub fn read_names_at(dir: &OwnedFd, position: i64) -> io::Result<(Vec<CString>, i64)> {
    // SAFETY: plain call.
    unsafe { libc::lseek(dir.as_raw_fd(), position, libc::SEEK_SET) };
    let mut buffer = vec![0u8; NAMES_BYTES];
    let mut names = Vec::new();
    let mut position = position;
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
        (names, position) = parse_names(&buffer[..count], position);
    }
    Ok((names, position))
}

/// From the kernel's `struct linux_dirent64`s.
fn parse_names(mut records: &[u8], mut position: i64) -> (Vec<CString>, i64) {
    const POSITION_AT: usize = 8;
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
        if let Some(next) = records[POSITION_AT..].first_chunk() {
            position = i64::from_ne_bytes(*next);
        }
        records = &records[length..];
    }
    (names, position)
}
