//! Thoughts that come inside the text of an answer, taken apart.
//!
//! A text that begins with `<think>` (or another of [`MARKS`]) is thought up to the end of that mark. In what comes whole,
//! also the channels of gpt-oss are taken apart.

/// What thoughts stand between.
const MARKS: [(&str, &str); 3] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
];
/// What the answer of gpt-oss follows.
const FINAL_CHANNEL: &str = "<|channel|>final<|message|>";
/// What its texts end with.
const CHANNEL_ENDS: [&str; 3] = ["<|return|>", "<|end|>", "<|start|>"];

/// Takes a stream of text apart.
#[derive(Default)]
pub(crate) struct Thoughts {
    state: State,
    /// Text that is not decided yet.
    held: String,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but space has come.
    #[default]
    Begin,
    /// Inside this mark.
    Inside(usize),
    /// Behind it: space before the answer is left out.
    Behind,
    /// The answer.
    Answer,
}

/// What has become certain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Apart {
    pub(crate) thought: String,
    pub(crate) text: String,
}

impl Thoughts {
    /// Takes nothing apart.
    pub(crate) fn none() -> Self {
        Self {
            state: State::Answer,
            held: String::new(),
        }
    }

    /// Takes in more text.
    pub(crate) fn push(&mut self, more: &str) -> Apart {
        self.held.push_str(more);
        let mut apart = Apart::default();
        loop {
            let before = self.state;
            match before {
                State::Begin => self.begin(),
                State::Inside(mark) => self.inside(mark, &mut apart),
                State::Behind => {
                    let rest = self.held.trim_start();
                    self.held = rest.to_owned();
                    if !self.held.is_empty() {
                        self.state = State::Answer;
                    }
                }
                State::Answer => apart.text.push_str(&std::mem::take(&mut self.held)),
            }
            if self.state == before {
                return apart;
            }
        }
    }

    /// What is left at the end.
    pub(crate) fn finish(&mut self) -> Apart {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Inside(_) => Apart {
                thought: held,
                text: String::new(),
            },
            _ => Apart {
                thought: String::new(),
                text: held,
            },
        }
    }

    fn begin(&mut self) {
        let text = self.held.trim_start();
        let open = MARKS.iter().position(|(open, _)| text.starts_with(open));
        if let Some(mark) = open {
            self.held = text[MARKS[mark].0.len()..].to_owned();
            self.state = State::Inside(mark);
            return;
        }
        let may_open = MARKS.iter().any(|(open, _)| open.starts_with(text));
        if !may_open {
            self.state = State::Answer;
        }
    }

    fn inside(&mut self, mark: usize, apart: &mut Apart) {
        let close = MARKS[mark].1;
        if let Some(end) = self.held.find(close) {
            apart.thought.push_str(&self.held[..end]);
            self.held = self.held[end + close.len()..].to_owned();
            self.state = State::Behind;
            return;
        }
        // What may be the beginning of its end is kept.
        let keep = (1..close.len())
            .rev()
            .find(|n| self.held.ends_with(&close[..*n]))
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        apart
            .thought
            .push_str(&std::mem::replace(&mut self.held, rest));
    }
}

/// Takes a whole text apart, also one with the channels of gpt-oss.
pub(crate) fn apart(text: &str) -> Apart {
    if let Some(at) = text.rfind(FINAL_CHANNEL) {
        let (before, answer) = (&text[..at], &text[at + FINAL_CHANNEL.len()..]);
        let ends = CHANNEL_ENDS.iter().filter_map(|end| answer.find(end));
        let end = ends.min().unwrap_or(answer.len());
        return Apart {
            thought: without_marks(before),
            text: answer[..end].to_owned(),
        };
    }
    let mut thoughts = Thoughts::default();
    let mut apart = thoughts.push(text);
    let rest = thoughts.finish();
    apart.thought += &rest.thought;
    apart.text += &rest.text;
    apart
}

/// A text without what stands between `<|` and `|>`.
fn without_marks(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("<|") {
        out.push_str(before);
        let Some((_, behind)) = behind.split_once("|>") else {
            rest = behind;
            break;
        };
        rest = behind;
    }
    out.push_str(rest);
    out.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(text: &str, size: usize) -> Apart {
        let mut thoughts = Thoughts::default();
        let mut all = Apart::default();
        let chars: Vec<char> = text.chars().collect();
        for part in chars.chunks(size) {
            let part = thoughts.push(&part.iter().collect::<String>());
            all.thought += &part.thought;
            all.text += &part.text;
        }
        let rest = thoughts.finish();
        all.thought += &rest.thought;
        all.text += &rest.text;
        all
    }

    #[test]
    fn thoughts_come_apart_however_the_text_is_cut() {
        for (text, thought, answer) in [
            ("plain", "", "plain"),
            ("", "", ""),
            (" <b>", "", " <b>"),
            (
                "<think>a < b</think>\n\n answer </think>",
                "a < b",
                "answer </think>",
            ),
            ("\n<thinking>x</thinking>y", "x", "y"),
            ("[THINK]x[/THINK]", "x", ""),
            ("<think>cut </thin", "cut </thin", ""),
            ("say <think>no</think>", "", "say <think>no</think>"),
            ("<thi", "", "<thi"),
        ] {
            for size in 1..=text.chars().count().max(1) {
                let found = streamed(text, size);
                assert_eq!(
                    (&*found.thought, &*found.text),
                    (thought, answer),
                    "{text} {size}"
                );
            }
            assert_eq!(apart(text).text, answer);
        }
    }

    #[test]
    fn channels_of_a_whole_answer_come_apart() {
        let found = apart(
            "<|channel|>analysis<|message|>Let me see<|end|><|start|>assistant<|channel|>final<|message|>Good.<|return|>",
        );
        assert_eq!(found.text, "Good.");
        assert!(found.thought.contains("Let me see") && !found.thought.contains('|'));
    }
}
