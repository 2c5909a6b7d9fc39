//! The fields of a member's header.

use crate::files::extract::fault::{damaged, Fault};
use crate::files::extract::records::Records;
use crate::files::extract::tree::Attributes;
use crate::files::tar::{field, number, padding, text, Block, GNU_MAGIC, USTAR_MAGIC};

pub fn padded(size: u64) -> Result<u64, Fault> {
    let padded = size.checked_add(padding(size));
    padded
        .filter(|&size| i64::try_from(size).is_ok())
        .ok_or_else(|| damaged("a size is malformed"))
}

pub fn size_in(block: &Block) -> Result<u64, Fault> {
    let size = number(&block[field::SIZE]).and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| damaged("a size is malformed"))
}

pub fn name_in(block: &Block) -> Vec<u8> {
    let name = text(&block[field::NAME]);
    let prefix = text(&block[field::PREFIX]);
    let has_prefix =
        block[field::MAGIC] != *GNU_MAGIC && block[field::MAGIC][..6] == USTAR_MAGIC[..6];
    if has_prefix && !prefix.is_empty() {
        return [prefix, b"/", name].concat();
    }
    name.to_vec()
}

pub fn attributes_in(block: &Block, records: &Records) -> Result<Attributes, Fault> {
    let id = |given: Option<u32>, field| {
        let in_header = || number(&block[field]).and_then(|id| u32::try_from(id).ok());
        given.or_else(in_header).filter(|&id| id != u32::MAX) // the system takes that one for none
    };
    let wrong = || damaged("an owner, a mode or a time is malformed");
    let mode = number(&block[field::MODE]).ok_or_else(wrong)?;
    let mtime = records
        .mtime
        .or_else(|| number(&block[field::MTIME]).map(|seconds| (seconds, 0)));
    Ok(Attributes {
        mode: (mode & 0o7777) as u32,
        uid: id(records.uid, field::UID).ok_or_else(wrong)?,
        gid: id(records.gid, field::GID).ok_or_else(wrong)?,
        mtime: mtime.ok_or_else(wrong)?,
    })
}
