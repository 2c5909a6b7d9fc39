//! The logs of all sessions: how much memory they may take together, and which ended sessions keep theirs.

use std::collections::VecDeque;

use super::Sessions;
use crate::kept::MAX_KEPT;
use crate::protocol::{kept_event, Code, Failure, Position, Selector};
use crate::session::Session;
use crate::streams::Streams;

pub struct Logs {
    budget_bytes: usize,
    /// The memory that they take.
    bytes: usize,
    /// Ended sessions that still have their logs, in the order of their ends.
    ended: VecDeque<u32>,
}

impl Default for Logs {
    fn default() -> Logs {
        Logs {
            budget_bytes: usize::MAX,
            bytes: 0,
            ended: VecDeque::new(),
        }
    }
}

impl Logs {
    pub fn within(budget_bytes: usize) -> Logs {
        Logs {
            budget_bytes,
            ..Logs::default()
        }
    }

    pub fn is_kept(&self, key: u32) -> bool {
        self.ended.contains(&key)
    }
}

impl Sessions {
    /// The log of this session had that size before. Where all take more than they may, drops those of sessions that ended
    /// first, and then the oldest output of the largest.
    pub fn log_changed(&mut self, key: u32, before: usize, streams: &mut Streams) {
        let size = self.get(key).map_or(0, Session::log_size);
        self.logs.bytes = self.logs.bytes + size - before;
        while self.logs.bytes > self.logs.budget_bytes {
            if let Some(first) = self.logs.ended.front().copied() {
                self.drop_log(first, streams);
                continue;
            }
            let sessions = self.table.values_mut();
            let Some(largest) = sessions.max_by_key(|it| it.log_size()) else {
                return;
            };
            let before = largest.log_size();
            let has_more = largest.drop_oldest_output();
            self.logs.bytes -= before - largest.log_size();
            if !has_more {
                return;
            }
        }
    }

    /// A session with a log has ended. Beyond the limit, the first of them loses its log.
    pub(super) fn keep_log(&mut self, key: u32, streams: &mut Streams) {
        self.logs.ended.push_back(key);
        if self.logs.ended.len() > MAX_KEPT {
            if let Some(&first) = self.logs.ended.front() {
                self.drop_log(first, streams);
            }
        }
    }

    /// Removes the session too if its exit is not kept any longer.
    fn drop_log(&mut self, key: u32, streams: &mut Streams) {
        self.logs.ended.retain(|&ended| ended != key);
        if let Some(session) = self.table.get_mut(&key) {
            self.logs.bytes -= session.log_size();
            session.drop_log(streams);
        }
        if !self.kept_background.contains(key) {
            self.table.remove(&key);
        }
    }

    /// Removes the session with its log.
    pub fn remove(&mut self, key: u32, streams: &mut Streams) {
        self.logs.ended.retain(|&ended| ended != key);
        if let Some(mut session) = self.table.remove(&key) {
            self.logs.bytes -= session.log_size();
            session.drop_log(streams);
        }
    }

    /// The stream receives output from there on, also of a session that has ended.
    pub fn attach_from(
        &mut self,
        stream: u32,
        selector: &Selector,
        position: Position,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        let key = self.select_background(selector);
        let is_wanted =
            |it: &Session| it.log().is_some() && (position != Position::Now || it.is_alive());
        let Some((key, session)) = self.find(key, is_wanted) else {
            return Err(selector.not_found());
        };
        session.read_from(key, stream, position, streams)
    }

    /// Sends what is kept of one stream, or of both with channel 0.
    pub fn send_log(
        &mut self,
        stream: u32,
        selector: &Selector,
        channel: u8,
        tail: Option<u64>,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        let key = self.select_background(selector);
        let log = key.and_then(|key| self.table[&key].log());
        let log = log.ok_or_else(|| selector.not_found())?;
        if streams.is_congested() {
            let message = "too much output of the capsule waits to be sent";
            return Err(Failure::new(Code::TooMany, message));
        }
        let bytes = log.collect(channel, tail)?;
        streams.event(stream, &kept_event(bytes.len() as u64, log.first()));
        streams.data_owned(stream, crate::protocol::channel::MAIN, bytes);
        streams.end_with_result(stream, crate::protocol::empty());
        Ok(())
    }
}
