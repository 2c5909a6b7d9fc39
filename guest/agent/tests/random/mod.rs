//! Repeatable random choices: the seed is printed, and `SEED=…` sets it.

use std::io::{stderr, Write};

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn seeded(test: &str) -> Random {
        let seed = std::env::var("SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from_ne_bytes(capsule_agent::sys::random()) | 1);
        let _ = writeln!(stderr(), "{test}: SEED={seed}"); // println! is shown for a failure only
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Mostly bytes that have a meaning in the protocol.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        const MEANINGFUL: [u8; 12] = [0, 0, 0, 0, 1, 2, 3, 8, 16, 0x7e, 0xff, 0x40];
        let is_uniform = self.below(4) == 0;
        (0..length)
            .map(|_| match is_uniform {
                true => self.next() as u8,
                false => MEANINGFUL[self.below(MEANINGFUL.len())],
            })
            .collect()
    }
}
