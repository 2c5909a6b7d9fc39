//! One inotify instance, and what its events mean.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use crate::files::directory::read_names;
use crate::files::hidden_names::{is_hidden, marks_replacement};
use crate::files::paths::failure;
use crate::files::watching::changes::{Changes, Kind};
use crate::files::watching::inotify::{Event, Inotify, Wd, CONTENT, NAMES};
use crate::files::watching::scan::Scan;
use crate::files::watching::top::Top;
use crate::files::watching::tree::{Identity, Tree};
use crate::protocol::{Code, Failure};

mod entering;

/// Events that are read ahead in search of the other half of a rename.
const MAX_AHEAD: usize = 1_024;

pub enum Verdict {
    Goes,
    /// All directories that were there are watched.
    Complete,
    /// There is nothing to do until there are events.
    Waits,
    /// The events no longer tell all.
    Lost,
    /// The directory's path leads to it no more.
    Gone,
}

pub struct Live {
    inotify: Inotify,
    top: Top,
    tree: Tree,
    /// The directories above, each with the name in it that leads here.
    above: BTreeMap<Wd, Vec<u8>>,
    events: VecDeque<Event>,
    is_recursive: bool,
    limit: usize,
    scan: Scan,
    /// A directory that cannot be watched fails the request.
    is_strict: bool,
    is_complete: bool,
    /// Events have been taken since the last look for directories that were elsewhere.
    has_news: bool,
    /// How many directories were watched when there was no room for another.
    full_at: Option<usize>,
}

