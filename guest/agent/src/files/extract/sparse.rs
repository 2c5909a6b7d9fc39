//! The maps of files that are archived without their holes: GNU's `S` members, and its pax formats 0.0, 0.1 and 1.0.

use crate::files::extract::fault::{damaged, Fault};
use crate::files::tar::{number, parse, Block, BLOCK_BYTES};

/// Bounds the memory of a map; GNU tar's maps of a disk image of 1 TiB have some thousands.
const MAX_EXTENTS: usize = 65_536;
const MAX_LINE_BYTES: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
}

/// The whole file in one piece.
pub fn dense(size: u64) -> Vec<Extent> {
    vec![Extent {
        offset: 0,
        length: size,
    }]
}

/// Checks that the extents are in order and within the file, and that they hold the stored bytes.
pub fn check(extents: &[Extent], real_size: u64, stored: u64) -> Result<(), Fault> {
    let mut end = 0u64;
    let mut sum = 0u64;
    for extent in extents {
        let next = extent.offset.checked_add(extent.length);
        if extent.offset < end || next.is_none_or(|next| next > real_size) {
            return Err(damaged("the map of a sparse file is malformed"));
        }
        end = extent.offset + extent.length;
        sum += extent.length;
    }
    if sum != stored || i64::try_from(real_size).is_err() {
        return Err(damaged("the map of a sparse file does not fit its content"));
    }
    Ok(())
}

fn push(extents: &mut Vec<Extent>, offset: u64, length: u64) -> Result<(), Fault> {
    if extents.len() >= MAX_EXTENTS {
        return Err(damaged(&format!(
            "a sparse file has more than {MAX_EXTENTS} parts"
        )));
    }
    extents.push(Extent { offset, length });
    Ok(())
}

/// The records `GNU.sparse.*` of a member.
#[derive(Clone, Default)]
pub struct SparseFields {
    pub name: Option<Vec<u8>>,
    pub real_size: Option<u64>,
    /// Format 1.0: the map is the beginning of the content.
    pub has_map_in_content: bool,
    /// Formats 0.0 and 0.1.
    pub map: Option<Vec<Extent>>,
}

impl SparseFields {
    pub fn set(&mut self, field: &[u8], value: &[u8]) -> Result<(), Fault> {
        let number =
            || parse::<u64>(value).ok_or_else(|| damaged("a sparse file's record is malformed"));
        match field {
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.real_size = Some(number()?),
            b"major" => self.has_map_in_content = number()? == 1,
            b"offset" => push(self.map.get_or_insert_default(), number()?, 0)?,
            b"numbytes" => {
                if let Some(last) = self.map.get_or_insert_default().last_mut() {
                    last.length = number()?;
                }
            }
            b"map" => self.map = Some(read_list(value)?),
            _ => {}
        }
        Ok(())
    }
}

fn read_list(value: &[u8]) -> Result<Vec<Extent>, Fault> {
    let wrong = || damaged("the map of a sparse file is malformed");
    let mut extents = Vec::new();
    let mut numbers = value.split(|&byte| byte == b',').map(parse::<u64>);
    while let Some(offset) = numbers.next() {
        let length = numbers.next().flatten().ok_or_else(wrong)?;
        push(&mut extents, offset.ok_or_else(wrong)?, length)?;
    }
    Ok(extents)
}

/// The map at the beginning of a content of format 1.0: the number of extents, then an offset and a length each, a line for
/// each number, up to the end of a block.
#[derive(Default)]
pub struct MapReader {
    line: Vec<u8>,
    count: Option<u64>,
    offset: Option<u64>,
    pub extents: Vec<Extent>,
    read: usize,
}

impl MapReader {
    /// Reads from the bytes; returns how many belong to the map, and whether it is complete.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        for (at, &byte) in bytes.iter().enumerate() {
            let is_aligned = self.read.is_multiple_of(BLOCK_BYTES);
            if self.is_complete() && is_aligned {
                return Ok((at, true));
            }
            self.read += 1;
            if self.is_complete() {
                continue;
            }
            if byte == b'\n' {
                self.end_line()?;
            } else if self.line.len() < MAX_LINE_BYTES {
                self.line.push(byte);
            } else {
                return Err(damaged("the map of a sparse file is malformed"));
            }
        }
        Ok((
            bytes.len(),
            self.is_complete() && self.read.is_multiple_of(BLOCK_BYTES),
        ))
    }

    fn is_complete(&self) -> bool {
        self.count == Some(self.extents.len() as u64) && self.offset.is_none()
    }

    fn end_line(&mut self) -> Result<(), Fault> {
        let number =
            parse(&self.line).ok_or_else(|| damaged("the map of a sparse file is malformed"))?;
        self.line.clear();
        match (self.count, self.offset.take()) {
            (None, _) => self.count = Some(number),
            (_, None) => self.offset = Some(number),
            (_, Some(offset)) => push(&mut self.extents, offset, number)?,
        }
        Ok(())
    }
}

/// Adds the extents of a GNU header, or of a block behind it. True: another block follows.
pub fn add_gnu_extents(
    extents: &mut Vec<Extent>,
    block: &Block,
    is_header: bool,
) -> Result<bool, Fault> {
    const PAIR_BYTES: usize = 24;
    const NUMBER_BYTES: usize = 12;
    let (start, pairs, more_at) = if is_header {
        (386, 4, 482)
    } else {
        (0, 21, 504)
    };
    for pair in block[start..start + pairs * PAIR_BYTES].chunks(PAIR_BYTES) {
        if pair[0] == 0 {
            break;
        }
        let read = |field: &[u8]| number(field).and_then(|number| u64::try_from(number).ok());
        let wrong = || damaged("the map of a sparse file is malformed");
        let offset = read(&pair[..NUMBER_BYTES]).ok_or_else(wrong)?;
        push(
            extents,
            offset,
            read(&pair[NUMBER_BYTES..]).ok_or_else(wrong)?,
        )?;
    }
    Ok(block[more_at] != 0)
}

/// The size of the file with its holes.
pub fn gnu_real_size(block: &Block) -> Option<u64> {
    number(&block[483..495]).and_then(|size| u64::try_from(size).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_may_come_byte_by_byte() {
        let mut bytes = b"2\n0\n10\n4096\n5\n".to_vec();
        bytes.resize(BLOCK_BYTES, 0);
        let mut map = MapReader::default();
        for (at, byte) in bytes.iter().enumerate() {
            let (used, is_complete) = map.read(&[*byte]).unwrap();
            assert_eq!((used, is_complete), (1, at == BLOCK_BYTES - 1));
        }
        let extent = |offset, length| Extent { offset, length };
        assert_eq!(map.extents, [extent(0, 10), extent(4_096, 5)]);
        assert!(check(&map.extents, 4_101, 15).is_ok());
        for (real_size, stored) in [(4_100, 15), (4_101, 14), (u64::MAX, 15)] {
            assert!(check(&map.extents, real_size, stored).is_err());
        }
        assert!(
            check(&[extent(5, 5), extent(9, 5)], 100, 10).is_err(),
            "they overlap"
        );
        assert!(check(&[extent(5, u64::MAX)], 100, 10).is_err());
    }

    #[test]
    fn maps_have_a_limit() {
        let map = vec!["1,0"; MAX_EXTENTS + 1].join(",");
        assert!(read_list(map.as_bytes()).is_err());
        assert!(read_list(b"1,2,3").is_err());
        assert!(MapReader::default().read(&[b'1'; 21]).is_err());
    }
}
