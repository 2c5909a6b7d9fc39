//! Tags for commands whose client chose none: `proc-` or `pty-`, and eight hexadecimal digits.

use crate::sys;

#[derive(Default)]
pub struct TagSequence {
    last: u32,
}

impl TagSequence {
    /// The step is odd, so that every number comes once before any comes again. Drawing numbers would cost a system call
    /// for each command.
    pub fn next(&mut self, prefix: &str) -> String {
        self.last = self.last.wrapping_add(0x9e37_79b9);
        [prefix, "-", &sys::hex(&self.last.to_be_bytes())].concat()
    }

    /// Continues from a random number, so that clones of one VM generate different tags. To be called once the kernel's
    /// random generator is reseeded.
    pub fn scatter(&mut self) {
        self.last = u32::from_ne_bytes(sys::random());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn generated_tags_differ_from_each_other_and_from_those_of_clones() {
        let drawn = |tags: &mut TagSequence| -> BTreeSet<String> {
            (0..1_000).map(|_| tags.next("proc")).collect()
        };
        let (mut one, mut clone) = (TagSequence::default(), TagSequence::default());
        assert_eq!(drawn(&mut one).len(), 1_000);
        assert_eq!(drawn(&mut clone).len(), 1_000);
        one.scatter();
        clone.scatter();
        assert_ne!(drawn(&mut one), drawn(&mut clone));
    }
}
