//! The file verbs' requests, and the job that each of them is.

use crate::files::archive::Archiving;
use crate::files::extract::Extraction;
use crate::files::listing::Listing;
use crate::files::mkdir::Mkdir;
use crate::files::paths::normalize;
use crate::files::reading::Reading;
use crate::files::removal::Removal;
use crate::files::writing::Writing;
use crate::job::Job;
use crate::protocol::Failure;

pub enum FileRequest<'a> {
    Read {
        path: &'a [u8],
    },
    Write {
        path: &'a [u8],
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
}

impl FileRequest<'_> {
    pub fn job(&self) -> Result<Box<dyn Job>, Failure> {
        Ok(match self {
            FileRequest::Read { path } => Box::new(Reading::new(normalize(path)?)),
            FileRequest::Write { path } => Box::new(Writing::new(path)),
            FileRequest::List { path, depth, limit } => {
                Box::new(Listing::new(normalize(path)?, *depth, *limit))
            }
            FileRequest::Mkdir { path } => Box::new(Mkdir::new(normalize(path)?)),
            FileRequest::Remove { path } => Box::new(Removal::new(normalize(path)?)),
            FileRequest::Archive { paths, base } => Box::new(Archiving::new(paths, *base)?),
            FileRequest::Extract { path } => Box::new(Extraction::new(normalize(path)?)),
        })
    }
}
