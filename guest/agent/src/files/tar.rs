//! The tar format (POSIX.1-2001 `pax`, GNU): offsets in a header, kinds of members, numbers and the checksum.

use std::ops::Range;

pub const BLOCK_BYTES: usize = 512;
pub type Block = [u8; BLOCK_BYTES];

/// The fields of a header.
pub mod field {
    use super::Range;

    pub const NAME: Range<usize> = 0..100;
    pub const MODE: Range<usize> = 100..108;
    pub const UID: Range<usize> = 108..116;
    pub const GID: Range<usize> = 116..124;
    pub const SIZE: Range<usize> = 124..136;
    pub const MTIME: Range<usize> = 136..148;
    pub const CHECKSUM: Range<usize> = 148..156;
    pub const KIND: usize = 156;
    pub const LINK: Range<usize> = 157..257;
    pub const MAGIC: Range<usize> = 257..265;
    pub const UNAME: Range<usize> = 265..297;
    pub const GNAME: Range<usize> = 297..329;
    pub const PREFIX: Range<usize> = 345..500;
}

/// The kinds of members, a header's type flag.
pub mod kind {
    pub const FILE: u8 = b'0';
    pub const OLD_FILE: u8 = 0;
    pub const HARD_LINK: u8 = b'1';
    pub const SYMLINK: u8 = b'2';
    pub const CHARACTER_DEVICE: u8 = b'3';
    pub const BLOCK_DEVICE: u8 = b'4';
    pub const DIRECTORY: u8 = b'5';
    pub const FIFO: u8 = b'6';
    pub const CONTIGUOUS_FILE: u8 = b'7';
    /// Records for the next member, and for all that follow.
    pub const PAX: u8 = b'x';
    pub const PAX_GLOBAL: u8 = b'g';
    /// The name of the next member, and the target of its link.
    pub const GNU_NAME: u8 = b'L';
    pub const GNU_LINK: u8 = b'K';
    pub const GNU_SPARSE: u8 = b'S';
    /// A directory, with a list of its names as content (`tar --incremental`).
    pub const GNU_DUMP_DIRECTORY: u8 = b'D';
}

pub const USTAR_MAGIC: &[u8; 8] = b"ustar\x0000";
pub const GNU_MAGIC: &[u8; 8] = b"ustar  \0";

/// The bytes behind content of this size, up to a whole block.
pub fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK_BYTES as u64
}

/// The sum of a header's bytes with its checksum field as spaces; old programs took the bytes as signed.
fn checksums(block: &Block) -> (u32, i32) {
    let byte = |(at, &byte): (usize, &u8)| match field::CHECKSUM.contains(&at) {
        true => b' ',
        false => byte,
    };
    let bytes = || block.iter().enumerate().map(byte);
    let unsigned = bytes().map(u32::from).sum();
    (unsigned, bytes().map(|byte| i32::from(byte as i8)).sum())
}

pub fn has_checksum(block: &Block) -> bool {
    let (unsigned, signed) = checksums(block);
    number(&block[field::CHECKSUM])
        .is_some_and(|sum| sum == i64::from(unsigned) || sum == i64::from(signed))
}

pub fn set_checksum(block: &mut Block) {
    let sum = format!("{:06o}\0 ", checksums(block).0);
    block[field::CHECKSUM].copy_from_slice(sum.as_bytes());
}

/// Octal digits between spaces and NULs, or a two's complement in base 256. An empty field is 0.
pub fn number(field: &[u8]) -> Option<i64> {
    if field.first()? & 0x80 != 0 {
        return base_256(field);
    }
    let is_filler = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !is_filler(byte));
    let mut digits = &field[start.unwrap_or(field.len())..];
    if let Some(end) = digits.iter().position(is_filler) {
        digits = &digits[..end];
    }
    digits.iter().try_fold(0i64, |value, &digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

fn base_256(field: &[u8]) -> Option<i64> {
    // The first bit marks the encoding, the second is the sign.
    let first = i64::from(field[0] & 0x7f);
    let first = if first & 0x40 != 0 {
        first - 0x80
    } else {
        first
    };
    field[1..].iter().try_fold(first, |value, &byte| {
        value.checked_mul(256)?.checked_add(i64::from(byte))
    })
}

/// Decimal digits and nothing else.
pub fn parse<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    text.parse().ok()
}

/// Up to the first NUL.
pub fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0);
    &field[..end.unwrap_or(field.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"  644 \0\0"), Some(0o644));
        assert_eq!(number(b"        "), Some(0));
        assert_eq!(number(b"00009\0"), None);
        let mut large = [0u8; 12];
        large[0] = 0x80;
        large[4..].copy_from_slice(&(1u64 << 40).to_be_bytes());
        assert_eq!(number(&large), Some(1 << 40));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        let mut huge = [0xff; 12];
        huge[0] = 0x80;
        assert_eq!(number(&huge), None, "more than 63 bits");
    }

    #[test]
    fn a_checksum_may_be_signed() {
        let mut block = [0xe9; BLOCK_BYTES];
        set_checksum(&mut block);
        assert!(has_checksum(&block));
        let signed = checksums(&block).1;
        assert!(signed < 0);
        block[0] = 0;
        assert!(!has_checksum(&block));
        assert_eq!((padding(0), padding(1), padding(512)), (0, 511, 0));
    }
}
