//! Which paths are mount points: REMOVE stays within one file system.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys;

pub fn is_mount_point(dir: &OwnedFd, name: &CStr) -> bool {
    const STATX_ATTR_MOUNT_ROOT: u64 = 0x2000;
    let mut stat = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    // SAFETY: `stat` is what the call fills; where it fails it stays all zero.
    unsafe {
        libc::statx(dir.as_raw_fd(), name.as_ptr(), flags, 0, stat.as_mut_ptr());
        stat.assume_init().stx_attributes & STATX_ATTR_MOUNT_ROOT != 0
    }
}

/// Whether something is mounted at or below `path`, which lies in `parent`.
pub fn holds_mount_point(path: &Path, parent: &OwnedFd) -> io::Result<bool> {
    let path = path.canonicalize()?;
    let Ok(table) = File::open("/proc/self/mountinfo") else {
        return Ok(false);
    };
    for line in BufReader::new(table).split(b'\n') {
        let at = line?
            .split(|&byte| byte == b' ')
            .nth(4)
            .map(unescape)
            .unwrap_or_default();
        let at = Path::new(OsStr::from_bytes(&at));
        // The table also lists mounts that are hidden by another one.
        if at.starts_with(&path)
            && is_mount_point(parent, &sys::c_string(at.as_os_str().as_bytes())?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The kernel writes white space and backslashes as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, others)) = rest.split_first() {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', others @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = others;
            }
            _ => {
                bytes.push(byte);
                rest = others;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_three_octal_digits() {
        assert_eq!(unescape(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescape(br"/a\04"), br"/a\04");
    }

    #[test]
    fn proc_is_a_mount_point_and_a_new_folder_holds_none() {
        let root = sys::open(c"/", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        assert!(is_mount_point(&root, c"proc"));
        assert!(!is_mount_point(&root, c"/proc/self"));
        assert!(holds_mount_point(Path::new("/proc"), &root).unwrap());
        let dir = std::env::temp_dir().join(format!("capsule-mounts-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(!holds_mount_point(&dir, &root).unwrap());
        std::fs::remove_dir(&dir).unwrap();
    }
}
