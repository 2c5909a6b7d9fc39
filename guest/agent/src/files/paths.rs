//! Clients' paths, and failures with them.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::protocol::{Code, Failure};
use crate::sys::reason;

const MAX_PATH_BYTES: usize = 4_096;

/// An absolute path without `//`, `/./` and a slash at the end. `..` is resolved in the file system, since a link may
/// precede it.
pub fn normalize(path: &[u8]) -> Result<PathBuf, Failure> {
    if path.first() != Some(&b'/') {
        return Err(invalid(path, "is not an absolute path"));
    }
    if path.contains(&0) {
        return Err(invalid(path, "contains a NUL"));
    }
    if path.len() > MAX_PATH_BYTES {
        return Err(invalid(path, "is longer than 4096 bytes"));
    }
    let parts: Vec<&[u8]> = path
        .split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty() && part != b".")
        .collect();
    let mut clean = vec![b'/'];
    clean.extend(parts.join(&b'/'));
    let clean = Path::new(OsStr::from_bytes(&clean)).to_path_buf();
    if parts.contains(&b"..".as_slice()) {
        return resolve_dots(&clean);
    }
    Ok(clean)
}

/// Resolves the path up to the last `..`, which must exist. The rest stays as it is, so that a link at the end is kept.
fn resolve_dots(path: &Path) -> Result<PathBuf, Failure> {
    let parts: Vec<_> = path.components().collect();
    let last = parts
        .iter()
        .rposition(|part| part.as_os_str() == "..")
        .unwrap_or(0);
    let (up, rest) = parts.split_at(last + 1);
    let base: PathBuf = up.iter().collect();
    let base = base.canonicalize().map_err(|error| failure(path, &error))?;
    Ok(base.join(rest.iter().collect::<PathBuf>()))
}

/// The last component; `/` for the root.
pub fn name_of(path: &Path) -> &[u8] {
    path.file_name().unwrap_or(path.as_os_str()).as_bytes()
}

/// A path for a message.
pub fn display_path(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

pub fn invalid(path: impl AsRef<[u8]>, what: &str) -> Failure {
    named(Code::Invalid, path, what)
}

pub fn named(code: Code, path: impl AsRef<[u8]>, what: &str) -> Failure {
    let path = String::from_utf8_lossy(path.as_ref()).into_owned();
    Failure::new(code, format!("{path} {what}"))
}

/// The failure for a system call's error on this path.
pub fn failure(path: &Path, error: &io::Error) -> Failure {
    let path = path.as_os_str().as_bytes();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => named(Code::NotFound, path, "does not exist"),
        Some(libc::EISDIR) => named(Code::IsDirectory, path, "is a directory"),
        Some(libc::ENOSPC | libc::EDQUOT) => {
            named(Code::NoSpace, path, "does not fit: no space left")
        }
        Some(libc::EFBIG) => named(Code::TooLarge, path, "is larger than the file system takes"),
        Some(libc::EIO | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            Failure::new(Code::Internal, describe(path, error))
        }
        _ => Failure::new(Code::Invalid, describe(path, error)),
    }
}

fn describe(path: &[u8], error: &io::Error) -> String {
    format!("{}: {}", String::from_utf8_lossy(path), reason(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized() {
        let clean = |path: &str| normalize(path.as_bytes()).map(|path| path.display().to_string());
        assert_eq!(clean("/").unwrap(), "/");
        assert_eq!(clean("//a/./b//").unwrap(), "/a/b");
        assert_eq!(clean("/proc/../proc/version").unwrap(), "/proc/version");
        assert_eq!(clean("/..").unwrap(), "/");
        assert_eq!(
            clean("/no-such-thing/../x").unwrap_err().code,
            Code::NotFound
        );
        for bad in ["", "a", "./a", "/a\0b"] {
            assert_eq!(clean(bad).unwrap_err().code, Code::Invalid, "{bad:?}");
        }
        assert!(clean(&format!("/{}", "a".repeat(4_096))).is_err());
    }
}
