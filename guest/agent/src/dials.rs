//! DIAL: connections of the host's clients to servers in the guest, each with a stream of its own. They do not block and
//! are served in the loop.
//!
//! ```text
//!   DATA ─► queue ─► socket ─► server      END ─► FIN behind the queue
//!   DATA ◄──────── socket ◄─ server        END ◄─ FIN                     both: RESULT
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsRawFd;

use crate::epoll::{Epoll, Source};
use crate::protocol::{channel, dialled_event, Code, Failure};
use crate::record::Writer;
use crate::stream::Role;
use crate::streams::Streams;
use crate::sys;
use socket::{Connecting, Progress, Socket, Target};

mod socket;

/// Each has a socket, a window of input and a queue of output.
const MAX_DIALS: usize = 512;
/// Input that servers have not read, of all connections.
const MAX_INPUT_BYTES: usize = 32 * 1024 * 1024;
/// A server is not read while so much of its output is queued.
const QUEUE_BYTES: usize = 128 * 1024;
const READ_BYTES: usize = 65_536;

/// How a connection ended, in the RESULT of DIAL.
mod ending {
    pub const BOTH_ENDED: u8 = 0;
    pub const RESET: u8 = 1;
}

struct Dial {
    port: u16,
    socket: Socket,
    is_connected: bool,
    /// Addresses that were not tried yet.
    targets: VecDeque<Target>,
    /// Input that the server has not read; the first `written` bytes are written.
    input: Vec<u8>,
    written: usize,
    received: u64,
    /// The host has sent END.
    is_ending: bool,
    /// FIN is sent, or nobody reads any more.
    has_ended: bool,
    /// A write has failed: the server is gone, but some of its output may be left.
    is_broken: bool,
    may_read: bool,
    has_read_all: bool,
}

#[derive(Default)]
pub struct Dials {
    /// By stream.
    dials: BTreeMap<u32, Dial>,
    /// Streams that may have something to do, each once.
    ready: VecDeque<u32>,
    input_bytes: usize,
    /// Allocated with the first connection.
    space: Vec<u8>,
}

impl Dials {
    pub fn start(
        &mut self,
        stream: u32,
        port: u16,
        streams: &mut Streams,
        epoll: &Epoll,
    ) -> Result<(), Failure> {
        if port == 0 {
            return Err(Failure::new(Code::Invalid, "there is no port 0"));
        }
        if self.dials.len() >= MAX_DIALS {
            let message = "the capsule has too many connections to its ports";
            return Err(Failure::new(Code::TooMany, message));
        }
        let mut targets = VecDeque::from(Target::ALL);
        let Some(Connecting {
            socket,
            is_connected,
        }) = Socket::connect_first(&mut targets, port)
        else {
            return Err(closed(port));
        };
        watch(&socket, stream, epoll)?;
        streams.set_role(stream, Role::Dial);
        self.space.resize(READ_BYTES, 0);
        let dial = Dial {
            port,
            socket,
            is_connected: false,
            targets,
            input: Vec::new(),
            written: 0,
            received: 0,
            is_ending: false,
            has_ended: false,
            is_broken: false,
            may_read: true,
            has_read_all: false,
        };
        self.dials.insert(stream, dial);
        if is_connected {
            self.note(stream, true);
        }
        Ok(())
    }

    /// The socket may be connected, readable or writable.
    pub fn note(&mut self, stream: u32, readable: bool) {
        if let Some(dial) = self.dials.get_mut(&stream) {
            dial.may_read |= readable;
            self.mark_ready(stream);
        }
    }

