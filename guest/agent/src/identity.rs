//! The identity files: /etc/hostname, /etc/hosts and /etc/machine-id.
//!
//! A file is written only if its content differs, and in place, so that WAKE works with a full disk. Foreign lines of
//! /etc/hosts stay, whatever bytes they hold. A file that cannot be read is not written, and neither is one that is not a
//! regular file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::sys::context;

/// A larger file is left alone, to bound the memory it takes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

pub fn write(root: &Path, hostname: &str, machine_id: &str) -> Result<(), String> {
    let file = |name: &str| root.join("etc").join(name);
    let old_hostname = read(&file("hostname"))?.unwrap_or_default();
    if let Some(hosts) = read(&file("hosts"))? {
        let hosts = hosts_with(&hosts, old_hostname.trim_ascii(), hostname);
        put(&file("hosts"), &hosts, 0o644)?;
    }
    put(
        &file("machine-id"),
        format!("{machine_id}\n").as_bytes(),
        0o444,
    )?;
    // Last: a WAKE that failed half-way can be repeated as long as this file has the old name.
    put(&file("hostname"), format!("{hostname}\n").as_bytes(), 0o644)
}

/// `hosts` with the old name replaced by the new one, or with a new line. All other lines stay byte for byte.
fn hosts_with(hosts: &[u8], old: &[u8], new: &str) -> Vec<u8> {
    let new = new.as_bytes();
    if hosts.split(is_newline).any(|line| names(line, new)) {
        return hosts.to_vec();
    }
    let is_replaceable = !old.is_empty() && old != b"localhost";
    let mut has_name = false;
    let mut text = Vec::with_capacity(hosts.len() + 64);
    for line in hosts.split_inclusive(is_newline) {
        if is_replaceable && names(line, old) {
            has_name = true;
            let renamed = fields(line).map(|field| if field == old { new } else { field });
            text.extend(renamed.collect::<Vec<_>>().join(&b' '));
        } else {
            text.extend(line.strip_suffix(b"\n").unwrap_or(line));
        }
        text.push(b'\n');
    }
    if !has_name {
        text.extend([b"127.0.1.1 ".as_slice(), new, b"\n"].concat());
    }
    text
}

fn is_newline(byte: &u8) -> bool {
    *byte == b'\n'
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
}

/// Whether the line gives this name to an address.
fn names(line: &[u8], name: &[u8]) -> bool {
    let entry = line.split(|&byte| byte == b'#').next().unwrap_or(line);
    fields(entry).skip(1).any(|field| field == name)
}

/// The content; of a missing file, nothing. `None`: not a regular file, such as a fifo, whose read might block for ever; or
/// too long.
fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match read_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(Vec::new())),
        result => context(result, format!("{} cannot be read", path.display())),
    }
}

fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Checked before it is opened, since opening a device may have an effect.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= MAX_FILE_BYTES))
}

fn put(path: &Path, text: &[u8], mode: u32) -> Result<(), String> {
    match read(path)? {
        Some(old) if old != text => {
            let result = overwrite(path, text, mode);
            context(result, format!("{} cannot be written", path.display()))
        }
        _ => Ok(()),
    }
}

/// In place, so that no new block is needed unless the text grows.
fn overwrite(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let file: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    file.write_all_at(text, 0)?;
    // Names of capsules have one length, so this is rare. Truncating to the same length would still cost time.
    if file.metadata()?.len() != text.len() as u64 {
        file.set_len(text.len() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn root(test: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("capsule-{test}-{}", std::process::id()));
        std::fs::create_dir_all(root.join("etc")).unwrap();
        root
    }

    #[test]
    fn hosts_keeps_foreign_lines() {
        let with = |hosts: &str, old: &str| {
            String::from_utf8(hosts_with(hosts.as_bytes(), old.as_bytes(), "cl-1")).unwrap()
        };
        let hosts = "127.0.0.1 localhost capsule\n# capsule in a comment\n10.0.0.1 db\n";
        assert_eq!(
            with(hosts, "capsule"),
            "127.0.0.1 localhost cl-1\n# capsule in a comment\n10.0.0.1 db\n"
        );
        assert_eq!(with("10.0.0.1 db", "x"), "10.0.0.1 db\n127.0.1.1 cl-1\n");
        assert_eq!(with("127.0.1.1 cl-1", "x"), "127.0.1.1 cl-1");
        assert_eq!(with("", ""), "127.0.1.1 cl-1\n");
    }

    #[test]
    fn hosts_may_hold_bytes_that_are_not_utf8() {
        let hosts = b"10.0.0.1 db # gr\xfc\xdfe\n127.0.1.1 old\n";
        assert_eq!(
            hosts_with(hosts, b"old", "cl-1"),
            b"10.0.0.1 db # gr\xfc\xdfe\n127.0.1.1 cl-1\n"
        );
    }

    #[test]
    fn identity_files_are_made_and_then_changed_in_place() {
        let root = root("identity");
        write(&root, "cl-new", ID).unwrap();
        let read = |name: &str| std::fs::read_to_string(root.join("etc").join(name)).unwrap();
        assert_eq!(read("hostname"), "cl-new\n");
        write(&root, "cl", ID).unwrap();
        assert_eq!(
            (read("hostname"), read("hosts")),
            ("cl\n".into(), "127.0.1.1 cl\n".into())
        );
        assert_eq!(read("machine-id").len(), 33);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn other_than_regular_files_are_left_alone() {
        let root = root("odd");
        let etc = root.join("etc");
        std::os::unix::fs::symlink("/dev/zero", etc.join("hosts")).unwrap();
        let fifo = crate::sys::c_string(etc.join("hostname").as_os_str().as_bytes()).unwrap();
        // SAFETY: `fifo` ends in NUL.
        crate::sys::check(unsafe { libc::mkfifo(fifo.as_ptr(), 0o644) }).unwrap();
        let huge = vec![b'#'; MAX_FILE_BYTES as usize + 1];
        std::fs::write(etc.join("machine-id"), &huge).unwrap();
        write(&root, "cl", ID).unwrap();
        assert_eq!(std::fs::read(etc.join("machine-id")).unwrap(), huge);
        std::fs::remove_file(etc.join("machine-id")).unwrap();
        std::fs::create_dir(etc.join("machine-id")).unwrap();
        write(&root, "cl", ID).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
    }
}
