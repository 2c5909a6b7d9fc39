//! What the host asks for: the requests that open streams, and the messages within a stream. Everything here only reads
//! bytes; dispatcher.rs acts on the result.

use crate::files::request::FileRequest;
use crate::frames::{self, Frame};
use crate::protocol::{event, exec_mode, verb, Command, Selector};
use crate::record::{Malformed, Reader};
use crate::wake::Wake;

pub enum Request<'a> {
    Probe,
    Wake(Wake),
    Freeze,
    Thaw,
    Exec {
        command: Command<'a>,
        mode: u8,
    },
    Attach(Selector),
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
    Processes,
    File(FileRequest<'a>),
    /// A verb that this agent does not know.
    Unknown(u16),
}

/// FREEZE too: the host repeats it when a guest did not freeze at the first attempt.
pub fn is_served_asleep(number: u16) -> bool {
    matches!(number, verb::PROBE | verb::WAKE | verb::FREEZE | verb::THAW)
}

impl<'a> Request<'a> {
    /// `fields` follow the verb's number.
    pub fn read(number: u16, mut fields: Reader<'a>) -> Result<Request<'a>, Malformed> {
        let request = match number {
            verb::PROBE => Request::Probe,
            verb::WAKE => Request::Wake(Wake::read(&mut fields)?),
            verb::FREEZE => Request::Freeze,
            verb::THAW => Request::Thaw,
            verb::EXEC | verb::PTY => Request::read_command(number, &mut fields)?,
            verb::ATTACH => Request::Attach(Selector::read(&mut fields)?),
            verb::AWAIT => Request::Await(Selector::read(&mut fields)?),
            verb::SIGNAL => Request::Signal {
                selector: Selector::read(&mut fields)?,
                signal: fields.u8()?,
            },
            verb::CONNECT => Request::Connect { tag: fields.str()? },
            verb::PROCESSES => Request::Processes,
            verb::READ..=verb::REMOVE => Request::File(FileRequest::read(number, &mut fields)?),
            _ => return Ok(Request::Unknown(number)),
        };
        fields.finish()?;
        Ok(request)
    }

    fn read_command(number: u16, fields: &mut Reader<'a>) -> Result<Request<'a>, Malformed> {
        let command = Command::read(fields)?;
        if number == verb::PTY {
            let (cols, rows) = (fields.u16()?, fields.u16()?);
            return Ok(Request::Pty {
                command,
                cols,
                rows,
            });
        }
        let mode = fields.u8()?;
        if mode > exec_mode::OUTCOME {
            return Err(Malformed);
        }
        Ok(Request::Exec { command, mode })
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
                _ => return Err(Malformed),
            },
            _ => return Err(Malformed),
        };
        fields.finish()?;
        Ok(message)
    }
}