    /// There may be room for output, or new input.
    pub fn mark_ready(&mut self, stream: u32) {
        if self.dials.contains_key(&stream) && !self.ready.contains(&stream) {
            self.ready.push_back(stream);
        }
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub fn add_input(&mut self, stream: u32, bytes: &[u8]) -> Result<(), Failure> {
        let Some(dial) = self.dials.get_mut(&stream) else {
            return Ok(());
        };
        if dial.is_ending {
            return Err(Failure::new(Code::Invalid, "data after the end of data"));
        }
        if self.input_bytes + bytes.len() > MAX_INPUT_BYTES {
            let message = "the capsule's servers do not read what they are sent";
            return Err(Failure::new(Code::TooMany, message));
        }
        self.input_bytes += bytes.len();
        dial.received += bytes.len() as u64;
        dial.input.extend_from_slice(bytes);
        self.mark_ready(stream);
        Ok(())
    }

    /// END from the host. With another total bytes were lost on the way.
    pub fn end_input(&mut self, stream: u32, total: u64) -> Result<(), Failure> {
        let Some(dial) = self.dials.get_mut(&stream) else {
            return Ok(());
        };
        if dial.received != total {
            return Err(Failure::new(Code::Invalid, "another number of bytes came"));
        }
        dial.is_ending = true;
        self.mark_ready(stream);
        Ok(())
    }

    /// The stream is closed: the server gets a reset, unless both ways have ended.
    pub fn end(&mut self, stream: u32) {
        if let Some(dial) = self.dials.remove(&stream) {
            self.input_bytes -= dial.input.len() - dial.written;
            if !(dial.has_read_all && dial.has_ended) {
                dial.socket.reset();
            }
        }
    }

    pub fn clear(&mut self) {
        self.dials.clear();
        self.ready.clear();
        self.input_bytes = 0;
    }

    /// A bounded step of each connection that is ready.
    pub fn pump_ready(&mut self, streams: &mut Streams, epoll: &Epoll) {
        for stream in std::mem::take(&mut self.ready) {
            self.pump(stream, streams, epoll);
        }
    }

    fn pump(&mut self, stream: u32, streams: &mut Streams, epoll: &Epoll) {
        let Some(dial) = self.dials.get_mut(&stream) else {
            return;
        };
        if !dial.is_connected {
            match dial.advance_connecting(stream, epoll) {
                Ok(true) => streams.event(stream, &dialled_event()),
                Ok(false) => return,
                Err(failure) => {
                    streams.fail(stream, &failure);
                    self.end(stream);
                    return;
                }
            }
        }
        let written = dial.write();
        self.input_bytes -= written;
        streams.consumed(stream, written);
        let is_over = dial.read(&mut self.space, stream, streams);
        if let Some(ending) = is_over {
            streams.result(stream, Writer::new().u8(ending).finish());
            self.end(stream);
        } else if dial.may_read && has_room(stream, streams) {
            self.mark_ready(stream);
        }
    }
}

fn has_room(stream: u32, streams: &Streams) -> bool {
    let queued = streams.queued(stream);
    queued == 0 || queued < QUEUE_BYTES && !streams.is_congested()
}

fn watch(socket: &Socket, stream: u32, epoll: &Epoll) -> Result<(), Failure> {
    epoll
        .watch(socket.as_raw_fd(), Source::Dial(stream))
        .map_err(|error| Failure::new(Code::Internal, sys::reason(&error)))
}

/// No server listens on the port.
pub fn closed(port: u16) -> Failure {
    let message = format!("nothing listens on port {port}");
    Failure::new(Code::NotFound, message)
}

impl Dial {
    /// True: it is connected now.
    fn advance_connecting(&mut self, stream: u32, epoll: &Epoll) -> Result<bool, Failure> {
        loop {
            match self.socket.progress() {
                Ok(Progress::Connecting) => return Ok(false),
                Ok(progress) => {
                    self.is_connected = true;
                    self.is_broken = matches!(progress, Progress::Reset);
                    return Ok(true);
                }
                Err(_) => {}
            }
            let Some(next) = Socket::connect_first(&mut self.targets, self.port) else {
                return Err(closed(self.port));
            };
            watch(&next.socket, stream, epoll)?;
            self.socket = next.socket;
        }
    }

    /// How many bytes of input were written or dropped.
    fn write(&mut self) -> usize {
        let before = self.written;
        while self.written < self.input.len() {
            let rest = &self.input[self.written..];
            match sys::write(self.socket.as_raw_fd(), rest) {
                _ if self.is_broken => self.written = self.input.len(),
                Ok(Some(count)) => self.written += count,
                Ok(None) => break,
                Err(_) => self.is_broken = true,
            }
        }
        let written = self.written - before;
        if self.written == self.input.len() {
            self.input.clear();
            self.written = 0;
            if self.is_ending && !self.has_ended {
                self.has_ended = true;
                self.socket.end();
            }
        }
        written
    }

    /// Reads once. The ending, if both ways have ended or the connection is reset.
    fn read(&mut self, space: &mut [u8], stream: u32, streams: &mut Streams) -> Option<u8> {
        if self.may_read && !self.has_read_all && has_room(stream, streams) {
            match sys::read(self.socket.as_raw_fd(), space) {
                Ok(None) => self.may_read = false,
                Ok(Some(0)) => {
                    self.has_read_all = true;
                    self.may_read = false;
                    if self.is_broken {
                        return Some(ending::RESET);
                    }
                    streams.end_data(stream);
                }
                Ok(Some(count)) => streams.data(stream, channel::MAIN, &space[..count]),
                Err(_) => return Some(ending::RESET),
            }
        }
        match (self.has_read_all, self.has_ended, self.is_broken) {
            (true, _, true) => Some(ending::RESET),
            (true, true, false) => Some(ending::BOTH_ENDED),
            _ => None,
        }
    }
}
