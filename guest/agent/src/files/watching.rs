//! WATCH: tells the changes of a directory, by inotify, until it is gone.
//!
//! ```text
//!   a directory is made ─► watch it ─► scan it: what is in it by then is told ─► its events
//!   events lost ─► watch everything anew ─► overflow
//! ```

use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::files::watching::changes::{Changes, Kind};
use crate::files::watching::live::{Live, Verdict};
use crate::job::{Input, Job, Next, Progress};
use crate::protocol::{empty, event, Code, Failure};
use crate::record::Writer;

pub mod changes;
pub mod inotify;
mod live;
mod scan;
pub mod top;
pub mod tree;

/// Events, directories and entries of directories in one step.
const STEP_ITEMS: usize = 256;
const STEP_BYTES: usize = 32 * 1024;

pub struct Watching {
    path: PathBuf,
    is_recursive: bool,
    limit: usize,
    live: Option<Live>,
    has_begun: bool,
}

impl Watching {
    /// `limit`: most directories.
    pub fn new(path: PathBuf, is_recursive: bool, limit: u32) -> Watching {
        Watching {
            path,
            is_recursive,
            limit: limit as usize,
            live: None,
            has_begun: false,
        }
    }

    fn try_step(&mut self) -> Result<Progress, Failure> {
        let mut changes = Changes::default();
        let mut event = None;
        let mut next = Next::Continue;
        for _ in 0..STEP_ITEMS {
            if changes.bytes() >= STEP_BYTES {
                break;
            }
            let Some(live) = &mut self.live else {
                self.live = Some(self.begin()?);
                continue;
            };
            match live.advance(&mut changes)? {
                Verdict::Goes => {}
                Verdict::Complete => {
                    if !self.has_begun {
                        self.has_begun = true;
                        event = Some(watching_event(live.path()));
                    } else {
                        changes.overflow();
                    }
                }
                Verdict::Waits => {
                    next = Next::AwaitEvents;
                    break;
                }
                Verdict::Lost => match self.begin_again()? {
                    Some(live) => self.live = Some(live),
                    None => next = self.end(&mut changes),
                },
                Verdict::Gone => next = self.end(&mut changes),
            }
            if matches!(next, Next::Done { .. }) {
                break;
            }
        }
        if let Some(live) = &mut self.live {
            live.pause();
        }
        Ok(Progress {
            event,
            ..Progress::data(changes.into_data(), next)
        })
    }

    fn begin(&self) -> Result<Live, Failure> {
        Live::begin(&self.path, self.is_recursive, self.limit, !self.has_begun)
    }

    /// `None`: the directory is gone. The old watches end first, since there may be no room for both.
    fn begin_again(&mut self) -> Result<Option<Live>, Failure> {
        let identity = self.live.take().map(|live| live.identity());
        match self.begin() {
            Ok(live) => Ok(Some(live).filter(|live| Some(live.identity()) == identity)),
            Err(failure) if failure.code == Code::TooMany => Err(failure),
            Err(_) => Ok(None),
        }
    }

    fn end(&mut self, changes: &mut Changes) -> Next {
        changes.tell(Kind::Remove, self.path.as_os_str().as_encoded_bytes(), None);
        Next::Done {
            has_end: false,
            result: empty(),
        }
    }
}

/// The path, as those of the changes begin with it.
pub fn watching_event(path: &[u8]) -> Vec<u8> {
    Writer::new().u16(event::WATCHING).str(path).finish()
}

impl Job for Watching {
    fn step(&mut self, _: Vec<Input>) -> Progress {
        self.try_step()
            .unwrap_or_else(|failure| Progress::next(Next::Failed(failure)))
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.live.as_ref().map(Live::fd)
    }
}

#[cfg(test)]
mod tests;
