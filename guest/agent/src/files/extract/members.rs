//! Members of an archive as files of the target. A file or a link is made under a temporary name and renamed, so that what
//! stands at its name is replaced and never written to or followed.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::attributes::{change_mode, change_owner};
use crate::files::extract::fault::{refused, Fault};
use crate::files::extract::sparse::Extent;
use crate::files::extract::tree::{
    name_of, set_owner_and_mode, set_time, shown, times, Attributes, Name, Tree,
};
use crate::files::hidden_names::{hidden_name, marks_replacement, rehide};
use crate::files::location::stat_at;
use crate::sys::{self, check};

/// A file whose content is arriving. Removed when dropped, unless it is complete.
pub struct NewFile {
    place: Place,
    file: File,
    attributes: Attributes,
    extents: VecDeque<Extent>,
    real_size: u64,
}

impl NewFile {
    pub fn create(tree: &mut Tree, name: Name, attributes: Attributes) -> Result<NewFile, Fault> {
        let place = Place::new(tree, name)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let file = File::from(sys::open_at(&place.dir, &place.temporary, flags)?);
        Ok(NewFile {
            place,
            file,
            attributes,
            extents: VecDeque::new(),
            real_size: 0,
        })
    }

    /// Where the content goes, before its first byte.
    pub fn set_extents(&mut self, extents: Vec<Extent>, real_size: u64) {
        self.extents = extents.into();
        self.real_size = real_size;
    }

    /// No more than the extents have room for.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(extent) = self.extents.front_mut() {
            let length = bytes
                .len()
                .min(usize::try_from(extent.length).unwrap_or(usize::MAX));
            self.file.write_all_at(&bytes[..length], extent.offset)?;
            extent.offset += length as u64;
            extent.length -= length as u64;
            bytes = &bytes[length..];
            if extent.length > 0 {
                break;
            }
            self.extents.pop_front();
        }
        Ok(())
    }

    pub fn complete(mut self) -> Result<(), Fault> {
        if self.file.metadata()?.len() != self.real_size {
            self.file.set_len(self.real_size)?;
        }
        set_owner_and_mode(&self.file, self.attributes)?;
        set_time(&self.file, self.attributes.mtime)?;
        self.place.publish()
    }
}

pub fn add_symlink(
    tree: &mut Tree,
    name: Name,
    target: &[u8],
    attributes: Attributes,
) -> Result<(), Fault> {
    let target = CString::new(target)
        .ok()
        .filter(|target| !target.as_bytes().is_empty())
        .ok_or_else(|| refused(&shown(&name), "is a link without a target"))?;
    let mut place = Place::new(tree, name)?;
    let (dir, temporary) = (place.dir.as_raw_fd(), place.temporary.as_ptr());
    let times = times(attributes.mtime);
    // SAFETY: the names end in NUL, and `times` has the two that the call reads.
    unsafe {
        check(libc::symlinkat(target.as_ptr(), dir, temporary))?;
        let own = libc::AT_SYMLINK_NOFOLLOW;
        check(libc::fchownat(
            dir,
            temporary,
            attributes.uid,
            attributes.gid,
            own,
        ))?;
        check(libc::utimensat(dir, temporary, times.as_ptr(), own))?;
    }
    place.publish()
}

pub fn add_fifo(tree: &mut Tree, name: Name, attributes: Attributes) -> Result<(), Fault> {
    let mut place = Place::new(tree, name)?;
    let (dir, temporary) = (place.dir.as_raw_fd(), place.temporary.as_ptr());
    // SAFETY: the name ends in NUL.
    check(unsafe { libc::mknodat(dir, temporary, libc::S_IFIFO | 0o600, 0) })?;
    let (uid, gid) = (Some(attributes.uid), Some(attributes.gid));
    change_owner(&place.dir, &place.temporary, uid, gid)?;
    // Another process may have put a link in its place: none of these follows it.
    change_mode(&place.dir, &place.temporary, attributes.mode & 0o7777)?;
    let (times, own) = (times(attributes.mtime), libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: as above, and `times` has the two that the call reads.
    check(unsafe { libc::utimensat(dir, temporary, times.as_ptr(), own) })?;
    place.publish()
}

/// Another name of a file that is in the target.
pub fn add_hard_link(tree: &mut Tree, name: Name, target: &[u8]) -> Result<(), Fault> {
    let first = name_of(target)?;
    let missing = || {
        refused(
            &shown(&name),
            "is a hard link to a file that is not in the directory",
        )
    };
    let Some((own, parents)) = first.split_last() else {
        return Err(missing());
    };
    let from = match tree.directory(parents, false) {
        Err(Fault::System(error)) if error.raw_os_error() == Some(libc::ENOENT) => {
            return Err(missing())
        }
        dir => dir?.try_clone()?,
    };
    let mut place = Place::new(tree, name.clone())?;
    let (dir, temporary) = (place.dir.as_raw_fd(), place.temporary.as_ptr());
    // SAFETY: the names end in NUL. Without AT_SYMLINK_FOLLOW a link gets the other name itself.
    match check(unsafe { libc::linkat(from.as_raw_fd(), own.as_ptr(), dir, temporary, 0) }) {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::EPERM | libc::EXDEV)
            ) =>
        {
            return Err(missing());
        }
        linked => linked?,
    };
    place.publish()
}

/// Where a member goes, and the temporary name until then.
struct Place {
    dir: OwnedFd,
    own: CString,
    temporary: CString,
    name: Name,
}

impl Place {
    fn new(tree: &mut Tree, name: Name) -> Result<Place, Fault> {
        let Some((own, parents)) = name.split_last() else {
            return Err(refused(b".", "is not a directory in the archive"));
        };
        let dir = tree.directory(parents, true)?.try_clone()?;
        Ok(Place {
            dir,
            own: own.clone(),
            temporary: hidden_name(false)?,
            name,
        })
    }

    fn publish(&mut self) -> Result<(), Fault> {
        let replaces = stat_at(&self.dir, &self.own)?.is_some();
        if replaces != marks_replacement(self.temporary.to_bytes()) {
            self.temporary = rehide(&self.dir, &self.temporary, &self.dir, replaces)?;
        }
        let (dir, from, to): (_, &CStr, &CStr) = (self.dir.as_raw_fd(), &self.temporary, &self.own);
        // SAFETY: both names end in NUL.
        match check(unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) }) {
            Err(error) if error.raw_os_error() == Some(libc::EISDIR) => Err(refused(
                &shown(&self.name),
                "is a directory and is not replaced",
            )),
            renamed => renamed.map(drop).map_err(Fault::from),
        }
    }
}

impl Drop for Place {
    /// A hard link to the file that already has the name stays under its temporary one after a rename.
    fn drop(&mut self) {
        // SAFETY: the name ends in NUL.
        unsafe { libc::unlinkat(self.dir.as_raw_fd(), self.temporary.as_ptr(), 0) };
    }
}
