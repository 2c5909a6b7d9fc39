//! From the initramfs to a guest that can serve the host: modules, disk, mounts, loopback network, limits, port.
//!
//! ```text
//!   kernel ─► /init (this program) ─► modules ─► /dev/vda on / ─► mounts ─► port "capsule.agent"
//! ```
//!
//! There is no shell and no second program: this one keeps running out of the initramfs, whose files it deletes. Every
//! wait has a deadline. A failure prints one line on the console and powers the machine off.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use crate::gateway::packet;
use crate::halt::{self, Halt};
use crate::mounts;
use crate::sys::{self, check, context, monotonic_ns, sleep_ms};

const DISK: &CStr = c"/dev/vda";
const MODULES: &str = "/modules";
const PORT_NAME: &str = "capsule.agent";
const NETWORK_PORT_NAME: &str = "capsule.net";
/// How long to wait for a device: far longer than it takes under emulation on a busy machine.
const DEVICE_MS: u64 = 30_000;

/// Libraries that nearly every program maps. The first mapping of a page and the last unmapping cost the kernel extra: a
/// twentieth of a small command that runs alone. While the agent keeps the files mapped, a command's are neither.
const LIBRARIES: [&CStr; 2] = [
    c"/lib/x86_64-linux-gnu/libc.so.6",
    c"/lib64/ld-linux-x86-64.so.2",
];

/// The ports of the machine.
pub struct Ports {
    pub agent: OwnedFd,
    /// The device of the gateway's, in a machine with a network.
    pub network: Option<CString>,
}

/// On failure the machine is powered off.
pub fn boot() -> Ports {
    match start_up() {
        Ok(ports) => ports,
        Err(reason) => give_up(&reason),
    }
}

/// Prints one line on the console, and powers off.
pub fn give_up(reason: &str) -> ! {
    eprintln!("capsule-agent: cannot boot: {reason}");
    halt::stop(Halt::PowerOff)
}

fn start_up() -> Result<Ports, String> {
    mounts::mount_kernel()?;
    open_standard_streams()?;
    load_modules()?;
    let disk = || Path::new("/dev/vda").exists().then_some(());
    wait_for(disk).ok_or("no disk /dev/vda")?;
    mounts::mount_disk(DISK)?;
    empty_initramfs();
    mounts::switch_root()?;
    mounts::mount_rest()?;
    configure_machine();
    let ports = wait_for(named_ports).ok_or("no port capsule.agent")?;
    let path_of = |name: &str| {
        let port = ports.iter().find(|(its_name, _)| its_name == name);
        port.map(|(_, device)| context(sys::c_string(device.as_bytes()), "port"))
            .transpose()
    };
    let path = path_of(PORT_NAME)?.ok_or("no port capsule.agent")?;
    let network = path_of(NETWORK_PORT_NAME)?;
    if network.is_some() {
        name_resolver(c"/etc/resolv.conf");
    }
    let open = || sys::open(&path, libc::O_RDWR | libc::O_NONBLOCK).ok();
    let agent = wait_for(open).ok_or_else(|| format!("{path:?} cannot be opened"))?;
    Ok(Ports { agent, network })
}

/// Opens descriptors 0, 1 and 2, so that nothing else gets those numbers.
fn open_standard_streams() -> Result<(), String> {
    let null = context(sys::open(c"/dev/null", libc::O_RDWR), "/dev/null")?;
    let console = sys::open(c"/dev/console", libc::O_WRONLY | libc::O_NOCTTY);
    let output = console.as_ref().unwrap_or(&null).as_raw_fd();
    for (fd, target) in [(null.as_raw_fd(), 0), (output, 1), (output, 2)] {
        // SAFETY: plain call.
        context(check(unsafe { libc::dup2(fd, target) }), "dup2")?;
    }
    for fd in [Some(null), console.ok()].into_iter().flatten() {
        // The first descriptors opened may be 0 to 2 themselves.
        if fd.as_raw_fd() <= 2 {
            std::mem::forget(fd);
        }
    }
    Ok(())
}

/// In the order of the file: each module depends on earlier ones only.
fn load_modules() -> Result<(), String> {
    let order = format!("{MODULES}/order");
    let names = context(std::fs::read_to_string(&order), &order)?;
    for name in names.split_whitespace() {
        let path = format!("{MODULES}/{name}");
        let result = sys::c_string(path.as_bytes())
            .and_then(|path| sys::open(&path, libc::O_RDONLY))
            .and_then(|file| load_module(&file, !name.ends_with(".ko")));
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            result => context(result, format!("module {name}"))?,
        }
    }
    Ok(())
}

fn load_module(file: &OwnedFd, is_compressed: bool) -> std::io::Result<()> {
    const MODULE_INIT_COMPRESSED_FILE: libc::c_int = 4;
    let flags = if is_compressed {
        MODULE_INIT_COMPRESSED_FILE
    } else {
        0
    };
    // SAFETY: the parameters are a text that ends in NUL.
    check(unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            c"".as_ptr(),
            flags,
        ) as libc::c_int
    })
    .map(drop)
}

/// Frees the memory of the modules, and removes the name of this program, which keeps running.
fn empty_initramfs() {
    for entry in std::fs::read_dir(MODULES).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(entry.path());
    }
    let _ = std::fs::remove_file("/init");
}

