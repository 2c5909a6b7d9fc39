//! The headers of a member: one ustar header, preceded by records where a value does not fit into it.
//!
//! A long name that is UTF-8 goes into a pax record, any other into GNU's long name, which is bytes: pax has names of
//! characters only.

use crate::files::archive::extents::Extent;
use crate::files::tar::{field, kind, padding, set_checksum, Block, BLOCK_BYTES, USTAR_MAGIC};

const MAX_OCTAL_SIZE: u64 = 0o77_777_777_777;
const MAX_OCTAL_ID: u32 = 0o7_777_777;

pub struct Member<'a> {
    pub name: &'a [u8],
    pub kind: u8,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub owner: &'a [u8],
    pub group: &'a [u8],
    pub size: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// The target of a link.
    pub link: &'a [u8],
}

impl Member<'_> {
    /// The headers of a file whose holes are left out, and the map of its extents, which is the beginning of its content.
    pub fn sparse_headers(&self, extents: &[Extent]) -> Vec<u8> {
        let map = sparse_map(extents);
        let stored: u64 = extents.iter().map(|extent| extent.length).sum();
        let mut records = Vec::new();
        record(&mut records, "GNU.sparse.major", b"1");
        record(&mut records, "GNU.sparse.minor", b"0");
        record(&mut records, "GNU.sparse.name", self.name);
        let size = self.size.to_string();
        record(&mut records, "GNU.sparse.realsize", size.as_bytes());
        let placed = Member {
            name: b"GNUSparseFile.0/content",
            size: map.len() as u64 + stored,
            ..*self
        };
        placed.add_records(&mut records);
        let mut bytes = Vec::new();
        extension(&mut bytes, kind::PAX, &records);
        bytes.extend(placed.block());
        bytes.extend(map);
        bytes
    }

    pub fn headers(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (text, room, kind) in [
            (self.name, field::NAME.len(), kind::GNU_NAME),
            (self.link, field::LINK.len(), kind::GNU_LINK),
        ] {
            if text.len() > room && std::str::from_utf8(text).is_err() {
                extension(&mut bytes, kind, &[text, b"\0"].concat());
            }
        }
        let mut records = Vec::new();
        self.add_records(&mut records);
        if !records.is_empty() {
            extension(&mut bytes, kind::PAX, &records);
        }
        bytes.extend(self.block());
        bytes
    }

    /// Adds the values that the header has no room for, and then the time in full.
    fn add_records(&self, records: &mut Vec<u8>) {
        let is_long =
            |text: &[u8], room: usize| text.len() > room && std::str::from_utf8(text).is_ok();
        if is_long(self.name, field::NAME.len()) {
            record(records, "path", self.name);
        }
        if is_long(self.link, field::LINK.len()) {
            record(records, "linkpath", self.link);
        }
        if self.size > MAX_OCTAL_SIZE {
            record(records, "size", self.size.to_string().as_bytes());
        }
        for (key, id) in [("uid", self.uid), ("gid", self.gid)] {
            if id > MAX_OCTAL_ID {
                record(records, key, id.to_string().as_bytes());
            }
        }
        let (seconds, nanoseconds) = self.mtime;
        let fits = u64::try_from(seconds).is_ok_and(|seconds| seconds <= MAX_OCTAL_SIZE);
        if !fits || !records.is_empty() {
            record(records, "mtime", decimal(seconds, nanoseconds).as_bytes());
        }
    }

    fn block(&self) -> Block {
        let mut block = [0u8; BLOCK_BYTES];
        let mut put = |field: std::ops::Range<usize>, bytes: &[u8]| {
            let length = bytes.len().min(field.len());
            block[field.start..field.start + length].copy_from_slice(&bytes[..length]);
        };
        let octal = |value: u64, digits: usize| format!("{value:0digits$o}").into_bytes();
        put(field::NAME, self.name);
        put(field::LINK, self.link);
        put(field::MODE, &octal(u64::from(self.mode & 0o7777), 7));
        put(field::UID, &octal(u64::from(self.uid.min(MAX_OCTAL_ID)), 7));
        put(field::GID, &octal(u64::from(self.gid.min(MAX_OCTAL_ID)), 7));
        put(field::SIZE, &octal(self.size.min(MAX_OCTAL_SIZE), 11));
        let seconds = u64::try_from(self.mtime.0).unwrap_or(0);
        put(field::MTIME, &octal(seconds.min(MAX_OCTAL_SIZE), 11));
        put(field::MAGIC, USTAR_MAGIC);
        // The last byte of a name ends it.
        put(field::UNAME, &self.owner[..self.owner.len().min(31)]);
        put(field::GNAME, &self.group[..self.group.len().min(31)]);
        block[field::KIND] = self.kind;
        set_checksum(&mut block);
        block
    }
}

/// A member that carries `content` for the next one.
fn extension(to: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let member = Member {
        name: if kind == kind::PAX {
            b"././@PaxHeader"
        } else {
            b"././@LongLink"
        },
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        owner: b"",
        group: b"",
        size: content.len() as u64,
        mtime: (0, 0),
        link: b"",
    };
    to.extend(member.block());
    to.extend(content);
    let end = to.len() + padding(content.len() as u64) as usize;
    to.resize(end, 0);
}

/// `length key=value\n`, where the length counts its own digits.
fn record(to: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    to.extend(format!("{length} {key}=").into_bytes());
    to.extend(value);
    to.push(b'\n');
}

/// Seconds with a fraction; before 1970 the fraction counts downwards.
fn decimal(seconds: i64, nanoseconds: u32) -> String {
    match (seconds, nanoseconds) {
        (_, 0) => seconds.to_string(),
        (0.., _) => format!("{seconds}.{nanoseconds:09}"),
        _ => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
    }
}

/// GNU's format 1.0: the number of extents, then their offsets and lengths, a line each.
fn sparse_map(extents: &[Extent]) -> Vec<u8> {
    let mut map = format!("{}\n", extents.len()).into_bytes();
    for extent in extents {
        map.extend(format!("{}\n{}\n", extent.offset, extent.length).into_bytes());
    }
    let end = map.len() + padding(map.len() as u64) as usize;
    map.resize(end, 0);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_records_length_counts_its_own_digits() {
        for length in [1, 3, 4, 90, 91, 92, 93, 94, 989, 990, 991, 992, 993] {
            let mut bytes = Vec::new();
            record(&mut bytes, "ab", &vec![b'x'; length]);
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.starts_with(&format!("{} ab=", text.len())), "{length}");
        }
    }

    #[test]
    fn times_before_1970_have_their_fraction() {
        assert_eq!(decimal(5, 500_000_000), "5.500000000");
        assert_eq!(decimal(-1, 0), "-1");
        assert_eq!(decimal(-2, 750_000_000), "-1.250000000");
    }
}
