//! GROW: the root file system takes the size that its disk was given. Its programs notice nothing of it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::job::{Input, Job, Next, Progress};
use crate::protocol::{empty, Code, Failure};
use crate::usage::root_file_system;

/// How long the kernel may take to notice the new size of the disk.
const NOTICE_TIME: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
const SECTOR_BYTES: u64 = 512;
/// Takes the number of blocks, u64.
const EXT4_IOC_RESIZE_FS: libc::c_ulong = 0x4008_6610;

pub struct Growing {
    disk_bytes: u64,
    until: Instant,
}

impl Growing {
    /// In a VM only: elsewhere the root is not the agent's own.
    pub fn new(disk_bytes: u64) -> Result<Growing, Failure> {
        if std::process::id() != 1 {
            let message = "only the root of a virtual machine is grown";
            return Err(Failure::new(Code::Invalid, message));
        }
        Ok(Growing {
            disk_bytes,
            until: Instant::now() + NOTICE_TIME,
        })
    }
}

impl Job for Growing {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        Progress::next(match root_disk_bytes() {
            Some(bytes) if bytes < self.disk_bytes && Instant::now() < self.until => {
                sleep(POLL);
                Next::Continue
            }
            _ => match grow(self.disk_bytes) {
                Ok(()) => Next::Done {
                    has_end: false,
                    result: empty(),
                },
                Err(error) => {
                    let message = format!("the root file system cannot be grown: {error}");
                    Next::Failed(Failure::new(Code::Internal, message))
                }
            },
        })
    }
}

/// The size of the disk as the kernel knows it; `None` where /sys is not there.
fn root_disk_bytes() -> Option<u64> {
    let device = std::fs::metadata("/").ok()?.dev();
    let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
    let minor = (device & 0xff) | (device >> 12 & !0xff);
    let size = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    size.trim().parse::<u64>().ok()?.checked_mul(SECTOR_BYTES)
}

fn grow(disk_bytes: u64) -> std::io::Result<()> {
    let about = root_file_system().ok_or_else(std::io::Error::last_os_error)?;
    let blocks: u64 = disk_bytes / about.f_bsize;
    let root = File::open("/")?;
    // SAFETY: the kernel reads the number, which lives until the call returns.
    let result = unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_RESIZE_FS as _, &blocks) };
    if result == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error())
}
