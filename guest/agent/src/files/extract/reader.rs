//! Members of a tar that arrives in pieces of any size, written as they come.

use std::io;

use crate::files::extract::fault::{damaged, Fault};
use crate::files::extract::fields::{attributes_in, name_in, padded, size_in};
use crate::files::extract::members::{add_fifo, add_hard_link, add_symlink, NewFile};
use crate::files::extract::records::Records;
use crate::files::extract::sparse::{
    self, add_gnu_extents, dense, gnu_real_size, Extent, MapReader,
};
use crate::files::extract::tree::{name_of, Tree};
use crate::files::tar::{field, has_checksum, kind, padding, text, Block, BLOCK_BYTES};

/// A pax header or a long name.
const MAX_EXTENSION_BYTES: u64 = 1024 * 1024;
/// Zeros behind the end mark: `tar -b` fills its last block with them, whose size is free; tapes have up to 16 MiB.
const MAX_TRAILER_BYTES: u64 = 64 * 1024 * 1024;

enum State {
    Header,
    /// More of a GNU sparse file's map.
    SparseBlock(Box<Block>),
    /// The content of an extension, with its kind and what is still to come.
    Extension(u8, u64),
    Map(MapReader, u64),
    Content(u64),
    Skip(u64),
    End(u64),
}

/// The next member's values from extensions.
#[derive(Default)]
struct Next {
    records: Records,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

pub struct Reader {
    state: State,
    block: Vec<u8>,
    extension: Vec<u8>,
    next: Next,
    global: Records,
    file: Option<NewFile>,
    real_size: u64,
    extents: Vec<Extent>,
    padding: u64,
    has_members: bool,
}

impl Reader {
    pub fn new() -> Reader {
        Reader {
            state: State::Header,
            block: Vec::new(),
            extension: Vec::new(),
            next: Next::default(),
            global: Records::default(),
            file: None,
            real_size: 0,
            extents: Vec::new(),
            padding: 0,
            has_members: false,
        }
    }

    /// Whether the end mark has come.
    pub fn is_complete(&self) -> bool {
        matches!(self.state, State::End(_))
    }

    pub fn read(&mut self, mut bytes: &[u8], tree: &mut Tree) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let used = self.read_some(bytes, tree)?;
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// Returns how many bytes were used, at least one.
    fn read_some(&mut self, bytes: &[u8], tree: &mut Tree) -> Result<usize, Fault> {
        let upto = |left: u64| bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match &mut self.state {
            State::Header | State::SparseBlock(_) => {
                let used = bytes.len().min(BLOCK_BYTES - self.block.len());
                self.block.extend_from_slice(&bytes[..used]);
                if let Ok(block) = Block::try_from(self.block.as_slice()) {
                    self.block.clear();
                    self.read_block(&block, tree)?;
                }
                Ok(used)
            }
            State::Extension(kind, left) => {
                let (used, kind) = (upto(*left), *kind);
                *left -= used as u64;
                let no_memory = |_| io::Error::from_raw_os_error(libc::ENOMEM);
                self.extension.try_reserve(used).map_err(no_memory)?;
                self.extension.extend_from_slice(&bytes[..used]);
                if *left == 0 {
                    self.skip(self.padding);
                    self.end_extension(kind)?;
                }
                Ok(used)
            }
            State::Map(map, left) => {
                let (used, is_complete) = map.read(&bytes[..upto(*left)])?;
                *left -= used as u64;
                if is_complete {
                    let (extents, left) = (std::mem::take(&mut map.extents), *left);
                    self.begin_content(extents, left)?;
                } else if *left == 0 {
                    return Err(damaged("the map of a sparse file is cut"));
                }
                Ok(used)
            }
            State::Content(left) => {
                let used = upto(*left);
                *left -= used as u64;
                let is_complete = *left == 0;
                if let Some(file) = &mut self.file {
                    file.write(&bytes[..used])?;
                }
                if is_complete {
                    self.end_content()?;
                }
                Ok(used)
            }
            State::Skip(left) => {
                let (used, left) = (upto(*left), *left);
                self.skip(left - used as u64);
                Ok(used)
            }
            State::End(length) => {
                *length += bytes.len() as u64;
                if *length > MAX_TRAILER_BYTES || bytes.iter().any(|&byte| byte != 0) {
                    return Err(damaged("it goes on after its end mark"));
                }
                Ok(bytes.len())
            }
        }
    }

    fn skip(&mut self, bytes: u64) {
        self.state = if bytes == 0 {
            State::Header
        } else {
            State::Skip(bytes)
        };
    }

