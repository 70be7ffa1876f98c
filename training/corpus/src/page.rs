//! A source file as it is written, with what each line is.

/// What a line is; where evidence points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    /// Nothing of note.
    Other,
    /// Explains the function.
    Comment,
    /// The function's first line.
    Signature,
    /// The first line that names a variable of the function.
    Local,
    /// The loop over the elements.
    Loop,
    /// Tests an element.
    Condition,
    /// The result is computed here.
    Result,
    /// Nothing was selected: the test.
    Edge,
    /// Dead code.
    Dead,
    /// A call of the function.
    Call,
}

/// A file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Page {
    /// Its name.
    pub(crate) name: String,
    /// Its lines.
    pub(crate) lines: Vec<(Tag, String)>,
}

impl Page {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            lines: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, tag: Tag, line: impl Into<String>) {
        self.lines.push((tag, line.into()));
    }

    pub(crate) fn blank(&mut self) {
        self.push(Tag::Other, "");
    }
}
