//! Which ended sessions of one kind are kept for late clients.

use std::collections::VecDeque;

pub const MAX_KEPT: usize = 64;

#[derive(Default)]
pub struct Kept {
    /// The oldest first.
    keys: VecDeque<u32>,
}

impl Kept {
    /// Beyond the limit, returns the session to be removed: the oldest whose exit a client has received, or else the
    /// oldest.
    pub fn add(&mut self, key: u32, is_delivered: impl Fn(u32) -> bool) -> Option<u32> {
        self.keys.push_back(key);
        if self.keys.len() <= MAX_KEPT {
            return None;
        }
        let at = self.keys.iter().position(|&key| is_delivered(key));
        self.keys.remove(at.unwrap_or(0))
    }

    pub fn contains(&self, key: u32) -> bool {
        self.keys.contains(&key)
    }

    pub fn remove(&mut self, key: u32) {
        self.keys.retain(|&kept| kept != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivered_exits_are_dropped_first() {
        let mut kept = Kept::default();
        for key in 0..MAX_KEPT as u32 {
            assert_eq!(kept.add(key, |_| false), None);
        }
        assert_eq!(kept.add(100, |key| key == 7 || key == 9), Some(7));
        assert_eq!(kept.add(101, |key| key == 101), Some(101));
        assert_eq!(kept.add(102, |_| false), Some(0));
        kept.remove(1);
        assert_eq!(kept.add(103, |_| false), None);
        assert_eq!(kept.add(104, |_| false), Some(2));
    }
}
