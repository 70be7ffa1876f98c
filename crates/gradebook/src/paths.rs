//! Every link.
//!
//! A browser sends a cookie to every server of a host, whatever its port, and a path is all that keeps it from the others:
//! so each gradebook lies below a random one, which only browsers that were let in come to know.

use std::fmt;

/// Where the pages of earlier versions were: links with a token still lead in from there, and styles lie there.
pub(crate) const OLD_HOME: &str = "/grading";

/// Where the pages of one gradebook are: every link is made of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paths {
    home: &'static str,
}

impl Paths {
    /// Of the gradebook with this number.
    pub(crate) fn new(number: &str) -> Self {
        // A process opens a gradebook once; so every page can have it without a lifetime.
        let home: &'static str = Box::leak(format!("/g-{number}").into_boxed_str());
        Self { home }
    }

    /// Where the pages begin.
    pub(crate) const fn home(self) -> &'static str {
        self.home
    }

    fn at(self, rest: fmt::Arguments<'_>) -> String {
        format!("{}{rest}", self.home)
    }

    /// An assignment: its first work that needs a person.
    pub(crate) fn assignment(self, id: i64) -> String {
        self.at(format_args!("/a/{id}"))
    }

    /// Where the way through a list of works ends.
    pub(crate) fn end(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/end"))
    }

    /// What an export would write, and where the file comes from.
    pub(crate) fn export(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/export"))
    }

    /// Takes the teacher's own gradebook.
    pub(crate) fn sheet(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/sheet"))
    }

    /// Takes back the last change in an assignment.
    pub(crate) fn undo(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/undo"))
    }

    /// A work under review, and where its forms go.
    pub(crate) fn work(self, id: i64) -> String {
        self.at(format_args!("/w/{id}"))
    }

    /// The rubric of an assignment, in a form.
    pub(crate) fn rubric(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/rubric"))
    }

    /// The same as a file.
    pub(crate) fn rubric_file(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/rubric/file"))
    }

    /// Reads a file into the form.
    pub(crate) fn read_rubric(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/rubric/read"))
    }

    /// What would be deleted with a work, and deletes it.
    pub(crate) fn erase_work(self, id: i64) -> String {
        self.at(format_args!("/w/{id}/delete"))
    }

    /// The same with an assignment.
    pub(crate) fn erase_assignment(self, id: i64) -> String {
        self.at(format_args!("/a/{id}/delete"))
    }

    /// Takes somebody's name out of the history.
    pub(crate) fn forget(self, person: i64) -> String {
        self.at(format_args!("/people/{person}/forget"))
    }

    /// Has a model write its feedback once more.
    pub(crate) fn rewrite(self, work: i64) -> String {
        self.at(format_args!("/w/{work}/rewrite"))
    }

    /// Ends that a work is graded blind.
    pub(crate) fn blind(self, work: i64) -> String {
        self.at(format_args!("/w/{work}/blind"))
    }

    /// How far persons and models agree.
    pub(crate) fn agreement(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/agreement"))
    }

    /// Chooses works that are graded blind.
    pub(crate) fn anchors(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/anchors"))
    }

    /// Has a work assessed without its comments.
    pub(crate) fn bare(self, work: i64) -> String {
        self.at(format_args!("/w/{work}/bare"))
    }

    /// What the models were sent.
    pub(crate) fn prompt(self, work: i64) -> String {
        self.at(format_args!("/w/{work}/prompt"))
    }

    /// A picture in a work.
    pub(crate) fn picture(self, work: i64, digest: &str) -> String {
        self.at(format_args!("/w/{work}/picture/{digest}"))
    }

    /// What was done to a work, and how its values were made.
    pub(crate) fn record(self, work: i64) -> String {
        self.at(format_args!("/w/{work}/record"))
    }

    /// One submission, graded live.
    pub(crate) fn trial(self, id: u64) -> String {
        self.at(format_args!("/try/{id}"))
    }

    /// What comes of it.
    pub(crate) fn trial_events(self, id: u64) -> String {
        self.at(format_args!("/try/{id}/events"))
    }

    /// Ends it.
    pub(crate) fn stop_trial(self, id: u64) -> String {
        self.at(format_args!("/try/{id}/stop"))
    }

    /// What would be graded of an assignment, and where runs are started.
    pub(crate) fn runs(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/run"))
    }

    /// A run.
    pub(crate) fn run(self, id: i64) -> String {
        self.at(format_args!("/r/{id}"))
    }

    /// What changes of it.
    pub(crate) fn run_events(self, id: i64) -> String {
        self.at(format_args!("/r/{id}/events"))
    }

    /// Tells it to stop.
    pub(crate) fn stop_run(self, id: i64) -> String {
        self.at(format_args!("/r/{id}/stop"))
    }

    /// Stops it and gives up what is in flight.
    pub(crate) fn stop_run_now(self, id: i64) -> String {
        self.at(format_args!("/r/{id}/stop-now"))
    }

    /// Goes on with it.
    pub(crate) fn continue_run(self, id: i64) -> String {
        self.at(format_args!("/r/{id}/continue"))
    }

    /// Hides or shows names.
    pub(crate) fn names(self) -> String {
        self.at(format_args!("/names"))
    }

    /// Tells one's name.
    pub(crate) fn me(self) -> String {
        self.at(format_args!("/me"))
    }

    /// Invites somebody.
    pub(crate) fn people(self) -> String {
        self.at(format_args!("/people"))
    }

    /// Lets somebody see other courses.
    pub(crate) fn courses_of(self, person: i64) -> String {
        self.at(format_args!("/people/{person}/courses"))
    }

    /// Lets somebody in no more.
    pub(crate) fn dismiss(self, person: i64) -> String {
        self.at(format_args!("/people/{person}/dismiss"))
    }

    /// Divides the works of an assignment.
    pub(crate) fn shares(self, assignment: i64) -> String {
        self.at(format_args!("/a/{assignment}/shares"))
    }

    /// A new assignment.
    pub(crate) fn new_assignment(self) -> String {
        self.at(format_args!("/new"))
    }

    /// What was found in an upload, before it is taken in.
    pub(crate) fn intake(self, id: &str) -> String {
        self.at(format_args!("/new/{id}"))
    }

    /// A file of a work as it was handed in.
    pub(crate) fn original(self, work: i64, place: usize) -> String {
        self.at(format_args!("/w/{work}/file/{place}"))
    }

    /// One submission, graded live: the form.
    pub(crate) fn trials(self) -> String {
        self.at(format_args!("/try"))
    }

    /// Makes the teacher's link anew.
    pub(crate) fn link(self) -> String {
        self.at(format_args!("/link"))
    }

    /// Lets a browser out.
    pub(crate) fn let_out(self, session: i64) -> String {
        self.at(format_args!("/browsers/{session}/out"))
    }
}
