//! Thoughts that come inside the text of an answer, taken apart.
//!
//! A text that begins with `<think>` (or another of [`MARKS`]) is thought up to the end of that mark. Many templates write
//! the opening mark themselves: then a text has the end alone, and is thought up to there. In what comes whole, also the
//! channels of gpt-oss are taken apart.

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
    /// The model is known to think first, without an opening mark: up to this one's end, if it comes.
    Presumed(usize),
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

    /// Of an answer behind a prompt that ends so: a template may have written the opening mark.
    pub(crate) fn behind(prompt_end: &str) -> Self {
        let end = prompt_end.trim_end();
        let open = MARKS.iter().position(|(open, _)| end.ends_with(open));
        Self {
            state: open.map_or(State::Begin, State::Inside),
            held: String::new(),
        }
    }

    /// Of a model that has been seen to think without the opening mark of these [`MARKS`].
    pub(crate) fn presumed(mark: usize) -> Self {
        Self {
            state: State::Presumed(mark),
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
                State::Presumed(mark) => {
                    // Nothing is certain before its end.
                    let open = MARKS[mark].0;
                    if let Some(at) = self.held.find(MARKS[mark].1) {
                        let thought = self.held[..at].trim_start();
                        apart
                            .thought
                            .push_str(thought.strip_prefix(open).unwrap_or(thought));
                        self.held = self.held[at + MARKS[mark].1.len()..].to_owned();
                        self.state = State::Behind;
                    }
                }
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

/// A text that has the end of a mark, at the beginning of a line, and no beginning before it, taken apart there; and which
/// mark that is. Within a line it is a text about marks.
pub(crate) fn unopened(text: &str) -> Option<(usize, Apart)> {
    let ends = MARKS
        .iter()
        .enumerate()
        .filter_map(|(mark, (open, close))| {
            let at = text.find(close)?;
            let before = text[..at].trim_end_matches([' ', '\t']);
            let is_line = before.is_empty() || before.ends_with('\n');
            (is_line && !before.contains(open)).then_some((at, mark))
        });
    let (at, mark) = ends.min()?;
    let apart = Apart {
        thought: text[..at].trim().to_owned(),
        text: text[at + MARKS[mark].1.len()..].trim_start().to_owned(),
    };
    Some((mark, apart))
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
    match unopened(&apart.text).filter(|_| apart.thought.is_empty()) {
        Some((_, apart)) => apart,
        None => apart,
    }
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
    fn an_end_without_a_beginning_is_an_end() {
        for (text, thought, answer) in [
            ("Hm, so.\n</think>\n\nFine.", "Hm, so.", "Fine."),
            ("a\n[/THINK]b</think>c", "a", "b</think>c"),
            ("a</think>b", "", "a</think>b"),
            ("</think>x", "", "x"),
        ] {
            assert_eq!(
                (&*apart(text).thought, &*apart(text).text),
                (thought, answer)
            );
        }
        assert_eq!(unopened("say <think>no</think>"), None);
        // Of a model that is known for it nothing is shown before the end, and all of it where there is none.
        for (text, thought, answer) in [
            ("Hm.</think>\nFine.", "Hm.", "Fine."),
            ("<think>Hm.</think>Fine.", "Hm.", "Fine."),
            ("Fine.", "", "Fine."),
        ] {
            for size in 1..=text.len() {
                let mut thoughts = Thoughts::presumed(0);
                let mut all = Apart::default();
                for part in text.as_bytes().chunks(size) {
                    let part = thoughts.push(std::str::from_utf8(part).unwrap());
                    all.thought += &part.thought;
                    all.text += &part.text;
                }
                all.text += &thoughts.finish().text;
                assert_eq!(
                    (&*all.thought, &*all.text),
                    (thought, answer),
                    "{text} {size}"
                );
            }
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
