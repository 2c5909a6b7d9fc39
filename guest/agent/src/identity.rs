//! The identity files: /etc/hostname, /etc/hosts and /etc/machine-id.
//!
//! A file is changed where it still has the value that WAKE gave it last, or none; another value is the user's. The first
//! WAKE after boot replaces the image's. A file is written only if its content differs, and in place, so that it works with
//! a full disk. Foreign lines of /etc/hosts stay, whatever bytes they hold. Other than regular files are left alone.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::hosts::hosts_with;
use crate::sys::context;

/// A larger file is left alone, to bound the memory it takes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The names of a capsule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub hostname: String,
    pub machine_id: String,
}

/// The value that a file has from WAKE; `None` before the first one. If it could not be written: that which it had then.
type Given = Option<Vec<u8>>;

pub struct IdentityFiles {
    root: PathBuf,
    hostname: Given,
    hosts: Given,
    machine_id: Given,
}

impl IdentityFiles {
    pub fn below(root: &Path) -> IdentityFiles {
        IdentityFiles {
            root: root.into(),
            hostname: None,
            hosts: None,
            machine_id: None,
        }
    }

    /// Does what can be done; returns a sentence for each file that could not be changed.
    pub fn update(&mut self, names: &Names) -> Vec<String> {
        let file = |name: &str| self.root.join("etc").join(name);
        let (hostname, machine_id) = (names.hostname.as_bytes(), names.machine_id.as_bytes());
        // First, since the image's /etc/hostname says which name the image's /etc/hosts has.
        let hosts = rename_host(&file("hosts"), &file("hostname"), &mut self.hosts, hostname);
        let machine_id = replace(&file("machine-id"), &mut self.machine_id, machine_id, 0o444);
        let hostname = replace(&file("hostname"), &mut self.hostname, hostname, 0o644);
        let results = [hosts, machine_id, hostname];
        results.into_iter().filter_map(Result::err).collect()
    }
}

/// For a file that holds nothing but the value.
fn replace(path: &Path, given: &mut Given, new: &[u8], mode: u32) -> Result<(), String> {
    if given.as_deref() == Some(new) {
        return Ok(());
    }
    let text = read(path)?;
    let old = text.trim_ascii();
    let is_first = given.is_none();
    let is_given = given.as_deref() == Some(old);
    // systemd's word for a machine id that is to be made at the next boot.
    let has_none = old.is_empty() || old == b"uninitialized";
    if !(is_first || is_given || has_none) {
        return Ok(());
    }
    given.get_or_insert_with(|| old.to_vec());
    put(path, &text, &[new, b"\n"].concat(), mode)?;
    *given = Some(new.to_vec());
    Ok(())
}

fn rename_host(path: &Path, hostname: &Path, given: &mut Given, new: &[u8]) -> Result<(), String> {
    if given.as_deref() == Some(new) {
        return Ok(());
    }
    let text = read(path)?;
    let is_first = given.is_none();
    let old = given.get_or_insert_with(|| {
        let name = read(hostname).unwrap_or_default();
        name.trim_ascii().to_vec()
    });
    let needs_line = is_first || text.is_empty();
    put(path, &text, &hosts_with(&text, old, new, needs_line), 0o644)?;
    *given = Some(new.to_vec());
    Ok(())
}

/// The content; of a missing file, nothing.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    context(
        read_file(path),
        format!("{} cannot be read", path.display()),
    )
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // Checked before it is opened, since opening a device may have an effect.
    let is_file = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A link without a target is the user's: a file is not made where it points.
            return match std::fs::symlink_metadata(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                _ => Err(error),
            };
        }
        status => status?.is_file(),
    };
    if !is_file {
        return Err(io::Error::other("it is not a regular file"));
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("it is longer than 1 MiB"));
    }
    Ok(bytes)
}

