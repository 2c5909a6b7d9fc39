//! Directories that are to be watched, and the one that is being read.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::OwnedFd;

use crate::files::directory::Entry;
use crate::files::watching::inotify::Wd;
use crate::sys;

pub struct Found {
    pub parent: Wd,
    pub name: CString,
    /// Its content is told.
    pub tells: bool,
}

pub struct Reading {
    pub wd: Wd,
    pub dir: OwnedFd,
    pub position: i64,
    pub entries: VecDeque<Entry>,
    pub tells: bool,
}

#[derive(Default)]
pub struct Scan {
    pub found: Vec<Found>,
    pub reading: Option<Reading>,
    /// The directories that these lie in are elsewhere; events to come tell where.
    pub deferred: Vec<Found>,
    /// The parent of the last one, open.
    pub parent: Option<(Wd, OwnedFd)>,
}

impl Scan {
    pub fn is_busy(&self) -> bool {
        self.reading.is_some() || !self.found.is_empty()
    }

    pub fn read(&mut self, wd: Wd, dir: OwnedFd, tells: bool) {
        self.reading = Some(Reading {
            wd,
            dir,
            position: 0,
            entries: VecDeque::new(),
            tells,
        });
    }

    pub fn push(&mut self, parent: Wd, name: &[u8], tells: bool) {
        if let Ok(name) = sys::c_string(name) {
            self.found.push(Found {
                parent,
                name,
                tells,
            });
        }
    }

    /// True: there is something to retry.
    pub fn retry(&mut self) -> bool {
        self.found.append(&mut self.deferred);
        self.is_busy()
    }

    pub fn forget_parent(&mut self) {
        self.parent = None;
    }

    /// How many are to be watched.
    pub fn waiting(&self) -> usize {
        self.found.len() + self.deferred.len()
    }
}
