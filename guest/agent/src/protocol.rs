//! The constants and records of docs/AGENT-PROTOCOL.md: verbs, numbers of events, limits, failures, and records of
//! several fields.

use crate::record::{Malformed, Reader, Writer};
pub use handshake::{read_hello, Hello, Welcome};
pub use kept::{kept_event, position_event, Position};

mod handshake;
mod kept;

/// The versions of the protocol that a host or an agent speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub min: u16,
    pub max: u16,
}

impl Versions {
    /// The version of a connection whose HELLO has version `hello`. Out of range, it is the nearest one, which the host
    /// accepts or refuses.
    pub fn welcome(self, hello: u16) -> u16 {
        hello.clamp(self.min, self.max)
    }
}

pub const VERSIONS: Versions = Versions { min: 1, max: 1 };
pub const MAGIC: &[u8] = b"capsule-agent";
pub const NONCE_BYTES: usize = 16;
pub const AGENT: &str = concat!("capsule-agent/", env!("CARGO_PKG_VERSION"));

/// Declares the verbs, and `ALL` of them, from one list.
macro_rules! verbs {
    ($($name:ident = $number:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Verb {
            $($name = $number),*
        }

        impl Verb {
            /// In the order of their numbers; the WELCOME lists them.
            pub const ALL: &'static [Verb] = &[$(Verb::$name),*];
        }
    };
}

verbs! {
    Probe = 1,
    Wake = 2,
    Freeze = 3,
    Thaw = 4,
    Exec = 16,
    Attach = 17,
    Signal = 18,
    Processes = 19,
    Pty = 20,
    Connect = 21,
    Await = 22,
    ExecStdin = 23,
    Input = 24,
    ExecAs = 25,
    AttachFrom = 26,
    Logs = 27,
    ListProcesses = 28,
    Read = 32,
    Write = 33,
    List = 34,
    Mkdir = 35,
    Remove = 36,
    Stat = 37,
    Move = 38,
    Chmod = 39,
    Chown = 40,
    WriteAs = 41,
    ReadRange = 42,
    Archive = 43,
    Extract = 44,
    Watch = 45,
    Halt = 46,
    Usage = 47,
    Grow = 48,
    Dial = 49,
    Ports = 50,
}

impl Verb {
    pub fn number(self) -> u16 {
        self as u16
    }

    pub fn from_number(number: u16) -> Option<Verb> {
        let mut known = Verb::ALL.iter().copied();
        known.find(|verb| verb.number() == number)
    }
}

pub mod event {
    pub const STARTED: u16 = 1;
    pub const POSITION: u16 = 2;
    pub const KEPT: u16 = 3;
    pub const STOP: u16 = 16;
    pub const RESIZE: u16 = 17;
    pub const TAKEN: u16 = 18;
    pub const OPENED: u16 = 32;
    pub const TARGET: u16 = 33;
    pub const ATTRIBUTES: u16 = 34;
    pub const WATCHING: u16 = 35;
    pub const DIALLED: u16 = 36;
}

pub mod notice {
    pub const HALTING: u16 = 1;
}

/// The mode of an EXEC; 0 is a foreground command.
pub mod exec_mode {
    pub const BACKGROUND: u8 = 1;
    /// A foreground command without STARTED.
    pub const OUTCOME: u8 = 2;
}

/// Flags of EXEC_AS.
pub mod exec_flag {
    /// Standard input is a pipe.
    pub const STDIN: u8 = 1;
    /// The process lives on when its client goes.
    pub const SURVIVE: u8 = 2;
}

/// The flags of DATA: a stream's channel.
pub mod channel {
    pub const MAIN: u8 = 0;
    pub const STDOUT: u8 = 1;
    pub const STDERR: u8 = 2;
}

pub const WINDOW_BYTES: u32 = 262_144;
/// The limit to which the host can widen it.
pub const MAX_WINDOW_BYTES: u32 = 1024 * 1024;
pub const MAX_STREAMS: usize = 1_024;
pub const MAX_REQUEST_BYTES: usize = 2 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    NotFound,
    Invalid,
    IsDirectory,
    NotDirectory,
    TooLarge,
    NoSpace,
    CommandNotFound,
    Conflict,
    TooMany,
    SlowReader,
    Asleep,
    Internal,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Code::NotFound => "not_found",
            Code::Invalid => "invalid",
            Code::IsDirectory => "is_directory",
            Code::NotDirectory => "not_directory",
            Code::TooLarge => "too_large",
            Code::NoSpace => "no_space",
            Code::CommandNotFound => "command_not_found",
            Code::Conflict => "conflict",
            Code::TooMany => "too_many",
            Code::SlowReader => "slow_reader",
            Code::Asleep => "asleep",
            Code::Internal => "internal",
        }
    }
}

/// Why a verb was not done; the message is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

const MAX_MESSAGE_CHARS: usize = 400;

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        let mut message: String = message.into();
        if let Some((at, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
            message.truncate(at);
            message.push('…');
        }
        Failure { code, message }
    }

    pub fn record(&self) -> Vec<u8> {
        Writer::new()
            .str(self.code.as_str())
            .str(&self.message)
            .finish()
    }
}

/// The command record of EXEC, EXEC_STDIN, EXEC_AS and PTY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    pub cmd: &'a [u8],
    pub args: Vec<&'a [u8]>,
    pub envs: Vec<(&'a [u8], &'a [u8])>,
    pub cwd: Option<&'a [u8]>,
    pub user: Option<&'a [u8]>,
    pub tag: Option<&'a [u8]>,
}

impl<'a> Command<'a> {
    pub fn read(fields: &mut Reader<'a>) -> Result<Command<'a>, Malformed> {
        Ok(Command {
            cmd: fields.str()?,
            args: fields.list()?,
            envs: fields.map()?,
            cwd: fields.optional()?,
            user: fields.optional()?,
            tag: fields.optional()?,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    Pid(u32),
    Tag(Vec<u8>),
}

impl Selector {
    pub fn read(fields: &mut Reader) -> Result<Selector, Malformed> {
        match fields.u8()? {
            0 => fields.u32().map(Selector::Pid),
            1 => Ok(Selector::Tag(fields.str()?.to_vec())),
            _ => Err(Malformed),
        }
    }

    pub fn not_found(&self) -> Failure {
        let what = match self {
            Selector::Pid(pid) => format!("no process {pid}"),
            Selector::Tag(tag) => format!("no process with tag {}", String::from_utf8_lossy(tag)),
        };
        Failure::new(Code::NotFound, what)
    }
}

/// How a process ended, from `waitpid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    /// 0: not ended by a signal.
    pub signal: u8,
    pub duration_us: u64,
}

impl Exit {
    pub fn record(&self) -> Vec<u8> {
        Writer::new()
            .i32(self.code)
            .u8(self.signal)
            .u64(self.duration_us)
            .finish()
    }
}

pub fn empty() -> Vec<u8> {
    Writer::new().finish()
}

/// The result of WAKE: empty, unless there are things that could not be done.
pub fn woken(problems: &[String]) -> Vec<u8> {
    if problems.is_empty() {
        return empty();
    }
    Writer::new().list(problems).finish()
}

pub fn started(pid: u32, tag: &str) -> Writer {
    Writer::new().u32(pid).str(tag)
}

pub fn started_event(pid: u32, tag: &str) -> Vec<u8> {
    Writer::new().u16(event::STARTED).u32(pid).str(tag).finish()
}

/// The server has accepted a DIAL.
pub fn dialled_event() -> Vec<u8> {
    Writer::new().u16(event::DIALLED).finish()
}
