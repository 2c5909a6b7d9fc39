//! The credit that the relay has on one stream. It gets back what the program has taken, and more where a program reads as fast as
//! bytes come.

use super::wire::{FIRST_WINDOW, MAX_WIDENED, MAX_WINDOW};

/// Credit that is left to widen the windows of all streams.
pub struct Pool {
    free: u32,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { free: MAX_WIDENED }
    }
}

pub struct Credit {
    /// Sent by the relay and not given back, or allowed to be sent.
    window: u32,
    /// The relay may send so much now.
    allowed: u32,
    /// Taken by the program and not given back yet.
    taken: u32,
    /// Taken since the window was widened.
    taken_since: u32,
}

impl Default for Credit {
    fn default() -> Credit {
        Credit {
            window: FIRST_WINDOW,
            allowed: FIRST_WINDOW,
            taken: 0,
            taken_since: 0,
        }
    }
}

impl Credit {
    /// False: the relay has sent more than it may.
    pub fn receive(&mut self, bytes: usize) -> bool {
        let is_allowed = bytes <= self.allowed as usize;
        if is_allowed {
            self.allowed -= bytes as u32;
        }
        is_allowed
    }

    /// The program has taken bytes. `waiting`: others still wait for it. Returns the credit for the next WINDOW; 0: none yet.
    pub fn take(&mut self, bytes: usize, waiting: bool, pool: &mut Pool) -> u32 {
        self.taken += bytes as u32;
        self.taken_since = self.taken_since.saturating_add(bytes as u32);
        if self.taken < self.window / 4 {
            return 0;
        }
        let mut credit = std::mem::take(&mut self.taken);
        if !waiting && self.taken_since >= self.window {
            // Half of what is free, so that a stream that comes later finds some.
            let more = self.window.min(MAX_WINDOW - self.window).min(pool.free / 2);
            pool.free -= more;
            self.window += more;
            self.taken_since = 0;
            credit += more;
        }
        self.allowed += credit;
        credit
    }

    /// The stream is closed.
    pub fn release(self, pool: &mut Pool) {
        pool.free += self.window - FIRST_WINDOW;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes beyond those that were taken never exceed the window, and no window its bounds.
    #[test]
    fn a_stream_that_is_read_fast_gets_a_wide_window_within_bounds() {
        let mut pool = Pool::default();
        let mut streams: Vec<Credit> = (0..40).map(|_| Credit::default()).collect();
        let read = |credit: &mut Credit, pool: &mut Pool| {
            let bytes = credit.allowed as usize;
            assert!(credit.receive(bytes) && !credit.receive(1));
            credit.take(bytes, false, pool);
            assert_eq!(credit.allowed, credit.window);
        };
        (0..200).for_each(|_| read(&mut streams[0], &mut pool));
        assert_eq!(streams[0].window, MAX_WINDOW);
        for _ in 0..200 {
            streams.iter_mut().for_each(|it| read(it, &mut pool));
        }
        let widened: u32 = streams.iter().map(|it| it.window - FIRST_WINDOW).sum();
        assert!(widened > MAX_WIDENED / 2 && widened + pool.free == MAX_WIDENED);
        streams.into_iter().for_each(|it| it.release(&mut pool));
        assert_eq!(pool.free, MAX_WIDENED);
    }

    #[test]
    fn a_stream_that_is_read_slowly_keeps_its_first_window() {
        let (mut pool, mut credit) = (Pool::default(), Credit::default());
        assert!(credit.receive(FIRST_WINDOW as usize));
        let mut given = 0;
        for _ in 0..FIRST_WINDOW / 1_024 {
            given += credit.take(1_024, true, &mut pool);
        }
        assert_eq!((given, credit.window), (FIRST_WINDOW, FIRST_WINDOW));
    }
}
