//! All sessions: by key, by tag and by their leader's pid; which have output to read, and which ended ones are kept for
//! late clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::command::check_tag;
use crate::epoll::Epoll;
use crate::kept::Kept;
use crate::protocol::{Code, Failure, Selector};
use crate::session::{Kind, Session};
use crate::streams::Streams;
use crate::tags::TagSequence;

mod clients;
mod logs;

pub use logs::Logs;

const MAX_LIVE: usize = 1_024;

/// The part of a listing that only the agent knows, for a process that the API started.
pub struct LeaderLabel {
    pub tag: String,
    pub kind: Kind,
    /// By the monotonic clock.
    pub started_ns: u64,
}

#[derive(Default)]
pub struct Sessions {
    /// Boxed: a node of the tree has room for eleven values, and the first session allocates a whole node.
    table: BTreeMap<u32, Box<Session>>,
    /// Leaders that `waitpid` has not reported.
    by_pid: BTreeMap<libc::pid_t, u32>,
    last_key: u32,
    tags: TagSequence,
    /// Sessions with output to read and room for it.
    ready: VecDeque<u32>,
    kept_terminals: Kept,
    kept_background: Kept,
    logs: Logs,
}

impl Sessions {
    pub fn new(logs: Logs) -> Sessions {
        Sessions {
            logs,
            ..Sessions::default()
        }
    }

    pub fn get(&self, key: u32) -> Option<&Session> {
        self.table.get(&key).map(Box::as_ref)
    }

    pub fn get_mut(&mut self, key: u32) -> Option<&mut Session> {
        self.table.get_mut(&key).map(Box::as_mut)
    }

    /// The sessions whose leader has not been reaped.
    pub fn living(&self) -> impl Iterator<Item = &Session> {
        self.table
            .values()
            .map(Box::as_ref)
            .filter(|it| it.is_alive())
    }

    pub fn keys(&self) -> Vec<u32> {
        self.table.keys().copied().collect()
    }

    /// Sessions that are kept do not count.
    pub fn check_room(&self) -> Result<(), Failure> {
        let live = || self.table.values().filter(|session| !session.is_over());
        if self.table.len() >= MAX_LIVE && live().count() >= MAX_LIVE {
            let message = "the capsule has too many commands running";
            return Err(Failure::new(Code::TooMany, message));
        }
        Ok(())
    }

    /// Adds the session, watches its outputs, and returns its new key.
    pub fn insert(&mut self, session: Session, epoll: &Epoll) -> (u32, &mut Session) {
        let key = self.new_key();
        session.watch_outputs(key, epoll);
        self.by_pid.insert(session.leader().pid, key);
        (key, self.table.entry(key).or_insert(Box::new(session)))
    }

    fn new_key(&mut self) -> u32 {
        loop {
            self.last_key = self.last_key.wrapping_add(1);
            if !self.table.contains_key(&self.last_key) {
                return self.last_key;
            }
        }
    }

    /// The session whose leader has been reaped just now.
    pub fn leader_reaped(&mut self, pid: libc::pid_t) -> Option<u32> {
        self.by_pid.remove(&pid)
    }

    /// The pids of all living leaders.
    pub fn leaders(&self) -> BTreeSet<libc::pid_t> {
        self.by_pid.keys().copied().collect()
    }

    // ---- Search

    /// By leader's pid or tag, while the leader lives.
    pub fn select(&self, selector: &Selector) -> Option<u32> {
        match selector {
            Selector::Pid(pid) => self.by_pid.get(&i32::try_from(*pid).ok()?).copied(),
            Selector::Tag(tag) => self.tagged(tag).filter(|&key| self.table[&key].is_alive()),
        }
    }

    /// A background process by leader's pid or tag, while it lives and as long as it is kept.
    pub fn select_background(&self, selector: &Selector) -> Option<u32> {
        let found = match selector {
            Selector::Tag(tag) => self.tagged(tag),
            Selector::Pid(pid) => self.select(selector).or_else(|| {
                let ended = self.iter().filter(|(_, session)| session.pid() == *pid);
                ended.last().map(|(key, _)| key)
            }),
        };
        found.filter(|key| self.table[key].is_background())
    }

    /// By tag, also when it is only kept.
    pub fn tagged(&self, tag: &[u8]) -> Option<u32> {
        let has_tag = |(_, session): &(u32, &Session)| session.tag().as_bytes() == tag;
        let found = self.iter().filter(has_tag);
        // A live one first: an ended session's tag may be used again.
        let newest = found.max_by_key(|(key, session)| (session.is_alive(), *key));
        newest.map(|(key, _)| key)
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &Session)> {
        self.table
            .iter()
            .map(|(&key, session)| (key, session.as_ref()))
    }

