//! The content of a file in an archive: its data, at the size that the header says.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::files::archive::extents::{extents_of, Extent};
use crate::files::tar::{padding, BLOCK_BYTES};

pub struct Content {
    file: File,
    extents: VecDeque<Extent>,
    padding: usize,
}

impl Content {
    /// The flag: its holes are left out.
    pub fn of(file: File, about: &libc::stat) -> (Content, bool) {
        let (size, allocated) = (about.st_size as u64, about.st_blocks as u64 * 512);
        let sparse = extents_of(&file, size, allocated);
        let is_sparse = sparse.is_some();
        let whole = Extent {
            offset: 0,
            length: size,
        };
        let extents: VecDeque<Extent> = sparse.unwrap_or_else(|| vec![whole]).into();
        let stored: u64 = extents.iter().map(|extent| extent.length).sum();
        let content = Content {
            file,
            extents,
            padding: padding(stored) as usize,
        };
        (content, is_sparse)
    }

    pub fn extents(&self) -> Vec<Extent> {
        self.extents.iter().copied().collect()
    }

    /// Adds the next part, which fills `data` to `step_bytes`. True: it was the last one.
    pub fn add(&mut self, data: &mut Vec<u8>, step_bytes: usize) -> io::Result<bool> {
        let Some(extent) = self.extents.front_mut() else {
            data.resize(data.len() + self.padding, 0);
            return Ok(true);
        };
        let room = step_bytes.saturating_sub(data.len()).max(BLOCK_BYTES);
        let length = room.min(usize::try_from(extent.length).unwrap_or(room));
        let start = data.len();
        data.resize(start + length, 0);
        let mut read = 0;
        while read < length {
            let space = &mut data[start + read..];
            match self.file.read_at(space, extent.offset + read as u64) {
                Ok(0) => break, // it has become shorter
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        extent.offset += length as u64;
        extent.length -= length as u64;
        if extent.length == 0 {
            self.extents.pop_front();
        }
        Ok(false)
    }
}
