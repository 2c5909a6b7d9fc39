//! The file verbs' requests, and the job that each of them is.

use crate::files::archive::Archiving;
use crate::files::changing::{Change, Changing};
use crate::files::extract::Extraction;
use crate::files::listing::Listing;
use crate::files::mkdir::Mkdir;
use crate::files::moving::Moving;
use crate::files::paths::normalize;
use crate::files::reading::{Range, Reading};
use crate::files::removal::Removal;
use crate::files::stat::Stat;
use crate::files::watching::Watching;
use crate::files::writing::Writing;
use crate::job::Job;
use crate::protocol::{Failure, Verb};
use crate::record::{Malformed, Reader};

#[derive(Debug)]
pub enum FileRequest<'a> {
    Read {
        path: &'a [u8],
        range: Option<Range>,
    },
    Write {
        path: &'a [u8],
        has_attributes: bool,
    },
    List {
        path: &'a [u8],
        depth: u32,
        limit: u32,
    },
    Mkdir {
        path: &'a [u8],
    },
    Remove {
        path: &'a [u8],
    },
    Archive {
        paths: Vec<&'a [u8]>,
        base: Option<&'a [u8]>,
    },
    Extract {
        path: &'a [u8],
    },
    Watch {
        path: &'a [u8],
        is_recursive: bool,
        /// Most directories.
        limit: u32,
    },
    Stat {
        path: &'a [u8],
    },
    Move {
        from: &'a [u8],
        to: &'a [u8],
        overwrites: bool,
    },
    Chmod {
        path: &'a [u8],
        mode: u32,
        is_recursive: bool,
    },
    Chown {
        path: &'a [u8],
        owner: Option<&'a [u8]>,
        group: Option<&'a [u8]>,
        is_recursive: bool,
    },
}

impl<'a> FileRequest<'a> {
    /// A verb of another kind is malformed.
    pub fn read(verb: Verb, fields: &mut Reader<'a>) -> Result<FileRequest<'a>, Malformed> {
        if verb == Verb::Archive {
            return Ok(FileRequest::Archive {
                paths: fields.list()?,
                base: fields.optional()?,
            });
        }
        let path = fields.str()?;
        Ok(match verb {
            Verb::Read => FileRequest::Read { path, range: None },
            Verb::ReadRange => FileRequest::Read {
                path,
                range: Some(Range::read(fields)?),
            },
            Verb::Write | Verb::WriteAs => FileRequest::Write {
                path,
                has_attributes: verb == Verb::WriteAs,
            },
            Verb::List => FileRequest::List {
                path,
                depth: fields.u32()?,
                limit: fields.u32()?,
            },
            Verb::Mkdir => FileRequest::Mkdir { path },
            Verb::Remove => FileRequest::Remove { path },
            Verb::Stat => FileRequest::Stat { path },
            Verb::Move => FileRequest::Move {
                from: path,
                to: fields.str()?,
                overwrites: fields.flag()?,
            },
            Verb::Chmod => FileRequest::Chmod {
                path,
                mode: fields.u32()?,
                is_recursive: fields.flag()?,
            },
            Verb::Chown => FileRequest::Chown {
                path,
                owner: fields.optional()?,
                group: fields.optional()?,
                is_recursive: fields.flag()?,
            },
            Verb::Extract => FileRequest::Extract { path },
            Verb::Watch => FileRequest::Watch {
                path,
                is_recursive: fields.flag()?,
                limit: fields.u32()?,
            },
            _ => return Err(Malformed),
        })
    }

    pub fn job(&self) -> Result<Box<dyn Job>, Failure> {
        Ok(match self {
            FileRequest::Read { path, range } => Box::new(Reading::new(normalize(path)?, *range)),
            FileRequest::Write {
                path,
                has_attributes,
            } => Box::new(Writing::new(path, *has_attributes)),
            FileRequest::List { path, depth, limit } => {
                Box::new(Listing::new(normalize(path)?, *depth, *limit))
            }
            FileRequest::Mkdir { path } => Box::new(Mkdir::new(normalize(path)?)),
            FileRequest::Remove { path } => Box::new(Removal::new(normalize(path)?)),
            FileRequest::Archive { paths, base } => Box::new(Archiving::new(paths, *base)?),
            FileRequest::Extract { path } => Box::new(Extraction::new(normalize(path)?)),
            FileRequest::Watch {
                path,
                is_recursive,
                limit,
            } => Box::new(Watching::new(normalize(path)?, *is_recursive, *limit)),
            FileRequest::Stat { path } => Box::new(Stat::new(normalize(path)?)),
            FileRequest::Move {
                from,
                to,
                overwrites,
            } => Box::new(Moving::new(from, to, *overwrites)?),
            FileRequest::Chmod {
                path,
                mode,
                is_recursive,
            } => {
                let change = Change::Mode(mode & 0o7777);
                Box::new(Changing::new(normalize(path)?, change, *is_recursive))
            }
            FileRequest::Chown {
                path,
                owner,
                group,
                is_recursive,
            } => {
                let change = Change::owner(*owner, *group)?;
                Box::new(Changing::new(normalize(path)?, change, *is_recursive))
            }
        })
    }
}
