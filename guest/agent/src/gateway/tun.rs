//! A TUN: an interface of the kernel whose packets this process reads and writes, each behind a `struct virtio_net_hdr`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{self, check};

/// The largest MTU of a TUN, less 15 bytes: a multiple of 16.
pub const MTU: u32 = 65_520;
/// The longest packet with its header.
pub const MAX_BYTES: usize = super::packet::VNET_BYTES + 65_535;

const IFF_TUN: i16 = 0x0001;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
const TUNSETOWNER: libc::c_ulong = 0x4004_54cc;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNSETFILTEREBPF: libc::c_ulong = 0x8004_54e1;
const ROOT: libc::c_ulong = 0;
/// Packets may come without checksum, and several of one connection as one.
const TUN_F_CSUM: libc::c_ulong = 1;
const TUN_F_TSO4: libc::c_ulong = 2;

pub struct Tun {
    fd: OwnedFd,
}

impl Tun {
    /// In the network namespace of the process; the interface of this name, where there is one. It lasts as long as this.
    pub fn make(name: &CStr) -> io::Result<Tun> {
        let fd = sys::open(c"/dev/net/tun", libc::O_RDWR | libc::O_NONBLOCK)?;
        // SAFETY: the request is whole, and the second argument a number.
        unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
                *to = *from as libc::c_char;
            }
            request.ifr_ifru.ifru_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
            check(libc::ioctl(fd.as_raw_fd(), TUNSETIFF as _, &request))?;
            let offloads = TUN_F_CSUM | TUN_F_TSO4;
            check(libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD as _, offloads))?;
        }
        Ok(Tun { fd })
    }

    /// The interface outlives the process: connections that a program begins meanwhile wait for the next one, as the kernel drops
    /// their packets and repeats them. Its owner is root, or any user could take it while nobody holds it.
    pub fn persist(&self) -> io::Result<()> {
        // SAFETY: the arguments are numbers.
        unsafe {
            check(libc::ioctl(self.fd(), TUNSETOWNER as _, ROOT))?;
            check(libc::ioctl(
                self.fd(),
                TUNSETPERSIST as _,
                1 as libc::c_ulong,
            ))?;
        }
        Ok(())
    }

    /// A program that sees each packet before it is read, and returns how much of it is kept.
    pub fn filter(&self, program: &OwnedFd) -> io::Result<()> {
        let program = program.as_raw_fd();
        // SAFETY: the argument is a number that outlives the call.
        check(unsafe { libc::ioctl(self.fd(), TUNSETFILTEREBPF as _, &program) }).map(drop)
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// `Ok(None)`: there is none now. An error: the interface is gone.
    pub fn read(&self, space: &mut [u8]) -> io::Result<Option<usize>> {
        sys::read(self.fd(), space)
    }

    /// A packet that the kernel does not take is lost, as on any network.
    pub fn write(&self, packet: &[u8]) {
        let _ = sys::write(self.fd(), packet);
    }
}