/// Names and devices of all ports, once each has its name and the agent's is there: the names come after the ports.
fn named_ports() -> Option<Vec<(String, String)>> {
    let entries = std::fs::read_dir("/sys/class/virtio-ports").ok()?;
    let ports: Option<Vec<_>> = entries
        .flatten()
        .map(|entry| {
            let name = std::fs::read_to_string(entry.path().join("name")).ok()?;
            let name = name.trim_end();
            let device = format!("/dev/{}", entry.file_name().to_string_lossy());
            (!name.is_empty() && name != "(null)").then(|| (name.to_string(), device))
        })
        .collect();
    ports.filter(|ports| ports.iter().any(|(name, _)| name == PORT_NAME))
}

/// Writes the resolver's address into a file that names none: one with content is the user's.
fn name_resolver(path: &CStr) {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = sys::open(path, flags) else {
        return;
    };
    // SAFETY: `status` is what the call fills.
    let is_empty = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(file.as_raw_fd(), &mut status) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && status.st_size == 0
    };
    if is_empty {
        let line = format!("nameserver {}\n", packet::GATEWAY);
        let _ = sys::write(file.as_raw_fd(), line.as_bytes());
        // SAFETY: plain call. Every user reads it.
        unsafe { libc::fchmod(file.as_raw_fd(), 0o644) };
    }
}

/// Polls at once, and then at intervals that grow from 1 ms to 20 ms.
fn wait_for<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = monotonic_ns() + DEVICE_MS * 1_000_000;
    let mut pause_ms = 1;
    loop {
        if let Some(found) = poll() {
            return Some(found);
        }
        if monotonic_ns() > deadline {
            return None;
        }
        sleep_ms(pause_ms);
        pause_ms = (pause_ms + 1).min(20);
    }
}

/// Settings without which the guest works too, so failures are ignored.
fn configure_machine() {
    LIBRARIES.iter().for_each(|path| keep_mapped(path));
    stop_interval_timer();
    // SAFETY: plain calls; the texts end in NUL.
    unsafe {
        libc::umask(0o022);
        libc::reboot(libc::RB_DISABLE_CAD);
    }
    limit(libc::RLIMIT_NOFILE, 65_536, 1_048_576);
    limit(libc::RLIMIT_CORE, 0, libc::RLIM_INFINITY);
    let _ = bring_up_loopback();
    let name = std::fs::read("/etc/hostname").unwrap_or_default();
    let name = name.trim_ascii();
    if !name.is_empty() && name.len() <= 64 {
        // SAFETY: `name` is as long as we say.
        unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) };
    }
}

/// A PC's interval timer counts from power-on, and each of its 36 edges a second wakes the QEMU process: three quarters of
/// the cost of an idle guest. This kernel does not use it and does not stop it; newer kernels do.
fn stop_interval_timer() {
    const COMMAND: u16 = 0x43;
    const CHANNEL: u16 = 0x40;
    const COUNT_DOWN_ONCE: u8 = 0b0011_0000;
    // SAFETY: the four ports are the timer's, which is not used; without permission nothing is written to them.
    unsafe {
        if libc::ioperm(CHANNEL.into(), 4, 1) != 0 {
            return;
        }
        for (port, byte) in [(COMMAND, COUNT_DOWN_ONCE), (CHANNEL, 0), (CHANNEL, 0)] {
            std::arch::asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack, preserves_flags));
        }
        libc::ioperm(CHANNEL.into(), 4, 0);
    }
}

/// A larger file is not one of these libraries.
const LIBRARY_BYTES: i64 = 16 * 1024 * 1024;

/// Maps a file as long as the machine runs.
fn keep_mapped(path: &CStr) {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let Ok(file) = sys::open(path, flags) else {
        return; // another distribution has other paths
    };
    // SAFETY: `status` is what the call fills; the mapping is new.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let is_known = libc::fstat(file.as_raw_fd(), &mut status) == 0;
        let is_file = is_known && status.st_mode & libc::S_IFMT == libc::S_IFREG;
        if is_file && status.st_size > 0 && status.st_size <= LIBRARY_BYTES {
            let flags = libc::MAP_PRIVATE | libc::MAP_POPULATE;
            let size = status.st_size as usize;
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ,
                flags,
                file.as_raw_fd(),
                0,
            );
        }
    }
}

fn limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: `limit` is ours.
    unsafe { libc::setrlimit(resource, &limit) };
}

/// The kernel gives `lo` its addresses as soon as it is up.
fn bring_up_loopback() -> std::io::Result<()> {
    // SAFETY: plain call; then a request whose structure is whole.
    let socket = sys::owned(unsafe {
        libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)
    })?;
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_library_stays_mapped_and_what_is_none_is_left_alone() {
        let dir = std::env::temp_dir().join(format!("capsule-mapped-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let named = |name: &str| sys::c_string(dir.join(name).as_os_str().as_bytes()).unwrap();
        std::fs::write(dir.join("library"), [1u8; 8192]).unwrap();
        std::fs::write(dir.join("huge"), b"").unwrap();
        let huge = std::fs::OpenOptions::new()
            .write(true)
            .open(dir.join("huge"))
            .unwrap();
        huge.set_len(LIBRARY_BYTES as u64 + 1).unwrap();
        // SAFETY: the name ends in NUL.
        check(unsafe { libc::mkfifo(named("pipe").as_ptr(), 0o600) }).unwrap();
        for name in ["library", "huge", "pipe", "missing"] {
            keep_mapped(&named(name));
        }
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of = |name: &str| smaps.split_once(&format!("{}\n", dir.join(name).display()));
        let (_, library) = of("library").expect("it is not mapped");
        let rss = library
            .lines()
            .find(|line| line.starts_with("Rss:"))
            .unwrap();
        assert!(rss.ends_with("8 kB"), "it is not read in: {rss}");
        assert!(of("huge").is_none() && of("pipe").is_none());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
