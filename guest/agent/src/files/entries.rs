//! The entry record of a file.

use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::accounts::Names;
use crate::files::paths::name_of;
use crate::record::Writer;

const FILE: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;

/// The record without its end mark. `meta` is of the link itself or of its target; the type follows from it.
pub fn entry(path: &Path, meta: &Metadata, names: &Names) -> Writer {
    let target = meta
        .is_symlink()
        .then(|| std::fs::read_link(path).unwrap_or_default());
    let kind = if meta.is_dir() {
        DIRECTORY
    } else if meta.is_symlink() {
        SYMLINK
    } else {
        FILE
    };
    Writer::new()
        .str(name_of(path))
        .str(path.as_os_str().as_bytes())
        .u8(kind)
        .u64(meta.len())
        .u32(meta.mode())
        .str(names.user(meta.uid()))
        .str(names.group(meta.gid()))
        .u64(meta.mtime() as u64)
        .optional(target.as_ref().map(|path| path.as_os_str().as_bytes()))
}
