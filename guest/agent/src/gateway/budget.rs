//! How many errors the gateway sends: a flood of packets gets no flood of answers.

const PER_SECOND: u64 = 1_000;
const NS: u64 = 1_000_000_000;

pub struct Budget {
    left: u64,
    filled_ns: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            left: PER_SECOND,
            filled_ns: 0,
        }
    }
}

impl Budget {
    pub fn take(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.filled_ns) >= NS {
            self.left = PER_SECOND;
            self.filled_ns = now_ns;
        }
        let has_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many() {
        let mut budget = Budget::default();
        let taken = |budget: &mut Budget, at| (0..5_000).filter(|_| budget.take(at)).count();
        assert_eq!(taken(&mut budget, 5 * NS), PER_SECOND as usize);
        assert_eq!(taken(&mut budget, 6 * NS - 1), 0);
        assert_eq!(taken(&mut budget, 6 * NS), PER_SECOND as usize);
    }
}
