//! What a request asks for and is not done: refused, ignored and told where that is permitted, or somebody else's business.

use crate::error::ApiError;

/// Most fields that an answer lists as ignored; one more entry says that there were others.
const MAX_IGNORED: usize = 32;
/// Characters of a path that are shown.
const MAX_SHOWN: usize = 96;
/// Letters that may be wrong in a name for which another one is proposed.
const MAX_TYPOS: usize = 2;

/// What becomes of fields that are not known here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Refuse,
    Ignore,
    Pass,
}

/// Collects the fields of a request that are not known here.
pub(crate) struct Unknown {
    manner: Manner,
    ignored: Vec<String>,
}

impl Unknown {
    pub(crate) fn new(lenient: bool) -> Self {
        Self::in_manner(match lenient {
            true => Manner::Ignore,
            false => Manner::Refuse,
        })
    }

    /// Of a request that another server answers, which knows more.
    pub(crate) fn passing() -> Self {
        Self::in_manner(Manner::Pass)
    }

    fn in_manner(manner: Manner) -> Self {
        Self {
            manner,
            ignored: Vec::new(),
        }
    }

    /// True if another server reads what is not known here.
    pub(crate) fn passes(&self) -> bool {
        self.manner == Manner::Pass
    }

    /// A field that nobody knows; `known` are the ones that it may have been meant to be.
    pub(crate) fn meets(&mut self, path: &str, name: &str, known: &[&str]) -> Result<(), ApiError> {
        let distance = |other: &&&str| strsim::damerau_levenshtein(name, other);
        // Long names are none of these, and take long to compare.
        let near = (known.iter().filter(|_| name.len() <= MAX_SHOWN))
            .min_by_key(distance)
            .filter(|other| distance(other) <= MAX_TYPOS);
        let hint = near.map_or(String::new(), |other| format!("; did you mean '{other}'?"));
        let path = shown(path);
        self.refuses(&path, || format!("'{path}' is not known here{hint}"))
    }

    /// A field that is known and not done.
    pub(crate) fn refuses(
        &mut self,
        path: &str,
        message: impl FnOnce() -> String,
    ) -> Result<(), ApiError> {
        if self.passes() {
            return Ok(());
        }
        if self.manner == Manner::Refuse {
            let fix = "leave it out, or ignore such fields with `\"tandem\": {\"lenient\": true}`";
            return Err(ApiError::invalid(path, format!("{}; {fix}", message())));
        }
        match self.ignored.len() {
            0..MAX_IGNORED => self.ignored.push(path.to_owned()),
            MAX_IGNORED => self.ignored.push("and others".to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// The paths of what was ignored.
    pub(crate) fn ignored(self) -> Vec<String> {
        self.ignored
    }
}

/// The path, or its beginning.
fn shown(path: &str) -> String {
    match path.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &path[..end]),
        None => path.to_owned(),
    }
}
