//! The guest's end of the network: a process of its own, which ends the connections of the guest's programs and passes their
//! bytes to the relay on the host. docs/NETWORK-PROTOCOL.md is the contract.
//!
//! ```text
//!   process 1 ─► this process ─► serving: one thread, one loop
//!                             │              ├─► intake: packets ─► packet
//!        tun, netlink, steering, owners      ├─► relay: epochs, requests, messages ─► pipe ─► wire
//!                (made once)                 ├─► flows ─► flow ─► credit
//!                                            └─► resolver ─► questions ─► dns
//! ```
//!
//! `eth0` is a TUN in the guest's network namespace, `gw0` one in a namespace of this process, whose kernel ends the connections.

use std::ffi::{c_int, CStr, CString, OsStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use crate::sys::{self, check, context};
use leftovers::Leftovers;
use owners::Owners;
use packet::{GATEWAY, GUEST};
use pipe::Pipe;
use serving::Gateway;
use tun::Tun;

pub mod bpf;
pub mod budget;
pub mod conversation;
pub mod credit;
pub mod dns;
pub mod flow;
pub mod flows;
pub mod intake;
pub mod leftovers;
pub mod netlink;
pub mod owners;
pub mod packet;
pub mod pipe;
pub mod poll;
pub mod process;
pub mod questions;
pub mod relay;
pub mod resolver;
pub mod serving;
pub mod steering;
pub mod tun;
pub mod wire;

const OUTER: &CStr = c"eth0";
const INNER: &CStr = c"gw0";
const LOOPBACK: &CStr = c"lo";
const PREFIX: u8 = 29;

/// The descriptor that is written to once everything is made.
const READY_FD: c_int = 3;

/// `port`: the device of the port. `is_again`: a gateway was here before.
pub fn main(port: &OsStr, is_again: bool) -> c_int {
    let error = match make(port, is_again) {
        Ok(gateway) => sys::reason(&gateway.run()),
        Err(error) => error,
    };
    eprintln!("capsule-agent: the gateway has ended: {error}");
    1
}

fn make(port: &OsStr, is_again: bool) -> Result<Gateway, String> {
    // SAFETY: the parent has left the descriptor to this process. Nobody waits at the other end of it after the boot.
    let ready = unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        OwnedFd::from_raw_fd(READY_FD)
    };
    let port = context(sys::c_string(port.as_bytes()), "port")?;
    // The last to be ended where the guest has no memory.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let outer = context(make_outer(), "eth0")?;
    let owners = context(Owners::note(&outer), "users")?;
    let leftovers = if is_again {
        Leftovers::list()
    } else {
        Leftovers::default()
    };
    // SAFETY: plain call; this process has one thread.
    context(check(unsafe { libc::unshare(libc::CLONE_NEWNET) }), "netns")?;
    let inner = context(make_inner(), "gw0")?;
    let steering = context(steering::steer(), "listener")?;
    let mut pipe = Pipe::new(context(open_port(&port), "port")?);
    pipe.announce();
    let gateway = Gateway::new((outer, owners), inner, steering, pipe, leftovers);
    let gateway = context(gateway, "epoll")?;
    let _ = sys::write(ready.as_raw_fd(), b"1");
    Ok(gateway)
}

fn make_outer() -> std::io::Result<Tun> {
    let tun = Tun::make(OUTER)?;
    tun.persist()?;
    // The program has no IPv6 to offer; a kernel without it has no such file.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1");
    let netlink = netlink::Netlink::open()?;
    let index = netlink::Netlink::index_of(OUTER)?;
    netlink.add_address(index, GUEST, PREFIX)?;
    netlink.bring_up(index, Some(tun::MTU))?;
    netlink.add_default(index, Some(GATEWAY))?;
    Ok(tun)
}

fn make_inner() -> std::io::Result<Tun> {
    let tun = Tun::make(INNER)?;
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/gw0/disable_ipv6", "1");
    let netlink = netlink::Netlink::open()?;
    let (index, loopback) = (
        netlink::Netlink::index_of(INNER)?,
        netlink::Netlink::index_of(LOOPBACK)?,
    );
    netlink.bring_up(loopback, None)?;
    netlink.bring_up(index, Some(tun::MTU))?;
    netlink.add_default(index, None)?;
    netlink.accept_everything(INNER, loopback)?;
    Ok(tun)
}

fn open_port(path: &CString) -> std::io::Result<OwnedFd> {
    sys::open(path, libc::O_RDWR | libc::O_NONBLOCK)
}
