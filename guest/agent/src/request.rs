//! The host's requests, which open streams, and its messages within a stream. Everything here only reads bytes;
//! dispatcher.rs acts on the result.

use crate::attributes::Attributes;
use crate::files::request::FileRequest;
use crate::frames::{self, Frame};
use crate::protocol::{channel, event, exec_flag, exec_mode, Command, Position, Selector, Verb};
use crate::record::{Malformed, Reader};
use crate::wake::Wake;

/// EXEC, EXEC_STDIN or EXEC_AS.
pub struct Exec<'a> {
    pub command: Command<'a>,
    pub mode: u8,
    pub has_stdin: bool,
    /// The process lives on when its client goes.
    pub survives: bool,
}

pub enum Request<'a> {
    Probe,
    Wake(Wake),
    Freeze,
    Thaw,
    Halt {
        /// How long programs have to end after SIGTERM.
        term_ms: u32,
    },
    Exec(Exec<'a>),
    Input(Selector),
    Attach(Selector),
    AttachFrom {
        selector: Selector,
        position: Position,
    },
    Logs {
        selector: Selector,
        /// Its stream; 0: both.
        channel: u8,
        tail: Option<u64>,
    },
    Await(Selector),
    Signal {
        selector: Selector,
        signal: u8,
    },
    Pty {
        command: Command<'a>,
        cols: u16,
        rows: u16,
    },
    Connect {
        tag: &'a [u8],
    },
    Processes {
        /// Each with its user, start and kind.
        is_long: bool,
    },
    Usage,
    Grow {
        /// The size that the root's disk was given.
        disk_bytes: u64,
    },
    Dial {
        port: u16,
    },
    Ports,
    File(FileRequest<'a>),
}

/// FREEZE too: the host repeats it when a guest did not freeze at the first attempt. A disk is grown before programs run.
pub fn is_served_asleep(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::Probe | Verb::Wake | Verb::Freeze | Verb::Thaw | Verb::Grow
    )
}

impl<'a> Request<'a> {
    /// `fields` follow the verb's number.
    pub fn read(verb: Verb, mut fields: Reader<'a>) -> Result<Request<'a>, Malformed> {
        let request = match verb {
            Verb::Probe => Request::Probe,
            Verb::Wake => Request::Wake(Wake::read(&mut fields)?),
            Verb::Freeze => Request::Freeze,
            Verb::Thaw => Request::Thaw,
            Verb::Halt => Request::Halt {
                term_ms: fields.u32()?,
            },
            Verb::Exec => Request::Exec(Exec::read(&mut fields, 0)?),
            Verb::ExecStdin => Request::Exec(Exec::read(&mut fields, exec_flag::STDIN)?),
            Verb::ExecAs => Request::Exec(Exec::read_as(&mut fields)?),
            Verb::Input => Request::Input(Selector::read(&mut fields)?),
            Verb::Pty => Request::Pty {
                command: Command::read(&mut fields)?,
                cols: fields.u16()?,
                rows: fields.u16()?,
            },
            Verb::Attach => Request::Attach(Selector::read(&mut fields)?),
            Verb::Await => Request::Await(Selector::read(&mut fields)?),
            Verb::Signal => Request::Signal {
                selector: Selector::read(&mut fields)?,
                signal: fields.u8()?,
            },
            Verb::Connect => Request::Connect { tag: fields.str()? },
            Verb::AttachFrom => Request::AttachFrom {
                selector: Selector::read(&mut fields)?,
                position: Position::read(&mut fields)?,
            },
            Verb::Logs => Request::read_logs(&mut fields)?,
            Verb::Processes => Request::Processes { is_long: false },
            Verb::ListProcesses => Request::Processes { is_long: true },
            Verb::Usage => Request::Usage,
            Verb::Grow => Request::Grow {
                disk_bytes: fields.u64()?,
            },
            Verb::Dial => Request::Dial {
                port: fields.u16()?,
            },
            Verb::Ports => Request::Ports,
            Verb::Read
            | Verb::Write
            | Verb::List
            | Verb::Mkdir
            | Verb::Remove
            | Verb::Stat
            | Verb::Move
            | Verb::Chmod
            | Verb::Chown
            | Verb::WriteAs
            | Verb::ReadRange
            | Verb::Archive
            | Verb::Extract
            | Verb::Watch => Request::File(FileRequest::read(verb, &mut fields)?),
        };
        fields.finish()?;
        Ok(request)
    }

    fn read_logs(fields: &mut Reader<'a>) -> Result<Request<'a>, Malformed> {
        let selector = Selector::read(fields)?;
        let channel = fields.u8()?;
        let tail = Some(fields.u64()?).filter(|&lines| lines != u64::MAX);
        if channel > channel::STDERR {
            return Err(Malformed);
        }
        Ok(Request::Logs {
            selector,
            channel,
            tail,
        })
    }
}

impl<'a> Exec<'a> {
    fn read(fields: &mut Reader<'a>, flags: u8) -> Result<Exec<'a>, Malformed> {
        if flags & !(exec_flag::STDIN | exec_flag::SURVIVE) != 0 {
            return Err(Malformed);
        }
        let command = Command::read(fields)?;
        let mode = fields.u8()?;
        if mode > exec_mode::OUTCOME {
            return Err(Malformed);
        }
        Ok(Exec {
            command,
            mode,
            has_stdin: flags & exec_flag::STDIN != 0,
            survives: flags & exec_flag::SURVIVE != 0,
        })
    }

    /// The user stands before the command, which names none itself. An empty one is the agent's own.
    pub fn read_as(fields: &mut Reader<'a>) -> Result<Exec<'a>, Malformed> {
        let (flags, user) = (fields.u8()?, fields.str()?);
        let mut exec = Exec::read(fields, flags)?;
        if exec.command.user.is_some() {
            return Err(Malformed);
        }
        exec.command.user = Some(user).filter(|user| !user.is_empty());
        Ok(exec)
    }
}

/// A message within an open stream.
pub enum Message<'a> {
    Data(&'a [u8]),
    End { total: u64 },
    Window { credit: u32 },
    Cancel,
    Stop,
    Resize { cols: u16, rows: u16 },
    Taken { total: u64 },
    Target { path: &'a [u8] },
    Attributes(Attributes),
}

impl<'a> Message<'a> {
    pub fn read(frame: &Frame<'a>) -> Result<Message<'a>, Malformed> {
        if frame.kind == frames::DATA {
            return Ok(Message::Data(frame.payload));
        }
        let mut fields = Reader::new(frame.payload);
        let message = match frame.kind {
            frames::END => Message::End {
                total: fields.u64()?,
            },
            frames::WINDOW => Message::Window {
                credit: fields.u32()?,
            },
            frames::CANCEL => Message::Cancel,
            frames::EVENT => match fields.u16()? {
                event::STOP => Message::Stop,
                event::RESIZE => Message::Resize {
                    cols: fields.u16()?,
                    rows: fields.u16()?,
                },
                event::TAKEN => Message::Taken {
                    total: fields.u64()?,
                },
                event::TARGET => Message::Target {
                    path: fields.str()?,
                },
                event::ATTRIBUTES => Message::Attributes(Attributes::read(&mut fields)?),
                _ => return Err(Malformed),
            },
            _ => return Err(Malformed),
        };
        fields.finish()?;
        Ok(message)
    }
}