    // ---- Tags

    /// The tag asked for, unless a live session has it; or else a new one.
    pub fn claim_tag(&mut self, asked: Option<&[u8]>, prefix: &str) -> Result<String, Failure> {
        if let Some(tag) = asked {
            let tag = check_tag(tag)?;
            let selector = Selector::Tag(tag.as_bytes().to_vec());
            if self.select(&selector).is_some() {
                let message = format!("a live process has the tag {tag}");
                return Err(Failure::new(Code::Conflict, message));
            }
            return Ok(tag);
        }
        loop {
            let tag = self.tags.next(prefix);
            if self.tagged(tag.as_bytes()).is_none() {
                return Ok(tag);
            }
        }
    }

    /// See `TagSequence::scatter`.
    pub fn scatter_tags(&mut self) {
        self.tags.scatter();
    }

    /// Labels of all living leaders.
    pub fn leader_labels(&self) -> BTreeMap<libc::pid_t, LeaderLabel> {
        let label = |(&pid, key)| {
            let session = self.table.get(key)?;
            let label = LeaderLabel {
                tag: session.tag().to_string(),
                kind: session.kind(),
                started_ns: session.leader().started_ns,
            };
            Some((pid, label))
        };
        self.by_pid.iter().filter_map(label).collect()
    }

    // ---- Sessions to pump

    pub fn note_readable(&mut self, key: u32, index: u8, is_readable: bool) {
        if let Some(session) = self.get_mut(key) {
            session.note_readable(index, is_readable);
            self.mark_ready(key);
        }
    }

    pub fn mark_ready(&mut self, key: u32) {
        if !self.ready.contains(&key) {
            self.ready.push_back(key);
        }
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub fn take_ready(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.ready)
    }

    // ---- Ended sessions

    /// Removes an ended foreground session, and keeps any other; one that is kept may be removed for it. True: kept.
    pub fn retire(&mut self, key: u32, streams: &mut Streams) -> bool {
        if self.get(key).is_some_and(|it| it.log().is_some()) {
            self.keep_log(key, streams);
        }
        let table = &self.table;
        let is_delivered = |key| table.get(&key).is_none_or(|it| it.is_delivered());
        let removed = match table.get(&key) {
            Some(session) if session.has_terminal() => self.kept_terminals.add(key, is_delivered),
            Some(session) if session.is_background() => self.kept_background.add(key, is_delivered),
            Some(_) | None => Some(key),
        };
        if let Some(removed) = removed.filter(|&it| !self.logs.is_kept(it)) {
            self.remove(removed, streams);
        }
        self.get(key).is_some()
    }

    /// Kept long enough. The key may belong to another session by now.
    pub fn forget(&mut self, key: u32, streams: &mut Streams) {
        if self.get(key).is_some_and(Session::is_over) {
            self.kept_terminals.remove(key);
            self.kept_background.remove(key);
            self.remove(key, streams);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reap;
    use crate::session::{Kind, Leader};

    /// A background process without outputs or a cgroup.
    fn add(sessions: &mut Sessions, pid: i32) -> u32 {
        let leader = Leader {
            pid,
            cgroup: None,
            started_ns: 0,
        };
        let session = Session::new(Kind::Background, "worker".into(), leader, Vec::new(), None);
        sessions.insert(session, &Epoll::new().unwrap()).0
    }

    #[test]
    fn a_tag_may_be_claimed_again_once_its_session_has_ended() {
        let (mut sessions, mut streams) = (Sessions::default(), Streams::default());
        let ended = add(&mut sessions, 7);
        let claim = |sessions: &mut Sessions| sessions.claim_tag(Some(b"worker"), "proc");
        assert_eq!(claim(&mut sessions).unwrap_err().code, Code::Conflict);
        let session = sessions.get_mut(ended).unwrap();
        session.leader_ended(reap::exit(0, 0));
        assert!(session.settle(&mut streams));
        sessions.leader_reaped(7);
        assert!(sessions.retire(ended, &mut streams));
        assert_eq!(claim(&mut sessions).as_deref(), Ok("worker"));
        assert_eq!(sessions.tagged(b"worker"), Some(ended));

        let live = add(&mut sessions, 8);
        assert_eq!(sessions.tagged(b"worker"), Some(live), "the live one first");
        assert_eq!(sessions.select(&Selector::Pid(7)), None);
        assert_eq!(sessions.select_background(&Selector::Pid(7)), Some(ended));
        sessions.forget(ended, &mut streams);
        assert_eq!(sessions.select_background(&Selector::Pid(7)), None);
        sessions.forget(live, &mut streams);
        assert!(sessions.get(live).is_some(), "it is not over");
    }
}
