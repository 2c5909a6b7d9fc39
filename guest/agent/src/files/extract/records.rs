//! The records of a pax header, of one member or of all that follow.

use crate::files::extract::fault::{damaged, Fault};
use crate::files::extract::sparse::SparseFields;
use crate::files::tar::parse;

#[derive(Clone, Default)]
pub struct Records {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Seconds and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    pub sparse: SparseFields,
}

impl Records {
    /// Adds those of one header, `length key=value\n` each. A later record wins, an empty value takes one away.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        let wrong = || damaged("a pax record is malformed");
        while !bytes.is_empty() {
            let space = bytes
                .iter()
                .position(|&byte| byte == b' ')
                .ok_or_else(wrong)?;
            let length: usize = parse(&bytes[..space]).ok_or_else(wrong)?;
            let record = bytes.get(space + 1..length).ok_or_else(wrong)?;
            let Some((b'\n', record)) = record.split_last() else {
                return Err(wrong());
            };
            let equals = record
                .iter()
                .position(|&byte| byte == b'=')
                .ok_or_else(wrong)?;
            self.set(&record[..equals], &record[equals + 1..])?;
            bytes = &bytes[length..];
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        let wrong = || {
            damaged(&format!(
                "the pax record {} is malformed",
                String::from_utf8_lossy(key)
            ))
        };
        match key {
            b"path" => self.path = given(value).map(<[u8]>::to_vec),
            b"linkpath" => self.link = given(value).map(<[u8]>::to_vec),
            b"size" => self.size = optional(value).ok_or_else(wrong)?,
            b"uid" => self.uid = optional(value).ok_or_else(wrong)?,
            b"gid" => self.gid = optional(value).ok_or_else(wrong)?,
            b"mtime" => {
                self.mtime = match given(value) {
                    Some(value) => Some(time(value).ok_or_else(wrong)?),
                    None => None,
                }
            }
            _ => {
                if let Some(field) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.set(field, value)?;
                }
            }
        }
        Ok(())
    }

    /// These, and those of `others` that are not here.
    pub fn or(self, others: &Records) -> Records {
        Records {
            path: self.path.or_else(|| others.path.clone()),
            link: self.link.or_else(|| others.link.clone()),
            size: self.size.or(others.size),
            uid: self.uid.or(others.uid),
            gid: self.gid.or(others.gid),
            mtime: self.mtime.or(others.mtime),
            sparse: self.sparse,
        }
    }
}

fn given(value: &[u8]) -> Option<&[u8]> {
    (!value.is_empty()).then_some(value)
}

/// The outer `None`: not a number.
fn optional<T: std::str::FromStr>(value: &[u8]) -> Option<Option<T>> {
    match given(value) {
        None => Some(None),
        Some(value) => parse(value).map(Some),
    }
}

/// Seconds with a fraction, perhaps before 1970. Digits beyond nanoseconds are left out.
fn time(value: &[u8]) -> Option<(i64, u32)> {
    let (is_negative, value) = match value.strip_prefix(b"-") {
        Some(value) => (true, value),
        None => (false, value),
    };
    let mut parts = value.splitn(2, |&byte| byte == b'.');
    let seconds: i64 = parse(parts.next()?)?;
    let mut fraction = parts.next().unwrap_or(b"0").to_vec();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    fraction.resize(9, b'0');
    let nanoseconds: u32 = parse(&fraction)?;
    Some(match (is_negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_and_later_ones_win() {
        let mut records = Records::default();
        let read = records.read(b"9 path=a\n9 path=b\n19 mtime=-1.25000000\n8 uid=7\n6 uid=\n");
        assert!(read.is_err(), "a length that is wrong");
        let mut records = Records::default();
        records
            .read(b"9 path=a\n9 path=b\n15 mtime=-1.25\n8 uid=7\n7 uid=\n10 x.y=zz\n")
            .unwrap();
        assert_eq!(records.path.as_deref(), Some(b"b".as_slice()));
        assert_eq!(
            (records.mtime, records.uid),
            (Some((-2, 750_000_000)), None)
        );
    }

    #[test]
    fn malformed_records_are_damage() {
        for bytes in [
            b"x".as_slice(),
            b"3 a",
            b"0 a=b\n",
            b"99999999999999999999 a=b\n",
            b"6 a=bc",
            b"6 abcd\n",
            b"12 size=-01\n",
            b"11 size=1x\n",
        ] {
            assert!(Records::default().read(bytes).is_err(), "{bytes:?}");
        }
    }
}
