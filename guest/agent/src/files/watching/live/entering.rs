//! Watching directories, and reading them. The content of a directory that was made later is told, since it may be older
//! than the watch.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{no_room, Live, Verdict};
use crate::files::directory::read_entries_at;
use crate::files::hidden_names::is_hidden;
use crate::files::paths::failure;
use crate::files::watching::changes::{Changes, Kind};
use crate::files::watching::inotify::{Wd, CONTENT};
use crate::files::watching::scan::Found;
use crate::files::watching::top::{identity_of, is_missing, open_below};
use crate::memory;
use crate::protocol::{Code, Failure};

impl Live {
    /// Reads on, or goes to the next directory.
    pub(super) fn scan_some(&mut self, changes: &mut Changes) -> Result<Verdict, Failure> {
        if self.scan.reading.is_some() {
            self.scan_entry(changes)?;
        } else if let Some(found) = self.scan.found.pop() {
            return self.enter(found, changes);
        }
        Ok(Verdict::Goes)
    }

    fn scan_entry(&mut self, changes: &mut Changes) -> Result<(), Failure> {
        let Some(reading) = &mut self.scan.reading else {
            return Ok(());
        };
        let Some(entry) = reading.entries.pop_front() else {
            return self.read_on(changes);
        };
        let (wd, tells, name) = (reading.wd, reading.tells, entry.name.to_bytes());
        if is_hidden(name) {
            return Ok(());
        }
        if tells {
            if let Some(path) = self.top.path_in(&self.tree, wd, name) {
                changes.tell(Kind::Create, &path, None);
                self.tree.note_told(wd, name);
            }
        }
        if matches!(entry.kind, libc::DT_DIR | libc::DT_UNKNOWN) {
            if self.tree.count() + self.scan.waiting() >= self.limit {
                return self.leave_out(self.too_many(), changes);
            }
            self.scan.push(wd, name, tells);
        }
        Ok(())
    }

    fn read_on(&mut self, changes: &mut Changes) -> Result<(), Failure> {
        let Some(reading) = &mut self.scan.reading else {
            return Ok(());
        };
        match read_entries_at(&reading.dir, reading.position) {
            Ok((entries, position)) if !entries.is_empty() => {
                (reading.entries, reading.position) = (entries.into(), position);
                return Ok(());
            }
            Err(error) if !is_missing(&error) => {
                let wd = reading.wd;
                self.scan.reading = None;
                let path = self.top.path_in(&self.tree, wd, b"").unwrap_or_default();
                let reason = failure(Path::new(OsStr::from_bytes(&path)), &error);
                return self.leave_out(reason, changes);
            }
            // It has been read, or is gone.
            _ => self.scan.reading = None,
        }
        Ok(())
    }

    /// Watches a directory and begins to read it.
    fn enter(&mut self, found: Found, changes: &mut Changes) -> Result<Verdict, Failure> {
        if !self.tree.has(found.parent) {
            return Ok(Verdict::Goes);
        }
        let Ok(()) = self.open_parent(found.parent) else {
            self.scan.deferred.push(found);
            return Ok(Verdict::Goes);
        };
        let Some((_, parent)) = &self.scan.parent else {
            return Ok(Verdict::Goes);
        };
        let dir = match open_below(parent, &found.name) {
            Ok(dir) => dir,
            // It is gone, no directory, or a mount point.
            Err(error) if is_missing(&error) => return Ok(Verdict::Goes),
            Err(error) => return self.cannot_watch(&found, &error, changes),
        };
        let name = found.name.to_bytes();
        let is_new = self.tree.child(found.parent, name).is_none();
        if is_new && self.tree.count() >= self.limit {
            self.leave_out(self.too_many(), changes)?;
            return Ok(Verdict::Goes);
        }
        if memory::is_low() {
            self.leave_out(memory::exhausted(), changes)?;
            return Ok(Verdict::Goes);
        }
        let added =
            identity_of(&dir).and_then(|identity| Ok((self.inotify.add(&dir, CONTENT)?, identity)));
        let (wd, identity) = match added {
            Ok(added) => added,
            Err(error) => return self.cannot_watch(&found, &error, changes),
        };
        if !self.tree.insert(found.parent, name, wd, identity) {
            return Ok(Verdict::Lost);
        }
        self.scan.read(wd, dir, found.tells);
        Ok(Verdict::Goes)
    }

    fn open_parent(&mut self, wd: Wd) -> io::Result<()> {
        if self.scan.parent.as_ref().is_none_or(|(own, _)| *own != wd) {
            self.scan.parent = Some((wd, self.top.open_in(&self.tree, wd)?));
        }
        Ok(())
    }

    fn cannot_watch(
        &mut self,
        found: &Found,
        error: &io::Error,
        changes: &mut Changes,
    ) -> Result<Verdict, Failure> {
        let path = self
            .top
            .path_in(&self.tree, found.parent, found.name.to_bytes());
        let path = path.unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(&path));
        let reason = match error.raw_os_error() {
            Some(libc::ENOSPC) => no_room(path, error),
            _ => failure(path, error),
        };
        self.leave_out(reason, changes)?;
        Ok(Verdict::Goes)
    }

    /// The directory is not watched: at the start a failure, later an overflow.
    fn leave_out(&mut self, reason: Failure, changes: &mut Changes) -> Result<(), Failure> {
        if self.is_strict {
            return Err(reason);
        }
        self.full_at = Some(self.tree.count());
        changes.overflow();
        Ok(())
    }

    fn too_many(&self) -> Failure {
        let path = String::from_utf8_lossy(self.top.path());
        let message = format!("{path} has more than {} directories", self.limit);
        Failure::new(Code::TooLarge, message)
    }
}