/// In place, so that no new block is needed unless the text grows.
fn put(path: &Path, old: &[u8], text: &[u8], mode: u32) -> Result<(), String> {
    if old == text {
        return Ok(());
    }
    context(
        overwrite(path, text, mode),
        format!("{} cannot be written", path.display()),
    )
}

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

    const ID: &str = "0123456789abcdef0123456789abcdef";
    const OTHER_ID: &str = "f0123456789abcdef0123456789abcde";

    /// Its folder is removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(test: &str) -> Root {
            let root = std::env::temp_dir().join(format!("capsule-{test}-{}", std::process::id()));
            std::fs::create_dir_all(root.join("etc")).unwrap();
            Root(root)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join("etc").join(name)
        }

        fn put(&self, name: &str, text: &str) {
            std::fs::write(self.file(name), text).unwrap();
        }

        /// hostname, hosts, machine-id
        fn texts(&self) -> [String; 3] {
            ["hostname", "hosts", "machine-id"]
                .map(|name| std::fs::read_to_string(self.file(name)).unwrap_or_default())
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn named(hostname: &str, machine_id: &str) -> Names {
        Names {
            hostname: hostname.into(),
            machine_id: machine_id.into(),
        }
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn the_first_wake_replaces_the_images_names_and_a_later_one_its_own() {
        let root = Root::new("identity");
        root.put("hostname", "capsule\n");
        root.put("hosts", "127.0.0.1 localhost capsule\n");
        let mut files = IdentityFiles::below(&root.0);
        assert_eq!(files.update(&named("cl-1", ID)), NONE);
        let id = format!("{ID}\n");
        assert_eq!(
            root.texts(),
            ["cl-1\n", "127.0.0.1 localhost cl-1\n", id.as_str()]
        );
        assert_eq!(files.update(&named("cl", OTHER_ID)), NONE);
        let id = format!("{OTHER_ID}\n");
        assert_eq!(
            root.texts(),
            ["cl\n", "127.0.0.1 localhost cl\n", id.as_str()]
        );
    }

    #[test]
    fn values_of_the_user_stay() {
        let root = Root::new("own");
        let mut files = IdentityFiles::below(&root.0);
        files.update(&named("cl-1", ID));
        root.put("hostname", "db1\n");
        root.put("hosts", "10.0.0.1 db1\n");
        root.put("machine-id", OTHER_ID);
        for name in ["cl-1", "cl-2"] {
            assert_eq!(files.update(&named(name, &name.repeat(8))), NONE);
            assert_eq!(
                root.texts(),
                ["db1\n", "10.0.0.1 db1\n", OTHER_ID],
                "{name}"
            );
        }
    }

    #[test]
    fn what_has_no_value_gets_one_in_a_new_capsule_only() {
        let root = Root::new("unset");
        let mut files = IdentityFiles::below(&root.0);
        files.update(&named("cl-1", ID));
        std::fs::remove_file(root.file("hostname")).unwrap();
        root.put("hosts", "");
        root.put("machine-id", "uninitialized\n");
        files.update(&named("cl-1", ID));
        assert_eq!(root.texts(), ["", "", "uninitialized\n"]);
        files.update(&named("cl-2", OTHER_ID));
        let id = format!("{OTHER_ID}\n");
        assert_eq!(root.texts(), ["cl-2\n", "127.0.1.1 cl-2\n", id.as_str()]);
    }

    #[test]
    fn other_than_regular_files_are_left_alone_and_reported() {
        let root = Root::new("odd");
        std::os::unix::fs::symlink("/dev/zero", root.file("hosts")).unwrap();
        let fifo = crate::sys::c_string(root.file("hostname").as_os_str().as_bytes()).unwrap();
        // SAFETY: `fifo` ends in NUL.
        crate::sys::check(unsafe { libc::mkfifo(fifo.as_ptr(), 0o644) }).unwrap();
        let huge = vec![b'#'; MAX_FILE_BYTES as usize + 1];
        std::fs::write(root.file("machine-id"), &huge).unwrap();
        let mut files = IdentityFiles::below(&root.0);
        let problems = files.update(&named("cl-1", ID));
        assert_eq!(problems.len(), 3);
        assert!(problems[0].ends_with("hosts cannot be read: it is not a regular file"));
        assert!(problems[1].ends_with("machine-id cannot be read: it is longer than 1 MiB"));
        assert_eq!(std::fs::read(root.file("machine-id")).unwrap(), huge);
    }

    #[test]
    fn a_link_without_a_target_and_a_directory_are_left_alone() {
        let root = Root::new("link");
        let target = root.file("elsewhere");
        std::os::unix::fs::symlink(&target, root.file("hostname")).unwrap();
        std::fs::create_dir(root.file("machine-id")).unwrap();
        let mut files = IdentityFiles::below(&root.0);
        assert_eq!(files.update(&named("cl-1", ID)).len(), 2);
        assert!(!target.exists());
        // A file that could not be written is tried again, in the same capsule too.
        std::fs::remove_file(root.file("hostname")).unwrap();
        assert_eq!(files.update(&named("cl-1", ID)).len(), 1);
        assert_eq!(root.texts()[0], "cl-1\n");
    }
}
