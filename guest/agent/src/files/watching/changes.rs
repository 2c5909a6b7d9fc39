//! The changes of one step, encoded.

use std::collections::BTreeSet;

use crate::files::watching::inotify::Wd;
use crate::record::Writer;

/// Most bytes of a path that the host reads.
const MAX_PATH_BYTES: usize = 4_096;

/// The kinds of a change record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Create = 0,
    Write = 1,
    Remove = 2,
    Rename = 3,
    Chmod = 4,
    /// Changes were lost.
    Overflow = 5,
}

#[derive(Default)]
pub struct Changes {
    data: Vec<u8>,
    /// Files whose last told change is a write of this step: another one is not told.
    written: BTreeSet<(Wd, Vec<u8>)>,
    ends_in_overflow: bool,
}

impl Changes {
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// A path that is too long is not told: it leads nowhere.
    pub fn tell(&mut self, kind: Kind, path: &[u8], to: Option<&[u8]>) {
        let is_long = |path: &[u8]| path.len() > MAX_PATH_BYTES;
        if is_long(path) || to.is_some_and(is_long) {
            self.overflow();
            return;
        }
        self.written.clear();
        self.push(kind, path, to);
    }

    pub fn write(&mut self, wd: Wd, name: &[u8], path: &[u8]) {
        if !self.written.contains(&(wd, name.to_vec())) {
            let mut written = std::mem::take(&mut self.written);
            self.tell(Kind::Write, path, None);
            written.insert((wd, name.to_vec()));
            self.written = written;
        }
    }

    pub fn overflow(&mut self) {
        if !self.ends_in_overflow {
            self.written.clear();
            self.push(Kind::Overflow, b"", None);
        }
    }

    fn push(&mut self, kind: Kind, path: &[u8], to: Option<&[u8]>) {
        self.data.extend(record(kind, path, to));
        self.ends_in_overflow = kind == Kind::Overflow;
    }
}

pub fn record(kind: Kind, path: &[u8], to: Option<&[u8]>) -> Vec<u8> {
    Writer::new().u8(kind as u8).str(path).optional(to).bare()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_a_file_are_one_until_another_change() {
        let mut changes = Changes::default();
        for _ in 0..3 {
            changes.write(1, b"a", b"/a");
            changes.write(1, b"b", b"/b");
        }
        changes.tell(Kind::Create, b"/c", None);
        changes.write(1, b"a", b"/a");
        let expected = [
            record(Kind::Write, b"/a", None),
            record(Kind::Write, b"/b", None),
            record(Kind::Create, b"/c", None),
            record(Kind::Write, b"/a", None),
        ];
        assert_eq!(changes.into_data(), expected.concat());
    }

    #[test]
    fn overflows_in_a_row_and_long_paths_are_one() {
        let mut changes = Changes::default();
        changes.overflow();
        changes.tell(Kind::Create, &[b'/'; MAX_PATH_BYTES + 1], None);
        assert_eq!(changes.into_data(), record(Kind::Overflow, b"", None));
    }
}
