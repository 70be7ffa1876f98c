//! The tokens that answers were generated as. The next turn of a chat brings an answer as text, which a tokenizer
//! may split otherwise; then the KV of that answer would be of no use.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use lru::LruCache;
use tandem_proto::Prompt;

use crate::limits::{ANSWER_OVERHEAD, MAX_ANSWER_TOKENS, MAX_RECALLED_TOKENS};

/// Answers of chats by tenant, model and text. No text is kept. What was used least recently is forgotten first;
/// a node looks whether tokens give the text, so that neither a collision nor anything else does harm here.
pub(crate) struct Answers {
    keys: RandomState,
    known: Mutex<Known>,
}

struct Known {
    answers: LruCache<u64, Vec<u32>>,
    /// Of all of them.
    tokens: usize,
}

impl Answers {
    pub(crate) fn new() -> Self {
        Self {
            keys: RandomState::new(),
            known: Mutex::new(Known {
                answers: LruCache::unbounded(),
                tokens: 0,
            }),
        }
    }

    /// What clients do not send back, or add, at the end of an answer changes no key.
    fn key(&self, tenant: &str, model: &str, text: &str) -> u64 {
        self.keys.hash_one((tenant, model, text.trim_end()))
    }

    /// Remembers an answer.
    pub(crate) fn learn(&self, tenant: &str, model: &str, text: &str, tokens: &[u32]) {
        if text.trim_end().is_empty() || tokens.len() > MAX_ANSWER_TOKENS {
            return;
        }
        let key = self.key(tenant, model, text);
        let mut guard = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *guard;
        known.tokens += cost(tokens);
        let before = known.answers.put(key, tokens.to_vec());
        known.tokens -= before.map_or(0, |tokens| cost(&tokens));
        while known.tokens > MAX_ANSWER_TOKENS
            && let Some((_, oldest)) = known.answers.pop_lru()
        {
            known.tokens -= cost(&oldest);
        }
    }

    /// Gives answers in a chat the tokens that they were generated as, the last ones first.
    pub(crate) fn recall(&self, tenant: &str, model: &str, prompt: &mut Prompt) {
        let Prompt::Chat(messages) = prompt else {
            return;
        };
        let mut left = MAX_RECALLED_TOKENS;
        let answers = messages.iter_mut().rev().filter(|m| m.role == "assistant");
        let keyed = answers.map(|m| (self.key(tenant, model, &m.content), m));
        let keyed: Vec<_> = keyed.collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, message) in keyed {
            let tokens = known.answers.get(&key);
            if let Some(tokens) = tokens.filter(|tokens| tokens.len() <= left) {
                left -= tokens.len();
                message.tokens.clone_from(tokens);
            }
        }
    }
}

/// What remembering an answer takes, in tokens: short ones need more for their place than for themselves.
const fn cost(tokens: &[u32]) -> usize {
    tokens.len() + ANSWER_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_proto::Message;

    fn recalled(answers: &Answers, tenant: &str, model: &str, text: &str) -> Vec<u32> {
        let said = |role: &str| Message::new(role, text);
        let mut prompt = Prompt::Chat(vec![said("user"), said("assistant")]);
        answers.recall(tenant, model, &mut prompt);
        let Prompt::Chat(messages) = prompt else {
            panic!("a chat")
        };
        assert!(messages[0].tokens.is_empty(), "what a person wrote");
        messages[1].tokens.clone()
    }

    #[test]
    fn an_answer_is_known_by_tenant_model_and_text() {
        let answers = Answers::new();
        answers.learn("a", "m", "because\n", &[1, 2, 3]);
        for text in ["because\n", "because", "because \n"] {
            assert_eq!(recalled(&answers, "a", "m", text), [1, 2, 3]);
        }
        for (tenant, model, text) in [
            ("b", "m", "because"),
            ("a", "n", "because"),
            ("a", "m", " because"),
            ("a", "m", ""),
        ] {
            assert!(recalled(&answers, tenant, model, text).is_empty());
        }
        // The same text may be generated otherwise; the last time counts.
        answers.learn("a", "m", "because", &[4]);
        assert_eq!(recalled(&answers, "a", "m", "because"), [4]);
        assert_eq!(answers.known.lock().unwrap().tokens, cost(&[4]));
    }

    #[test]
    fn what_is_remembered_and_what_a_request_carries_is_bounded() {
        let answers = Answers::new();
        let part = vec![7; MAX_RECALLED_TOKENS / 2];
        let all = MAX_ANSWER_TOKENS / cost(&part) + 2;
        for i in 0..all {
            answers.learn("", "m", &i.to_string(), &part);
        }
        let kept = answers.known.lock().unwrap().tokens;
        assert_eq!(kept, MAX_ANSWER_TOKENS / cost(&part) * cost(&part));
        assert!(recalled(&answers, "", "m", "1").is_empty());
        assert_eq!(recalled(&answers, "", "m", "2"), part);
        let turns = (2..all).map(|i| Message::new("assistant", i.to_string()));
        let mut prompt = Prompt::Chat(turns.collect());
        answers.recall("", "m", &mut prompt);
        let Prompt::Chat(messages) = prompt else {
            panic!("a chat")
        };
        let with: Vec<bool> = messages.iter().map(|m| !m.tokens.is_empty()).collect();
        assert!(with[with.len() - 2..].iter().all(|has| *has));
        assert_eq!(with.iter().filter(|has| **has).count(), 2);
    }
}
