//! What runs: one session for every command started through the API, from its start until its last word is said.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::protocol::{Code, Exit, Failure, Selector};
use crate::sys;
use crate::terminal::Terminal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Foreground,
    Background,
    Terminal,
}

/// One of a session's pipes, or the master side of its terminal.
pub struct Output {
    pub fd: Option<OwnedFd>,
    /// The writing end of a pipe, until the leader has ended.
    pub held: Option<OwnedFd>,
    pub channel: u8,
    /// There may be something to read.
    pub is_readable: bool,
    /// After the leader's end and the drain: bytes that were already there and still belong to the output.
    pub owed: Option<usize>,
}

impl Output {
    pub fn pipe((reading, writing): (OwnedFd, OwnedFd), channel: u8) -> Output {
        Output::new(reading, Some(writing), channel)
    }

    pub fn terminal(master: OwnedFd, channel: u8) -> Output {
        Output::new(master, None, channel)
    }

    fn new(fd: OwnedFd, held: Option<OwnedFd>, channel: u8) -> Output {
        Output {
            fd: Some(fd),
            held,
            channel,
            is_readable: false,
            owed: None,
        }
    }

    pub fn raw(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn is_over(&self) -> bool {
        self.fd.is_none() || self.owed == Some(0)
    }
}

pub struct Session {
    pub kind: Kind,
    pub tag: String,
    pub pid: libc::pid_t,
    pub cgroup: Option<u32>,
    pub started_ns: u64,
    pub outputs: Vec<Output>,
    /// Streams that hear its output and its end.
    pub clients: Vec<u32>,
    /// Streams that hear its end only.
    pub waiters: Vec<u32>,
    /// What `waitpid` said.
    pub exit: Option<Exit>,
    /// Attempts to kill its tree that are under way; until they are over, so is nothing else.
    pub kills: u32,
    /// Only of a session with a terminal.
    pub terminal: Option<Terminal>,
    /// Its last word is said; a terminal and a background process are kept for late clients.
    pub is_over: bool,
    /// And sent to a client, with all that came before it.
    pub is_told: bool,
}

impl Session {
    pub fn is_alive(&self) -> bool {
        self.exit.is_none()
    }
}

/// As many as may run.
const MAX_SESSIONS: usize = 1_024;

#[derive(Default)]
pub struct Sessions {
    /// In boxes: a node of the tree has room for eleven, and the first session has one made.
    table: BTreeMap<u32, Box<Session>>,
    /// Leaders that `waitpid` has not reported.
    by_pid: BTreeMap<libc::pid_t, u32>,
    last: u32,
    /// Of the tags that nobody chose.
    last_tag: u32,
    /// Sessions with something to read and somewhere to put it.
    again: VecDeque<u32>,
}

impl Sessions {
    pub fn get(&self, key: u32) -> Option<&Session> {
        self.table.get(&key).map(Box::as_ref)
    }

    pub fn get_mut(&mut self, key: u32) -> Option<&mut Session> {
        self.table.get_mut(&key).map(Box::as_mut)
    }

    /// Those that are only kept take nobody's place.
    pub fn is_full(&self) -> bool {
        let live = || self.table.values().filter(|session| !session.is_over);
        self.table.len() >= MAX_SESSIONS && live().count() >= MAX_SESSIONS
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Session)> {
        self.table
            .iter()
            .map(|(&key, session)| (key, session.as_ref()))
    }

    /// A key that no session has.
    pub fn new_key(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.table.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    pub fn insert(&mut self, key: u32, session: Session) {
        self.by_pid.insert(session.pid, key);
        self.table.insert(key, Box::new(session));
    }

    pub fn remove(&mut self, key: u32) -> Option<Session> {
        self.table.remove(&key).map(|session| *session)
    }

    /// The session whose leader has been reaped just now.
    pub fn leader_reaped(&mut self, pid: libc::pid_t) -> Option<u32> {
        self.by_pid.remove(&pid)
    }

    /// By leader's pid or tag, while the leader lives.
    pub fn select(&self, selector: &Selector) -> Option<u32> {
        match selector {
            Selector::Pid(pid) => self.by_pid.get(&i32::try_from(*pid).ok()?).copied(),
            Selector::Tag(tag) => self.tagged(tag).filter(|&key| self.table[&key].is_alive()),
        }
    }

    /// A background process by leader's pid or tag, while it lives and as long as it is kept.
    pub fn background(&self, selector: &Selector) -> Option<u32> {
        let found = match selector {
            Selector::Tag(tag) => self.tagged(tag),
            Selector::Pid(pid) => self.select(selector).or_else(|| {
                let is_it = |session: &Session| u32::try_from(session.pid) == Ok(*pid);
                let ended = self.iter().filter(|(_, session)| is_it(session));
                ended.last().map(|(key, _)| key)
            }),
        };
        found.filter(|key| self.table[key].kind == Kind::Background)
    }

    /// Also one that is only kept.
    pub fn tagged(&self, tag: &[u8]) -> Option<u32> {
        let mut found = self
            .iter()
            .filter(|(_, session)| session.tag.as_bytes() == tag);
        // A live one first: an ended session's tag may be used again.
        let newest_first = |(key, session): &(u32, &Session)| (session.is_alive(), *key);
        let first = found.next()?;
        Some(
            found
                .fold(first, |a, b| {
                    if newest_first(&b) > newest_first(&a) {
                        b
                    } else {
                        a
                    }
                })
                .0,
        )
    }

    /// The one asked for, unless a live session has it; or a new one.
    pub fn claim_tag(&mut self, asked: Option<String>, prefix: &str) -> Result<String, Failure> {
        if let Some(tag) = asked {
            if self
                .select(&Selector::Tag(tag.clone().into_bytes()))
                .is_some()
            {
                let message = format!("a live process has the tag {tag}");
                return Err(Failure::new(Code::Conflict, message));
            }
            return Ok(tag);
        }
        loop {
            // All numbers, one after the other. Drawing them would be a system call for each command.
            self.last_tag = self.last_tag.wrapping_add(0x9e37_79b9);
            let tag = [prefix, "-", &sys::hex(&self.last_tag.to_be_bytes())].concat();
            if self.tagged(tag.as_bytes()).is_none() {
                return Ok(tag);
            }
        }
    }

    /// Clones of one VM go on from another tag each. To be called when randomness is this VM's own.
    pub fn scatter_tags(&mut self) {
        self.last_tag = u32::from_ne_bytes(sys::random());
    }

    /// Of the leaders that live.
    pub fn tags(&self) -> BTreeMap<libc::pid_t, String> {
        let tag = |(&pid, key)| Some((pid, self.table.get(key)?.tag.clone()));
        self.by_pid.iter().filter_map(tag).collect()
    }

    /// To be pumped in the next turn.
    pub fn again(&mut self, key: u32) {
        if !self.again.contains(&key) {
            self.again.push_back(key);
        }
    }

    pub fn has_again(&self) -> bool {
        !self.again.is_empty()
    }

    pub fn take_again(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn tags_that_nobody_chose_are_never_alike_nor_the_same_in_clones() {
        let drawn = |sessions: &mut Sessions| -> BTreeSet<String> {
            let tags = (0..1_000).map(|_| sessions.claim_tag(None, "proc"));
            tags.collect::<Result<_, _>>().unwrap()
        };
        let (mut one, mut clone) = (Sessions::default(), Sessions::default());
        assert_eq!(drawn(&mut one).len(), 1_000);
        assert_eq!(drawn(&mut clone).len(), 1_000);
        one.scatter_tags();
        clone.scatter_tags();
        assert_ne!(drawn(&mut one), drawn(&mut clone));
    }
}
