//! Named limits of the pages.

use std::time::Duration;

/// Most bytes of a form.
pub const MAX_FORM_BYTES: usize = 256 << 10;
/// Most bytes of a submission that is pasted.
pub const MAX_PASTED_BYTES: usize = 24 << 20;
/// Most bytes of a teacher's own gradebook, with what a form puts around it.
pub const MAX_SHEET_BYTES: usize = tandem_grading::limits::MAX_TABLE_BYTES + (64 << 10);
/// Most bytes of an assignment that is uploaded.
pub const MAX_UPLOAD_BYTES: usize = 1 << 30;
/// Most files of it.
pub const MAX_UPLOADED_FILES: usize = 2_000;
/// Uploads that are remembered until somebody takes them in.
pub const MAX_INTAKES: usize = 4;
/// Most names of files that are listed of a submission that was uploaded.
pub const MAX_LISTED_FILES: usize = 4;
/// Trials that are remembered.
pub const MAX_TRIALS: usize = 8;
/// Most findings that are listed beside a work.
pub const MAX_FINDINGS: usize = 20;
/// Most entries of the queue that a page lists; the others are counted.
pub const MAX_QUEUE: usize = 200;
/// Most values of a criterion that are shown as buttons.
pub const MAX_BUTTONS: usize = 11;
/// Most bytes of one submission that get colours.
pub const MAX_COLOURED: usize = 128 << 10;
/// Most changes that undo looks back over.
pub const MAX_UNDO: u32 = 50;
/// What is approved sooner than that after it came to the screen is counted as approved without being read, in milliseconds.
pub const QUICK_MS: u32 = 2_000;
/// Most characters of a name of somebody who grades.
pub const MAX_NAME_CHARS: usize = 80;
/// Most characters that are kept of what a browser calls itself.
pub const MAX_AGENT_CHARS: usize = 200;
/// Most characters of the key that a form carries.
pub const MAX_KEY_CHARS: usize = 64;
/// How long a browser is let in, in seconds.
pub const SESSION_SECONDS: u64 = 180 * 24 * 3600;
/// How long a model may take to propose criteria.
pub const PROPOSAL_TIME: Duration = Duration::from_secs(15 * 60);
/// Most works that are chosen at once to be graded blind.
pub const MAX_ANCHORS: usize = 100;
/// As many are proposed.
pub const DEFAULT_ANCHORS: usize = 20;
/// Most values of a criterion that are plotted.
pub const MAX_PLOT_VALUES: usize = 13;
/// Most changes that a page lists between two runs.
pub const MAX_CHANGES: usize = 100;
/// Most earlier comments that are proposed for another line.
pub const MAX_EARLIER_COMMENTS: usize = 50;