impl Live {
    pub fn begin(
        path: &Path,
        is_recursive: bool,
        limit: usize,
        is_strict: bool,
    ) -> Result<Live, Failure> {
        let inotify = Inotify::new().map_err(|error| no_room(path, &error))?;
        let (top, dir) = Top::find(path)?;
        let added = |error: io::Error| no_room(path, &error);
        let wd = inotify.add(&dir, CONTENT).map_err(added)?;
        let above = top.watch_above(&inotify).map_err(added)?;
        // Only from now on a change above is an event.
        top.open().map_err(|error| failure(path, &error))?;
        let tree = Tree::new(wd, top.identity);
        let mut scan = Scan::default();
        if is_recursive {
            scan.read(wd, dir, false);
        }
        Ok(Live {
            inotify,
            top,
            tree,
            above: above.into_iter().collect(),
            events: VecDeque::new(),
            is_recursive,
            limit,
            scan,
            is_strict,
            is_complete: false,
            has_news: false,
            full_at: None,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.inotify.fd()
    }

    pub fn path(&self) -> &[u8] {
        self.top.path()
    }

    pub fn identity(&self) -> Identity {
        self.top.identity
    }

    /// At the end of a step: an open directory keeps its file system from being unmounted.
    pub fn pause(&mut self) {
        self.scan.forget_parent();
    }

    /// Scans first, so that directories are watched as soon as possible.
    pub fn advance(&mut self, changes: &mut Changes) -> Result<Verdict, Failure> {
        if self.scan.is_busy() {
            return self.scan_some(changes);
        }
        if !self.is_complete {
            self.is_complete = true;
            self.is_strict = false;
            return Ok(Verdict::Complete);
        }
        if let Some(event) = self.events.pop_front() {
            self.has_news = true;
            return self.take(event, changes);
        }
        if self.read()? {
            return Ok(Verdict::Goes);
        }
        self.tree.forget_told();
        if std::mem::take(&mut self.has_news) && self.scan.retry() {
            return Ok(Verdict::Goes);
        }
        let has_room_again = |full: usize| self.tree.count() + (full / 8).max(1) <= full;
        if self.full_at.is_some_and(has_room_again) {
            return Ok(Verdict::Lost);
        }
        Ok(Verdict::Waits)
    }

    fn read(&mut self) -> Result<bool, Failure> {
        let read = self.inotify.read(&mut self.events);
        read.map_err(|error| Failure::new(Code::Internal, format!("inotify: {error}")))
    }

    fn take(&mut self, event: Event, changes: &mut Changes) -> Result<Verdict, Failure> {
        if event.is(libc::IN_Q_OVERFLOW) {
            return Ok(Verdict::Lost);
        }
        if let Some(name) = self.above.get(&event.wd) {
            let leads_here = *name == event.name && event.is(libc::IN_DELETE | libc::IN_MOVED_FROM);
            let is_gone = leads_here || event.name.is_empty() && self.top.is_gone();
            return Ok(if is_gone {
                Verdict::Gone
            } else {
                Verdict::Goes
            });
        }
        if !self.tree.has(event.wd) {
            return Ok(Verdict::Goes);
        }
        if event.name.is_empty() {
            return Ok(self.take_own(&event, changes));
        }
        if event.is(libc::IN_MOVED_FROM) {
            let to = self.other_half(&event)?;
            return Ok(self.moved(&event, to, changes));
        }
        if is_hidden(&event.name) {
            return Ok(Verdict::Goes);
        }
        if event.is(libc::IN_CREATE | libc::IN_MOVED_TO) {
            self.appear(Kind::Create, &event, changes);
        } else if event.is(libc::IN_DELETE) {
            self.vanish(&event, changes);
        } else if let Some(path) = self.path_of(&event) {
            if event.is(libc::IN_MODIFY) {
                changes.write(event.wd, &event.name, &path);
            } else if event.is(libc::IN_ATTRIB) {
                changes.tell(Kind::Chmod, &path, None);
            }
        }
        Ok(Verdict::Goes)
    }

    /// An event of a directory itself. That of one below is its parent's event as well.
    fn take_own(&mut self, event: &Event, changes: &mut Changes) -> Verdict {
        let is_over = event.is(libc::IN_UNMOUNT | libc::IN_IGNORED);
        if event.wd != self.tree.root() {
            if is_over {
                self.unwatch(event.wd);
            }
        } else if is_over || event.is(libc::IN_DELETE_SELF | libc::IN_MOVE_SELF) {
            return Verdict::Gone;
        } else if event.is(libc::IN_ATTRIB) {
            changes.tell(Kind::Chmod, self.top.path(), None);
        }
        Verdict::Goes
    }

    /// The kernel queues both halves of a rename while it holds the locks of both directories. So once the first one's
    /// directory has been read, which takes that lock, the second half is in the queue or there is none.
    fn other_half(&mut self, from: &Event) -> Result<Option<Event>, Failure> {
        if let Some(to) = self.take_half(from.cookie) {
            return Ok(Some(to));
        }
        let is_later = |it: &Event| it.wd == from.wd && it.is(NAMES);
        if self.events.iter().any(is_later) {
            return Ok(None);
        }
        if let Ok(dir) = self.top.open_in(&self.tree, from.wd) {
            let _ = read_names(&dir);
        }
        while self.events.len() < MAX_AHEAD && self.read()? {
            if let Some(to) = self.take_half(from.cookie) {
                return Ok(Some(to));
            }
        }
        Ok(None)
    }

    fn take_half(&mut self, cookie: u32) -> Option<Event> {
        let is_half = |it: &Event| it.cookie == cookie && it.is(libc::IN_MOVED_TO);
        let at = self.events.iter().position(is_half)?;
        self.events.remove(at)
    }

    fn moved(&mut self, from: &Event, to: Option<Event>, changes: &mut Changes) -> Verdict {
        let to = to.filter(|to| self.tree.has(to.wd) && !is_hidden(&to.name));
        match (is_hidden(&from.name), to) {
            (true, None) => {}
            (true, Some(to)) => {
                let replaces = marks_replacement(&from.name) && !to.is_dir();
                let kind = if replaces { Kind::Write } else { Kind::Create };
                self.appear(kind, &to, changes);
            }
            (false, None) => self.vanish(from, changes),
            (false, Some(to)) => return self.renamed(from, &to, changes),
        }
        Verdict::Goes
    }

    fn renamed(&mut self, from: &Event, to: &Event, changes: &mut Changes) -> Verdict {
        self.tree.take_told(from.wd, &from.name);
        self.tree.take_told(to.wd, &to.name);
        if let (Some(path), Some(new)) = (self.path_of(from), self.path_of(to)) {
            changes.tell(Kind::Rename, &path, Some(&new));
        }
        if !to.is_dir() || !self.is_recursive {
            return Verdict::Goes;
        }
        let (old, new) = (
            self.tree.child(from.wd, &from.name),
            self.tree.child(to.wd, &to.name),
        );
        match (old, new) {
            (None, None) => self.scan.push(to.wd, &to.name, true),
            (Some(wd), None) if self.tree.place(wd, to.wd, &to.name) => {}
            // It has replaced a watched directory, or the two have exchanged their names.
            _ => return Verdict::Lost,
        }
        Verdict::Goes
    }

    /// A name is new, or, with `Write`, leads to a new file.
    fn appear(&mut self, kind: Kind, event: &Event, changes: &mut Changes) {
        let is_told = self.tree.take_told(event.wd, &event.name) && kind == Kind::Create;
        if let Some(path) = self.path_of(event).filter(|_| !is_told) {
            changes.tell(kind, &path, None);
        }
        let is_known = is_told && self.tree.child(event.wd, &event.name).is_some();
        if event.is_dir() && self.is_recursive && !is_known {
            self.scan.push(event.wd, &event.name, true);
        }
    }

    fn vanish(&mut self, event: &Event, changes: &mut Changes) {
        self.tree.take_told(event.wd, &event.name);
        if let Some(path) = self.path_of(event) {
            changes.tell(Kind::Remove, &path, None);
        }
        let child = self.tree.child(event.wd, &event.name);
        if let Some(wd) = child.filter(|_| event.is_dir()) {
            self.unwatch(wd);
        }
    }

    /// A directory and all below it.
    fn unwatch(&mut self, wd: Wd) {
        for wd in self.tree.remove(wd) {
            self.inotify.remove(wd);
        }
    }

    fn path_of(&self, event: &Event) -> Option<Vec<u8>> {
        self.top.path_in(&self.tree, event.wd, &event.name)
    }
}

/// Why inotify takes no more.
fn no_room(path: &Path, error: &io::Error) -> Failure {
    let setting = match error.raw_os_error() {
        Some(libc::ENOSPC) => "watches: see fs.inotify.max_user_watches",
        Some(libc::EMFILE | libc::ENFILE) => "instances: see fs.inotify.max_user_instances",
        _ => return failure(path, error),
    };
    let message = format!("the capsule's kernel has no more inotify {setting}");
    Failure::new(Code::TooMany, message)
}
