//! Who comes next between two tokens: KV that comes in, or what else there is to do (chunks, and copies of rows).

/// Sees to it that a token waits for one of the two only, and that neither waits for ever.
#[derive(Debug, Default)]
pub struct Turns {
    /// The last turn between two tokens was that of KV that comes in.
    in_has_had_its_turn: bool,
    /// Blocks that had come before the last turn of what else there is: they go first where nobody waits for a token.
    first: usize,
}

/// What is done before the next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// A slice of KV comes in.
    In,
    /// Something else is done.
    Others,
    /// Both: nobody waits for a token, or there is only one of them.
    Both,
}

impl Turns {
    /// Whose turn it is, where somebody waits for a token or not, and there are blocks that come in or other work.
    pub const fn next(&mut self, is_waited_for: bool, has_blocks: bool, has_others: bool) -> Turn {
        if !(is_waited_for && has_blocks && has_others) {
            // Who had the last turn is remembered: somebody may wait for a token now and then.
            return Turn::Both;
        }
        self.in_has_had_its_turn = !self.in_has_had_its_turn;
        match self.in_has_had_its_turn {
            true => Turn::In,
            false => Turn::Others,
        }
    }

    /// In this turn so many blocks have come in, and so many wait. True if the others have their turn now.
    pub fn others(&mut self, turn: Turn, is_waited_for: bool, come: usize, waiting: usize) -> bool {
        self.first = self.first.saturating_sub(come);
        // Behind a token that somebody waits for nothing is put off.
        let is_theirs = turn != Turn::In && (is_waited_for || self.first == 0);
        if is_theirs {
            self.first = waiting;
        }
        is_theirs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whoever reads tokens, however slowly, and however many blocks go on coming, a slice each: who has something to
        /// do gets its turn, and a token waits for one of them only.
        #[test]
        fn nobody_starves(
            waiting in 1usize..20,
            is_waited_for in prop::collection::vec(any::<bool>(), 1..200),
        ) {
            let mut turns = Turns::default();
            let (mut since_in, mut since_others) = (0, 0);
            for is_waited_for in is_waited_for {
                let turn = turns.next(is_waited_for, true, true);
                prop_assert_eq!(turn == Turn::Both, !is_waited_for);
                (since_in, since_others) = (since_in + 1, since_others + 1);
                let come = usize::from(turn != Turn::Others);
                if come > 0 {
                    since_in = 0;
                }
                if turns.others(turn, is_waited_for, come, waiting) {
                    since_others = 0;
                }
                prop_assert!(since_in <= 1 && since_others <= waiting, "{since_in} {since_others}");
            }
        }

        /// While somebody waits for every token they take turns one by one.
        #[test]
        fn one_comes_after_the_other(before in prop::collection::vec(any::<[bool; 3]>(), 0..9)) {
            let mut turns = Turns::default();
            for [is_waited_for, has_blocks, has_others] in before {
                turns.next(is_waited_for, has_blocks, has_others);
            }
            let first = turns.next(true, true, true);
            for _ in 0..9 {
                let [second, third] = [turns.next(true, true, true), turns.next(true, true, true)];
                prop_assert!(second != first && third == first);
            }
        }
    }
}
