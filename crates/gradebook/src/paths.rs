//! Every link.

/// Where the pages begin.
pub(crate) const HOME: &str = "/grading";

/// An assignment: its first work that needs a person.
pub(crate) fn assignment(id: i64) -> String {
    format!("{HOME}/a/{id}")
}

/// Takes back the last change in an assignment.
pub(crate) fn undo(assignment: i64) -> String {
    format!("{HOME}/a/{assignment}/undo")
}

/// A work under review, and where its forms go.
pub(crate) fn work(id: i64) -> String {
    format!("{HOME}/w/{id}")
}

/// Has a model write its feedback once more.
pub(crate) fn rewrite(work: i64) -> String {
    format!("{HOME}/w/{work}/rewrite")
}

/// Has a work assessed without its comments.
pub(crate) fn bare(work: i64) -> String {
    format!("{HOME}/w/{work}/bare")
}

/// What the models were sent.
pub(crate) fn prompt(work: i64) -> String {
    format!("{HOME}/w/{work}/prompt")
}

/// A picture in a work.
pub(crate) fn picture(work: i64, digest: &str) -> String {
    format!("{HOME}/w/{work}/picture/{digest}")
}

/// What was done to a work, and how its values were made.
pub(crate) fn record(work: i64) -> String {
    format!("{HOME}/w/{work}/record")
}

/// One submission, graded live.
pub(crate) fn trial(id: u64) -> String {
    format!("{HOME}/try/{id}")
}

/// What comes of it.
pub(crate) fn trial_events(id: u64) -> String {
    format!("{HOME}/try/{id}/events")
}

/// Ends it.
pub(crate) fn stop_trial(id: u64) -> String {
    format!("{HOME}/try/{id}/stop")
}

/// What would be graded of an assignment, and where runs are started.
pub(crate) fn runs(assignment: i64) -> String {
    format!("{HOME}/a/{assignment}/run")
}

/// A run.
pub(crate) fn run(id: i64) -> String {
    format!("{HOME}/r/{id}")
}

/// What changes of it.
pub(crate) fn run_events(id: i64) -> String {
    format!("{HOME}/r/{id}/events")
}

/// Tells it to stop.
pub(crate) fn stop_run(id: i64) -> String {
    format!("{HOME}/r/{id}/stop")
}

/// Goes on with it.
pub(crate) fn continue_run(id: i64) -> String {
    format!("{HOME}/r/{id}/continue")
}

/// Hides or shows names.
pub(crate) const NAMES: &str = "/grading/names";

/// Tells one's name.
pub(crate) const ME: &str = "/grading/me";

/// Invites somebody.
pub(crate) const PEOPLE: &str = "/grading/people";

/// Lets somebody in no more.
pub(crate) fn dismiss(person: i64) -> String {
    format!("{PEOPLE}/{person}/dismiss")
}

/// Divides the works of an assignment.
pub(crate) fn shares(assignment: i64) -> String {
    format!("{HOME}/a/{assignment}/shares")
}
