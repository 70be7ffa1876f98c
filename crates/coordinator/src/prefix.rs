//! What a prompt begins with, so that the scheduler finds the nodes that have seen it before.

use std::hash::{BuildHasher, RandomState};

use tandem_proto::Prompt;
use tandem_sched::limits::{MAX_PREFIX_BLOCKS, PREFIX_BLOCK};

/// Digests of a text as it comes: one for each whole block, over it and the digest before. A collision
/// costs a worse choice of nodes; the keys are random, so that nobody makes one.
pub(crate) struct Beginning<'a> {
    keys: &'a RandomState,
    last: u64,
    block: Vec<u8>,
    digests: Vec<u64>,
}

impl<'a> Beginning<'a> {
    /// Of a prompt; tenants share none.
    pub(crate) fn of(keys: &'a RandomState, tenant: &str, prompt: &Prompt) -> Self {
        let mut beginning = Self {
            keys,
            last: keys.hash_one(tenant),
            block: Vec::with_capacity(PREFIX_BLOCK),
            digests: Vec::new(),
        };
        match prompt {
            Prompt::Chat(messages) => {
                for message in messages {
                    beginning.message(&message.role, &message.content);
                }
            }
            Prompt::Text(text) => beginning.push(text.as_bytes()),
            Prompt::Tokens(tokens) => beginning.tokens(tokens),
        }
        beginning
    }

    /// The same with the answer behind it.
    pub(crate) fn answered(mut self, prompt: &Prompt, text: &str, tokens: &[u32]) -> Self {
        match prompt {
            Prompt::Chat(_) => self.message("assistant", text),
            Prompt::Text(_) => self.push(text.as_bytes()),
            Prompt::Tokens(_) => self.tokens(tokens),
        }
        self
    }

    /// The digests; what is left of the last block does not count.
    pub(crate) fn digests(self) -> Vec<u64> {
        self.digests
    }

    fn message(&mut self, role: &str, content: &str) {
        for part in [role, content] {
            self.push(part.as_bytes());
            self.push(&[0]);
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.push(&token.to_le_bytes());
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.digests.len() < MAX_PREFIX_BLOCKS {
            let free = PREFIX_BLOCK - self.block.len();
            let (now, later) = bytes.split_at(free.min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == PREFIX_BLOCK {
                self.last = self.keys.hash_one((self.last, self.block.as_slice()));
                self.digests.push(self.last);
                self.block.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_proto::Message;

    fn message(role: &str, content: &str) -> Message {
        Message::new(role, content)
    }

    #[test]
    fn the_next_turn_begins_with_the_turn_before_and_its_answer() {
        let keys = RandomState::new();
        let turn = vec![message("system", &"s".repeat(700)), message("user", "why?")];
        let answer = "because ".repeat(110);
        let mut next = turn.clone();
        next.push(message("assistant", &answer));
        next.push(message("user", &"and then? ".repeat(100)));
        let (turn, next) = (Prompt::Chat(turn), Prompt::Chat(next));
        let digests = |prompt: &Prompt| Beginning::of(&keys, "", prompt).digests();
        let answered = Beginning::of(&keys, "", &turn).answered(&turn, &answer, &[]);
        let answered = answered.digests();
        assert_eq!(digests(&turn).len(), 1);
        assert_eq!(answered.len(), 3);
        assert_eq!(digests(&next)[..3], answered[..]);
        // A digest stands for all before it, for a tenant, and not for another cut into messages.
        let with = |first: &str, tenant: &str| {
            let prompt = Prompt::Text(format!("{first}{}", "x".repeat(PREFIX_BLOCK)));
            Beginning::of(&keys, tenant, &prompt).digests()
        };
        let first = "a".repeat(PREFIX_BLOCK);
        let same = with(&first, "");
        assert_eq!(same, with(&first, ""));
        for other in [with(&first, "b"), with(&first.replace('a', "c"), "")] {
            assert!(same.iter().all(|d| !other.contains(d)));
        }
        let cut = |at: usize| {
            let text = "m".repeat(2 * PREFIX_BLOCK);
            let parts = [message("user", &text[..at]), message("user", &text[at..])];
            digests(&Prompt::Chat(parts.to_vec()))
        };
        assert_ne!(cut(10)[0], cut(11)[0]);
        // Tokens and their answer are one sequence, too.
        let tokens: Vec<u32> = (0..400).collect();
        let (prompt, rest) = (Prompt::Tokens(tokens[..150].to_vec()), &tokens[150..]);
        let answered = Beginning::of(&keys, "", &prompt).answered(&prompt, "", rest);
        assert_eq!(answered.digests(), digests(&Prompt::Tokens(tokens)));
    }

    #[test]
    fn the_number_of_digests_is_bounded() {
        let keys = RandomState::new();
        let long = Prompt::Text("x".repeat(PREFIX_BLOCK * (MAX_PREFIX_BLOCKS + 2)));
        let beginning = Beginning::of(&keys, "", &long);
        assert_eq!(beginning.digests().len(), MAX_PREFIX_BLOCKS);
    }
}
