//! Words that a teacher knows, for what the program tells apart.

use tandem_grading::FindingKind;
use tandem_grading::review::State;

/// What to look at, in a few words.
pub(crate) const fn finding(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::Orders => "⚑ the text speaks to the grader",
        FindingKind::Hidden => "⚑ has invisible characters",
        FindingKind::NoAnswer => "failed: no answer",
        FindingKind::Refused => "failed: the model did not take it",
        FindingKind::Cut => "the answer was cut",
        FindingKind::Unusable => "failed: the answer could not be used",
        FindingKind::TooLong => "too long for the model",
        FindingKind::Unreadable => "cannot be read",
        FindingKind::LeftOut => "a file could not be read",
        FindingKind::Evidence => "a quote is missing, or not in the file",
        FindingKind::Absence => "something is said to be missing: see for yourself",
        FindingKind::TooShort => "an answer is shorter than asked for",
        FindingKind::Rationale => "a reason is missing",
        FindingKind::Disclosed => "the feedback gives the solution away",
        FindingKind::UnknownCode => "the feedback names code that is in no file",
        FindingKind::TextRule => "the feedback is not as asked for",
        FindingKind::NoText => "there is no feedback",
        FindingKind::Encoding => "odd letters: check how it was read",
        FindingKind::Untouched => "nothing was written",
        FindingKind::Other => "something to look at",
    }
}

/// How far a work is, where nothing more is to say.
pub(crate) const fn state(state: State) -> &'static str {
    match state {
        State::ToReview => "to review",
        State::Failed => "failed",
        State::ToApprove => "to approve",
        State::NotAttempted => "not attempted",
        State::Ungraded => "not graded yet",
        State::Approved => "approved",
        State::WithoutPoints => "settled without points",
    }
}

/// What to do about it.
pub(crate) const fn advice(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::Orders | FindingKind::Hidden => "Look at it: no points were changed for it.",
        FindingKind::NoAnswer => "Try these again, once the machines answer.",
        FindingKind::Refused => "Look at what tandem printed, then try again.",
        FindingKind::Cut => "Allow longer answers, or grade them by hand.",
        FindingKind::Unusable => "Try these again, or by another model.",
        FindingKind::TooLong => "Start the model with more context, or grade them by hand.",
        FindingKind::Unreadable | FindingKind::LeftOut => {
            "Ask for them again, or grade them by hand."
        }
        FindingKind::Evidence
        | FindingKind::Absence
        | FindingKind::TooShort
        | FindingKind::Rationale => "Look at the points of these.",
        FindingKind::TextRule
        | FindingKind::Disclosed
        | FindingKind::UnknownCode
        | FindingKind::NoText => "Write or change the feedback.",
        FindingKind::Encoding => "See whether the letters are right.",
        FindingKind::Untouched => "See whether something was handed in.",
        FindingKind::Other => "Look at these.",
    }
}

/// True if the same may go well when it is tried again.
pub(crate) const fn may_pass(kind: FindingKind) -> bool {
    matches!(
        kind,
        FindingKind::NoAnswer | FindingKind::Refused | FindingKind::Unusable | FindingKind::Cut
    )
}
