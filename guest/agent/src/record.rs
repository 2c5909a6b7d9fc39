//! Records: the fields of a frame's payload, in a fixed order, followed by an end mark. The reader checks every length
//! against the bytes that are there.

pub const END_MARK: u8 = 0x7e;

/// The bytes do not encode the expected record.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub fn new() -> Writer {
        Writer::default()
    }

    pub fn u8(self, value: u8) -> Writer {
        self.raw(&[value])
    }

    pub fn u16(self, value: u16) -> Writer {
        self.raw(&value.to_le_bytes())
    }

    pub fn u32(self, value: u32) -> Writer {
        self.raw(&value.to_le_bytes())
    }

    pub fn i32(self, value: i32) -> Writer {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Writer {
        self.raw(&value.to_le_bytes())
    }

    pub fn raw(mut self, bytes: &[u8]) -> Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn str(self, text: impl AsRef<[u8]>) -> Writer {
        let text = text.as_ref();
        self.u32(text.len() as u32).raw(text)
    }

    pub fn list<T: AsRef<[u8]>>(self, texts: &[T]) -> Writer {
        let counted = self.u32(texts.len() as u32);
        texts.iter().fold(counted, |writer, text| writer.str(text))
    }

    pub fn optional(self, text: Option<impl AsRef<[u8]>>) -> Writer {
        match text {
            Some(text) => self.u8(1).str(text),
            None => self.u8(0),
        }
    }

    /// With the end mark.
    pub fn finish(self) -> Vec<u8> {
        self.u8(END_MARK).bytes
    }

    /// Without the end mark: for an item of a listing.
    pub fn bare(self) -> Vec<u8> {
        self.bytes
    }
}

pub struct Reader<'a> {
    bytes: &'a [u8],
}

type Field<T> = Result<T, Malformed>;

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    fn fixed<const N: usize>(&mut self) -> Field<[u8; N]> {
        let (field, rest) = self.bytes.split_first_chunk().ok_or(Malformed)?;
        self.bytes = rest;
        Ok(*field)
    }

    pub fn u8(&mut self) -> Field<u8> {
        self.fixed().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Field<u16> {
        self.fixed().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Field<u32> {
        self.fixed().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Field<u64> {
        self.fixed().map(u64::from_le_bytes)
    }

    pub fn raw(&mut self, length: usize) -> Field<&'a [u8]> {
        if length > self.bytes.len() {
            return Err(Malformed);
        }
        let (field, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Ok(field)
    }

    pub fn str(&mut self) -> Field<&'a [u8]> {
        let length = self.u32()?;
        self.raw(length as usize)
    }

    /// Each item takes at least its own length field, so a count that is too high fails before it uses memory.
    pub fn list(&mut self) -> Field<Vec<&'a [u8]>> {
        let count = self.u32()?;
        let mut texts = Vec::new();
        for _ in 0..count {
            texts.push(self.str()?);
        }
        Ok(texts)
    }

    pub fn map(&mut self) -> Field<Vec<(&'a [u8], &'a [u8])>> {
        let count = self.u32()?;
        let mut pairs = Vec::new();
        for _ in 0..count {
            pairs.push((self.str()?, self.str()?));
        }
        Ok(pairs)
    }

    pub fn optional(&mut self) -> Field<Option<&'a [u8]>> {
        match self.u8()? {
            0 => Ok(None),
            1 => self.str().map(Some),
            _ => Err(Malformed),
        }
    }

    pub fn flag(&mut self) -> Field<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub fn optional_u32(&mut self) -> Field<Option<u32>> {
        let value = if self.flag()? {
            Some(self.u32()?)
        } else {
            None
        };
        Ok(value)
    }

    /// The end mark must be the only byte left.
    pub fn finish(self) -> Field<()> {
        if self.bytes == [END_MARK] {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}