    fn read_block(&mut self, block: &Block, tree: &mut Tree) -> Result<(), Fault> {
        if let State::SparseBlock(header) = std::mem::replace(&mut self.state, State::Header) {
            return self.read_sparse_block(&header, block, false, tree);
        }
        if block.iter().all(|&byte| byte == 0) {
            self.state = State::End(0);
            return Ok(());
        }
        if !has_checksum(block) {
            let what = if self.has_members {
                "a header's checksum is wrong"
            } else {
                "it is no tar"
            };
            return Err(damaged(what));
        }
        self.has_members = true;
        match block[field::KIND] {
            kind @ (kind::PAX | kind::PAX_GLOBAL | kind::GNU_NAME | kind::GNU_LINK) => {
                self.begin_extension(kind, size_in(block)?)
            }
            kind::GNU_SPARSE => self.read_sparse_block(block, block, true, tree),
            _ => self.begin_member(block, tree),
        }
    }

    fn begin_extension(&mut self, kind: u8, size: u64) -> Result<(), Fault> {
        if size > MAX_EXTENSION_BYTES {
            return Err(damaged("a name or pax header is longer than 1 MiB"));
        }
        self.extension.clear();
        self.padding = padding(size);
        if size > 0 {
            self.state = State::Extension(kind, size);
        }
        Ok(())
    }

    fn end_extension(&mut self, kind: u8) -> Result<(), Fault> {
        let content = std::mem::take(&mut self.extension);
        match kind {
            kind::PAX => self.next.records.read(&content)?,
            kind::PAX_GLOBAL => self.global.read(&content)?,
            kind::GNU_NAME => self.next.name = Some(text(&content).to_vec()),
            _ => self.next.link = Some(text(&content).to_vec()),
        }
        Ok(())
    }

    /// The map of a GNU sparse file goes on in blocks behind its header.
    fn read_sparse_block(
        &mut self,
        header: &Block,
        block: &Block,
        is_header: bool,
        tree: &mut Tree,
    ) -> Result<(), Fault> {
        if add_gnu_extents(&mut self.extents, block, is_header)? {
            self.state = State::SparseBlock(Box::new(*header));
            return Ok(());
        }
        let records = &mut self.next.records.sparse;
        records.map = Some(std::mem::take(&mut self.extents));
        records.real_size = gnu_real_size(header);
        self.begin_member(header, tree)
    }

    fn begin_member(&mut self, block: &Block, tree: &mut Tree) -> Result<(), Fault> {
        let Next {
            records,
            name,
            link,
        } = std::mem::take(&mut self.next);
        let records = records.or(&self.global);
        let path = records.sparse.name.clone().or_else(|| records.path.clone());
        let path = path.or(name).unwrap_or_else(|| name_in(block));
        let link = records.link.clone().or(link);
        let link = link.unwrap_or_else(|| text(&block[field::LINK]).to_vec());
        let attributes = attributes_in(block, &records)?;
        let is_directory_name = path.last() == Some(&b'/');
        match block[field::KIND] {
            kind::DIRECTORY => tree.add_directory(name_of(&path)?, attributes),
            kind::FILE | kind::OLD_FILE if is_directory_name => {
                tree.add_directory(name_of(&path)?, attributes)
            }
            kind::GNU_DUMP_DIRECTORY => {
                tree.add_directory(name_of(&path)?, attributes)?;
                let size = records.size.map_or_else(|| size_in(block), Ok)?;
                self.skip(padded(size)?);
                Ok(())
            }
            kind::SYMLINK => add_symlink(tree, name_of(&path)?, &link, attributes),
            kind::HARD_LINK => add_hard_link(tree, name_of(&path)?, &link),
            kind::FIFO => add_fifo(tree, name_of(&path)?, attributes),
            kind::CHARACTER_DEVICE | kind::BLOCK_DEVICE => Ok(()),
            kind::FILE | kind::OLD_FILE | kind::CONTIGUOUS_FILE | kind::GNU_SPARSE => {
                let size = records.size.map_or_else(|| size_in(block), Ok)?;
                self.file = Some(NewFile::create(tree, name_of(&path)?, attributes)?);
                self.begin_file(size, records)
            }
            // A kind that is not known, such as a volume's label.
            _ => {
                let size = records.size.map_or_else(|| size_in(block), Ok)?;
                self.skip(padded(size)?);
                Ok(())
            }
        }
    }

    fn begin_file(&mut self, size: u64, records: Records) -> Result<(), Fault> {
        padded(size)?;
        self.padding = padding(size);
        self.real_size = records.sparse.real_size.unwrap_or(size);
        if records.sparse.has_map_in_content {
            self.state = State::Map(MapReader::default(), size);
            return Ok(());
        }
        match records.sparse.map {
            Some(extents) => self.begin_content(extents, size),
            None => {
                self.real_size = size;
                self.begin_content(dense(size), size)
            }
        }
    }

    fn begin_content(&mut self, extents: Vec<Extent>, size: u64) -> Result<(), Fault> {
        sparse::check(&extents, self.real_size, size)?;
        if let Some(file) = &mut self.file {
            file.set_extents(extents, self.real_size);
        }
        self.state = State::Content(size);
        if size == 0 {
            self.end_content()?;
        }
        Ok(())
    }

    fn end_content(&mut self) -> Result<(), Fault> {
        self.skip(self.padding);
        self.file.take().map_or(Ok(()), NewFile::complete)
    }
}
