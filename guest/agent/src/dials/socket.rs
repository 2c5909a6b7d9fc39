//! A TCP socket of DIAL, which does not block.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{check, owned};

/// A server may listen on any of these alone. They are tried in this order.
#[derive(Clone, Copy)]
pub enum Target {
    Loopback4,
    Loopback6,
    /// The IPv4 address of eth0.
    Interface,
}

impl Target {
    pub const ALL: [Target; 3] = [Target::Loopback4, Target::Loopback6, Target::Interface];
}

pub struct Socket(OwnedFd);

pub struct Connecting {
    pub socket: Socket,
    pub is_connected: bool,
}

pub enum Progress {
    Connecting,
    Connected,
    /// A server has accepted and has reset the connection since. Reads of what it sent before it succeed.
    Reset,
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Socket {
    /// Begins to connect to the first address that does not refuse at once, and takes those before it from the list.
    pub fn connect_first(targets: &mut VecDeque<Target>, port: u16) -> Option<Connecting> {
        while let Some(target) = targets.pop_front() {
            if let Ok(connecting) = Socket::connect(target, port) {
                return Some(connecting);
            }
        }
        None
    }

    fn connect(target: Target, port: u16) -> io::Result<Connecting> {
        match target {
            Target::Loopback4 => connect4(Ipv4Addr::LOCALHOST, port),
            Target::Loopback6 => connect6(port),
            Target::Interface => connect4(interface_address()?, port),
        }
    }

    /// Fails if no server accepts.
    pub fn progress(&self) -> io::Result<Progress> {
        match self.option(libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => {}
            // These errors come only behind a handshake; a server's absence is ECONNREFUSED.
            libc::ECONNRESET | libc::EPIPE => return Ok(Progress::Reset),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        let peer = match self.name(libc::getpeername) {
            Ok(peer) => peer,
            // A reset since then is told by the next event.
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
                return Ok(Progress::Connecting)
            }
            Err(error) => return Err(error),
        };
        // A port of the range that connections are made from may be its own peer.
        if self.name(libc::getsockname)? == peer {
            return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED));
        }
        Ok(Progress::Connected)
    }

    /// FIN behind what was written.
    pub fn end(&self) {
        // SAFETY: plain call.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_WR) };
    }

    /// The close sends RST.
    pub fn reset(&self) {
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        self.set_option(libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }

    fn set_option<T>(&self, level: i32, name: i32, value: &T) {
        let size = mem::size_of::<T>() as libc::socklen_t;
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: `value` is of that size. A failure leaves the default, which works too.
        unsafe { libc::setsockopt(self.0.as_raw_fd(), level, name, value, size) };
    }

    fn option(&self, level: i32, name: i32) -> io::Result<i32> {
        let mut value: i32 = 0;
        let mut size = mem::size_of::<i32>() as libc::socklen_t;
        let target = std::ptr::from_mut(&mut value).cast();
        // SAFETY: `value` is of that size.
        check(unsafe { libc::getsockopt(self.0.as_raw_fd(), level, name, target, &mut size) })?;
        Ok(value)
    }

    /// An address as the kernel has it.
    fn name(&self, call: NameCall) -> io::Result<Vec<u8>> {
        // SAFETY: the type is plain data.
        let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
        let mut size = mem::size_of_val(&address) as libc::socklen_t;
        let target = std::ptr::from_mut(&mut address);
        // SAFETY: `address` has room for both families.
        check(unsafe { call(self.0.as_raw_fd(), target.cast(), &mut size) })?;
        // SAFETY: plain data of that size.
        let bytes = unsafe { std::slice::from_raw_parts(target.cast::<u8>(), size as usize) };
        Ok(bytes.to_vec())
    }
}

type NameCall = unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut libc::socklen_t) -> i32;

fn connect4(address: Ipv4Addr, port: u16) -> io::Result<Connecting> {
    // SAFETY: the type is plain data.
    let mut to: libc::sockaddr_in = unsafe { mem::zeroed() };
    to.sin_family = libc::AF_INET as libc::sa_family_t;
    to.sin_port = port.to_be();
    to.sin_addr.s_addr = u32::from(address).to_be();
    connect(libc::AF_INET, &to)
}

fn connect6(port: u16) -> io::Result<Connecting> {
    // SAFETY: the type is plain data.
    let mut to: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    to.sin6_port = port.to_be();
    to.sin6_addr.s6_addr[15] = 1;
    connect(libc::AF_INET6, &to)
}

fn connect<T>(family: i32, to: &T) -> io::Result<Connecting> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain call.
    let socket = Socket(owned(unsafe { libc::socket(family, kind, 0) })?);
    let is_on: i32 = 1;
    socket.set_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, &is_on);
    let size = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: `to` is an address of that size.
    let called = unsafe { libc::connect(socket.as_raw_fd(), std::ptr::from_ref(to).cast(), size) };
    let is_connected = match check(called) {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => false,
        Err(error) => return Err(error),
    };
    Ok(Connecting {
        socket,
        is_connected,
    })
}

fn interface_address() -> io::Result<Ipv4Addr> {
    // SAFETY: plain call.
    let socket =
        owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the type is plain data.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"eth0") {
        *to = *from as libc::c_char;
    }
    // SAFETY: `request` is what the call reads and fills.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFADDR as _, &mut request) })?;
    // SAFETY: the call has filled in an address of this family, which the socket's is.
    let address = unsafe {
        let address = std::ptr::from_ref(&request.ifr_ifru.ifru_addr);
        address.cast::<libc::sockaddr_in>().read_unaligned()
    };
    Ok(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use std::net::TcpListener;

    /// The socket's end in the server is made and given to `serve` before the socket is looked at.
    fn connected_to(serve: impl FnOnce(OwnedFd)) -> Socket {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connecting = Socket::connect(Target::Loopback4, port).unwrap();
        serve(listener.accept().unwrap().0.into());
        connecting.socket
    }

    /// The kernel may deliver what a closed socket has sent after the close.
    fn await_reset(socket: &Socket) {
        let mut poll = libc::pollfd {
            fd: socket.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // SAFETY: one element of that type.
        let count = unsafe { libc::poll(&mut poll, 1, 60_000) };
        assert_eq!((count, poll.revents & libc::POLLERR), (1, libc::POLLERR));
    }

    #[test]
    fn a_server_that_has_accepted_and_reset_is_no_absent_one() {
        let socket = connected_to(|server| Socket(server).reset());
        await_reset(&socket);
        assert!(matches!(socket.progress(), Ok(Progress::Reset)));
    }

    #[test]
    fn what_a_server_sent_before_its_reset_is_read() {
        let socket = connected_to(|server| {
            sys::write(server.as_raw_fd(), b"last words").unwrap();
            Socket(server).reset();
        });
        await_reset(&socket);
        assert!(matches!(socket.progress(), Ok(Progress::Reset)));
        let mut space = [0; 64];
        let read = |space: &mut [u8]| sys::read(socket.as_raw_fd(), space).unwrap();
        assert_eq!(read(&mut space), Some(10));
        assert_eq!(read(&mut space), Some(0));
    }

    #[test]
    fn a_server_that_has_accepted_and_closed_is_connected() {
        let socket = connected_to(drop);
        assert!(matches!(socket.progress(), Ok(Progress::Connected)));
    }
}
