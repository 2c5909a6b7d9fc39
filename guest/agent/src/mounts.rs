//! Mounts besides the root file system: the kernel's own file systems, memory for /run and /dev/shm; and the links in /dev
//! that programs expect.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::options::MACHINE_CGROUP;
use crate::sys::{check, context, owned};

const NOSUID: u64 = libc::MS_NOSUID;
const NODEV: u64 = libc::MS_NODEV;
const NOEXEC: u64 = libc::MS_NOEXEC;

struct Mount {
    kind: &'static CStr,
    target: &'static CStr,
    flags: u64,
    options: &'static CStr,
}

const fn mount(
    kind: &'static CStr,
    target: &'static CStr,
    flags: u64,
    options: &'static CStr,
) -> Mount {
    Mount {
        kind,
        target,
        flags,
        options,
    }
}

/// Mounted in the initramfs, and moved to the root file system later.
const KERNEL: [Mount; 3] = [
    mount(c"devtmpfs", c"/dev", NOSUID, c"mode=0755"),
    mount(c"proc", c"/proc", NOSUID | NODEV | NOEXEC, c""),
    mount(c"sysfs", c"/sys", NOSUID | NODEV | NOEXEC, c""),
];

const REST: [Mount; 5] = [
    mount(
        c"devpts",
        c"/dev/pts",
        NOSUID | NOEXEC,
        c"gid=5,mode=0620,ptmxmode=0666",
    ),
    mount(c"tmpfs", c"/dev/shm", NOSUID | NODEV, c"mode=1777"),
    mount(c"tmpfs", c"/run", NOSUID | NODEV, c"mode=0755"),
    mount(
        c"tmpfs",
        c"/run/lock",
        NOSUID | NODEV | NOEXEC,
        c"mode=1777,size=5m",
    ),
    mount(
        c"cgroup2",
        c"/sys/fs/cgroup",
        NOSUID | NODEV | NOEXEC,
        c"nsdelegate",
    ),
];

const LINKS: [(&CStr, &CStr); 4] = [
    (c"/proc/self/fd", c"/dev/fd"),
    (c"/proc/self/fd/0", c"/dev/stdin"),
    (c"/proc/self/fd/1", c"/dev/stdout"),
    (c"/proc/self/fd/2", c"/dev/stderr"),
];

pub fn mount_kernel() -> Result<(), String> {
    KERNEL.iter().try_for_each(Mount::make)
}

/// Moves the kernel's file systems to `/newroot` and makes that the root.
pub fn switch_root() -> Result<(), String> {
    for (from, to) in [
        (c"/dev", c"/newroot/dev"),
        (c"/proc", c"/newroot/proc"),
        (c"/sys", c"/newroot/sys"),
    ] {
        make_dir(to);
        context(
            mount_call(Some(from), to, None, libc::MS_MOVE, c""),
            text(to),
        )?;
    }
    let new_root = c"/newroot";
    // SAFETY: the paths end in NUL.
    context(check(unsafe { libc::chdir(new_root.as_ptr()) }), "/newroot")?;
    context(
        mount_call(Some(c"."), c"/", None, libc::MS_MOVE, c""),
        "the root cannot be moved",
    )?;
    // SAFETY: as above.
    context(check(unsafe { libc::chroot(c".".as_ptr()) }), "chroot")?;
    context(check(unsafe { libc::chdir(c"/".as_ptr()) }), "/").map(drop)
}

/// Otherwise a kernel thread reads all block bitmaps some seconds after the mount, which costs each capsule time and memory.
/// Without it, a bitmap is read before the first write to its part of the disk.
const DISK_OPTIONS: &CStr = c"no_prefetch_block_bitmaps";

pub fn mount_disk(device: &CStr) -> Result<(), String> {
    make_dir(c"/newroot");
    let result = mount_call(Some(device), c"/newroot", Some(c"ext4"), 0, DISK_OPTIONS);
    context(result, format!("{} cannot be mounted", text(device)))
}

pub fn mount_rest() -> Result<(), String> {
    REST.iter().try_for_each(Mount::make)?;
    for (target, link) in LINKS {
        // SAFETY: the paths end in NUL. A link that exists already is right.
        unsafe { libc::symlink(target.as_ptr(), link.as_ptr()) };
    }
    enable_controllers();
    Ok(())
}

/// All commands together get the same CPU weight as the agent. The other controllers are left to the guest, since each adds
/// to the cost of every process start and end; the memory controller adds most, as it counts every page.
fn enable_controllers() {
    let _ = std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu");
    let _ = std::fs::create_dir(MACHINE_CGROUP);
}

impl Mount {
    fn make(&self) -> Result<(), String> {
        make_dir(self.target);
        let result = mount_call(
            Some(self.kind),
            self.target,
            Some(self.kind),
            self.flags,
            self.options,
        );
        match &result {
            // The kernel may have mounted it already.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
            _ => context(result, format!("{} cannot be mounted", text(self.target))),
        }
    }
}

/// A new file system of this kind that is mounted nowhere: nothing but the descriptor of its root leads to it.
pub fn detached(kind: &CStr) -> io::Result<OwnedFd> {
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const CLOEXEC: libc::c_uint = 1;
    let (none, attributes) = (std::ptr::null::<libc::c_char>(), 0);
    // SAFETY: `kind` ends in NUL; the other texts are not given.
    unsafe {
        let context = owned(libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOEXEC) as i32)?;
        let fd = context.as_raw_fd();
        let created = libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0);
        check(created as i32)?;
        owned(libc::syscall(libc::SYS_fsmount, fd, CLOEXEC, attributes) as i32)
    }
}

fn make_dir(path: &CStr) {
    // SAFETY: the path ends in NUL. A failure shows at the mount.
    unsafe { libc::mkdir(path.as_ptr(), 0o755) };
}

fn mount_call(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: u64,
    options: &CStr,
) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every text ends in NUL.
    check(unsafe {
        libc::mount(
            pointer(source),
            target.as_ptr(),
            pointer(kind),
            flags,
            options.as_ptr().cast(),
        )
    })
    .map(drop)
}

fn text(path: &CStr) -> String {
    path.to_string_lossy().into_owned()
}
