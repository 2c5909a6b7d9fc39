//! The clients of sessions: streams that receive output or an exit, and those that send input.

use super::Sessions;
use crate::protocol::{Failure, Selector};
use crate::session::Session;
use crate::stream::Role;
use crate::streams::Streams;

impl Sessions {
    pub fn attach(
        &mut self,
        stream: u32,
        selector: &Selector,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        let key = self.select(selector);
        let Some((key, session)) = self.find(key, Session::is_background) else {
            return Err(selector.not_found());
        };
        session.add_listener(stream, Role::Attached(key), streams);
        session.send_started(stream, streams);
        Ok(())
    }

    /// Adds a client to a terminal, whose key is returned.
    pub fn connect(
        &mut self,
        stream: u32,
        tag: &[u8],
        is_whole: bool,
        streams: &mut Streams,
    ) -> Result<u32, Failure> {
        let key = self.tagged(tag);
        let Some((key, session)) = self.find(key, Session::has_terminal) else {
            return Err(Selector::Tag(tag.to_vec()).not_found());
        };
        session.connect(stream, Role::Terminal(key), is_whole, streams);
        session.begin_redraw();
        Ok(key)
    }

    pub fn await_exit(
        &mut self,
        stream: u32,
        selector: &Selector,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        let key = self.select_background(selector);
        let Some((key, session)) = self.find(key, |_| true) else {
            return Err(selector.not_found());
        };
        session.await_exit(stream, Role::Waiting(key), streams);
        Ok(())
    }

    pub(super) fn find(
        &mut self,
        key: Option<u32>,
        is_wanted: impl Fn(&Session) -> bool,
    ) -> Option<(u32, &mut Session)> {
        let session = self.get_mut(key?)?;
        is_wanted(session).then_some((key?, session))
    }

    /// The stream is closed, by either side. `unsent` is what it did not deliver.
    pub fn detach(&mut self, stream: u32, key: u32, unsent: &[u8]) {
        if let Some(session) = self.get_mut(key) {
            session.detach(stream, unsent);
        }
    }

    pub fn remove_waiter(&mut self, stream: u32, key: u32) {
        if let Some(session) = self.get_mut(key) {
            session.remove_waiter(stream);
        }
    }

    /// The stream may send standard input to a background process.
    pub fn open_input(
        &mut self,
        stream: u32,
        selector: &Selector,
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        let key = self.select(selector);
        let Some((key, session)) = self.find(key, Session::is_background) else {
            return Err(selector.not_found());
        };
        session.add_writer(stream)?;
        streams.set_role(stream, Role::Input(key));
        session.send_started(stream, streams);
        Ok(())
    }

    pub fn end_input(&mut self, key: u32, streams: &mut Streams) {
        if let Some(session) = self.get_mut(key) {
            session.end_input(streams);
        }
    }

    pub fn remove_writer(&mut self, stream: u32, key: u32) {
        if let Some(session) = self.get_mut(key) {
            session.remove_writer(stream);
        }
    }

    /// Input for a session's program.
    pub fn add_input(
        &mut self,
        stream: u32,
        key: u32,
        bytes: &[u8],
        streams: &mut Streams,
    ) -> Result<(), Failure> {
        match self.get_mut(key) {
            Some(session) => session.add_input(stream, bytes, streams),
            None => {
                streams.consumed(stream, bytes.len());
                Ok(())
            }
        }
    }
}
