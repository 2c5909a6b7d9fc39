//! A path of the request, and its name in the archive.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::files::archive::walk::is_the_kernels;
use crate::files::paths::{failure, invalid};
use crate::protocol::Failure;
use crate::sys;

pub struct Root {
    pub path: PathBuf,
    /// Empty for the base itself.
    pub name: Vec<u8>,
}

impl Root {
    /// A path outside the base is refused.
    pub fn new(path: PathBuf, base: Option<&Path>) -> Result<Root, Failure> {
        let base = base.unwrap_or(Path::new("/"));
        let Ok(name) = path.strip_prefix(base) else {
            let what = format!("is not in the base {}", base.display());
            return Err(invalid(path.as_os_str().as_bytes(), &what));
        };
        let name = name.as_os_str().as_bytes().to_vec();
        Ok(Root { path, name })
    }

    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |error: io::Error| failure(&self.path, &error);
        let path = self.path.as_os_str().as_bytes();
        let name = sys::c_string(path).map_err(wrong)?;
        let file = sys::open(&name, libc::O_PATH | libc::O_NOFOLLOW).map_err(wrong)?;
        if is_the_kernels(&file) {
            return Err(invalid(path, "is the kernel's own and cannot be archived"));
        }
        Ok(())
    }
}
