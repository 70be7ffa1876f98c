//! Prompts that begin alike and go on with words of their own.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// A heavy prompt has its own words from the first on.
const HEAVY: u64 = u64::MAX;

/// Words that every vocabulary has as one or two tokens.
const WORDS: [&str; 64] = [
    "about", "above", "after", "again", "always", "answer", "before", "begin", "between", "book",
    "both", "build", "change", "city", "close", "course", "cover", "cross", "door", "earth",
    "every", "example", "face", "field", "final", "follow", "form", "garden", "group", "hand",
    "head", "house", "island", "keep", "land", "large", "learn", "letter", "light", "line",
    "little", "measure", "money", "mountain", "music", "north", "number", "often", "paper",
    "people", "picture", "place", "plant", "point", "question", "river", "school", "second",
    "sentence", "small", "state", "story", "table", "water",
];

/// Makes the same prompts for all servers.
pub struct Prompts {
    seed: u64,
    shared: String,
    own: u32,
}

impl Prompts {
    /// Prompts of a seed.
    pub fn new(seed: u64, shared: u32, own: u32) -> Self {
        Self {
            seed,
            shared: words(seed, &[0], shared),
            own,
        }
    }

    /// The prompt of a request of a round; no other one has the same.
    pub fn text(&self, round: u32, request: u32) -> String {
        let own = words(self.seed, &[1, round.into(), request.into()], self.own);
        format!("{}{own}", self.shared)
    }

    /// Prompts that share nothing, for a round of one server.
    pub fn heavy(&self, round: u32, words_each: u32) -> impl Fn(u64) -> String + use<> {
        let seed = self.seed;
        move |number| words(seed, &[HEAVY, round.into(), number], words_each)
    }
}

fn words(seed: u64, place: &[u64], count: u32) -> String {
    let mut key = [0; 32];
    let numbers = std::iter::once(&seed).chain(place);
    for (bytes, number) in key.chunks_exact_mut(8).zip(numbers) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    let mut rng = ChaCha8Rng::from_seed(key);
    let mut text = String::new();
    for _ in 0..count {
        text.push_str(WORDS[rng.random_range(0..WORDS.len())]);
        text.push(' ');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Prompts;

    #[test]
    fn prompts_share_their_beginning_and_nothing_else() {
        let prompts = Prompts::new(7, 20, 30);
        let [first, second] = [(0, 0), (0, 1)].map(|(round, n)| prompts.text(round, n));
        let same = first.bytes().zip(second.bytes());
        let same = same.take_while(|(a, b)| a == b).count();
        let shared = first.split_whitespace().take(20).map(|w| w.len() + 1);
        let shared: usize = shared.sum();
        assert!(same >= shared && same < shared + 20, "{same} {shared}");
        assert_eq!(first, Prompts::new(7, 20, 30).text(0, 0));
        assert_ne!(first, prompts.text(1, 0));
        let heavy = prompts.heavy(0, 9);
        assert_ne!(heavy(0), heavy(1));
        assert_eq!(heavy(0).split_whitespace().count(), 9);
    }
}
