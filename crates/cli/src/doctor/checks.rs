//! What was found.

use std::fmt::Write as _;

use serde::Serialize;

/// Letters of the longest name of a check.
const WIDTH: usize = 13;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// To be known.
    Note,
    /// It does not work.
    Fails,
}

/// One check.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// Something that was looked at.
#[derive(Debug, Serialize)]
pub struct Subject {
    /// Its name.
    pub name: String,
    /// What was found.
    pub checks: Vec<Check>,
}

/// Everything.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// All that was looked at.
    pub subjects: Vec<Subject>,
}

impl Subject {
    /// With nothing found yet.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            checks: Vec::new(),
        }
    }

    fn push(&mut self, what: &str, state: State, found: &str, fix: &str) {
        self.checks.push(Check {
            what: what.to_owned(),
            state,
            found: found.to_owned(),
            fix: fix.to_owned(),
        });
    }

    /// It is as it should be.
    pub fn ok(&mut self, what: &str, found: &str) {
        self.push(what, State::Ok, found, "");
    }

    /// It is to be known.
    pub fn warn(&mut self, what: &str, found: &str, fix: &str) {
        self.push(what, State::Note, found, fix);
    }

    /// It does not work.
    pub fn fail(&mut self, what: &str, found: &str, fix: &str) {
        self.push(what, State::Fails, found, fix);
    }
}

impl Report {
    /// Adds a subject, if anything is found of it.
    pub fn add(&mut self, mut subject: Subject, look: impl FnOnce(&mut Subject)) {
        look(&mut subject);
        let known = self
            .subjects
            .iter_mut()
            .find(|known| known.name == subject.name);
        match known {
            Some(known) => known.checks.append(&mut subject.checks),
            None if subject.checks.is_empty() => {}
            None => self.subjects.push(subject),
        }
    }

    /// True if nothing fails.
    pub fn works(&self) -> bool {
        let checks = self.subjects.iter().flat_map(|subject| &subject.checks);
        !checks.into_iter().any(|check| check.state == State::Fails)
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for subject in &self.subjects {
            let _ = writeln!(out, "{}", subject.name);
            for check in &subject.checks {
                let state = match check.state {
                    State::Ok => "ok   ",
                    State::Note => "note ",
                    State::Fails => "FAILS",
                };
                let fix = match check.fix.as_str() {
                    "" => String::new(),
                    fix => format!("; {fix}"),
                };
                let _ = writeln!(out, "  {state} {:WIDTH$} {}{fix}", check.what, check.found);
            }
        }
        let _ = write!(
            out,
            "{}",
            if self.works() {
                "all works"
            } else {
                "something does not work"
            }
        );
        out
    }
}
