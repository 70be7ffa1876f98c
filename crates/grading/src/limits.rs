//! Named limits of the grading. What is beyond one of them is refused or reported, never silently cut.

use std::time::Duration;

/// Most bytes of a rubric file.
pub const MAX_RUBRIC_BYTES: u64 = 256 << 10;
/// Most criteria in a rubric.
pub const MAX_CRITERIA: usize = 32;
/// Most levels of one criterion, or values that its step allows.
pub const MAX_LEVELS: usize = 201;
/// Most characters of an id.
pub const MAX_ID_CHARS: usize = 40;
/// Most characters of a title or a label.
pub const MAX_TITLE_CHARS: usize = 200;
/// Most characters of a description.
pub const MAX_DESCRIPTION_CHARS: usize = 2_000;
/// Most characters of the task or of the guidelines.
pub const MAX_TASK_CHARS: usize = 20_000;
/// Most templates, and most solutions, of one rubric.
pub const MAX_MATERIALS: usize = 16;

/// Most bytes of all solutions of one rubric.
pub const MAX_SOLUTION_BYTES: usize = 128 << 10;
/// Most words of a reflection that a rubric may ask for at least.
pub const MAX_LEAST_WORDS: usize = 2_000;
/// Words of a short feedback.
pub const SHORT_WORDS: usize = 60;
/// Words of a feedback of medium length.
pub const MEDIUM_WORDS: usize = 120;
/// Words of a long feedback.
pub const LONG_WORDS: usize = 250;
/// Pieces of code or words in a row that a feedback must not share with a solution.
pub const DISCLOSED_PIECES: usize = 7;

/// Lines of a solution, each of [`DISCLOSED_LINE_PIECES`] pieces, of which a feedback may not have most.
pub const DISCLOSED_LINES: usize = 3;
/// Pieces of such a line.
pub const DISCLOSED_LINE_PIECES: usize = 3;

/// Most submissions in one run.
pub const MAX_SUBMISSIONS: usize = 10_000;
/// Most bytes that come out of all archives that are read together.
pub const MAX_ARCHIVE_BYTES: u64 = 4 << 30;
/// Most files with results of tests.
pub const MAX_TEST_FILES: usize = 20_000;
/// Deepest folder that is searched for them.
pub const MAX_TEST_DEPTH: usize = 24;
/// Most nodes of one in XML.
pub const MAX_TEST_NODES: u32 = 200_000;
/// Most tests of a submission that are named.
pub const MAX_TESTS: usize = 150;
/// Most characters of a test's name, and of what it said.
pub const MAX_TEST_CHARS: usize = 240;
/// Most bytes of an archive in an archive, and of all archives of one submission.
pub const MAX_INNER_ARCHIVE_BYTES: u64 = 64 << 20;
/// Most bytes that an archive of tar unpacks to, which is done in memory.
pub const MAX_TAR_BYTES: u64 = 512 << 20;
/// Most bytes of one file that is kept as it was handed in.
pub const MAX_ORIGINAL_BYTES: u64 = 32 << 20;
/// Most bytes of all files of a submission that are.
pub const MAX_ORIGINALS_BYTES: u64 = 64 << 20;
/// Most files in an archive.
pub const MAX_ARCHIVE_MEMBERS: usize = 200_000;
/// Archives in archives, the first included.
pub const MAX_ARCHIVE_DEPTH: usize = 3;
/// Most files in one submission.
pub const MAX_FILES: usize = 256;
/// Deepest sub-folder that is searched for the files of one submission.
pub const MAX_FOLDER_DEPTH: usize = 8;
/// Most entries that are looked at in one submission's folder.
pub const MAX_FOLDER_ENTRIES: usize = 4_096;
/// Most bytes of one source file.
pub const MAX_SOURCE_BYTES: u64 = 1 << 20;
/// Most bytes of one notebook, images included.
pub const MAX_NOTEBOOK_BYTES: u64 = 16 << 20;
/// Tokens that a rubric may have that a model proposes, at least.
pub const MAX_PROPOSAL_TOKENS: u32 = 2500;
/// Longest line of code that is taken apart, for its colours and for its text, in bytes.
pub const MAX_COLOURED_LINE: usize = 512;
/// Most pictures of one notebook that are shown to whoever grades.
pub const MAX_PICTURES: usize = 64;
/// Most bytes of such a picture.
pub const MAX_PICTURE_BYTES: usize = 4 << 20;
/// Most pixels of such a picture, because a few bytes may stand for many.
pub const MAX_PICTURE_PIXELS: u64 = 40_000_000;
/// Most bytes that one submission may put into a prompt.
pub const MAX_PROMPT_TEXT_BYTES: usize = 512 << 10;
/// Most bytes of text that are read of one submission, so that those that are too long for a prompt can still be seen.
pub const MAX_READ_BYTES: usize = 4 * MAX_PROMPT_TEXT_BYTES;
/// Most cells of one notebook.
pub const MAX_CELLS: usize = 2_000;
/// Lines kept at each end of a long cell output.
pub const OUTPUT_EDGE_LINES: usize = 20;
/// Most characters of one line of a cell output.
pub const MAX_OUTPUT_LINE_CHARS: usize = 400;

/// Fewest lines in a row, equal to those of a template, that are left out of a prompt.
pub const MIN_ELIDED_LINES: usize = 8;
/// Such lines that are shown beside each change.
pub const ELISION_CONTEXT: usize = 3;
/// Most lines of a file that is compared with a template for this.
pub const MAX_ELISION_LINES: usize = 5_000;

/// Most pieces of evidence for one criterion.
pub const MAX_EVIDENCE: usize = 2;
/// Most lines of a quote in a report.
pub const MAX_QUOTE_LINES: usize = 12;
/// Characters of a rationale, unless the configuration says otherwise.
pub const DEFAULT_RATIONALE_CHARS: u32 = 200;
/// Longest rationale that a configuration may ask for, in characters.
pub const MAX_RATIONALE_CHARS: u32 = 4_000;

/// Submissions whose two prompts are counted at once; a node of tandem counts four.
pub const MAX_COUNTING: usize = 2;
/// Bytes of a prompt that are taken for a token where the server does not count.
pub const BYTES_PER_TOKEN: usize = 3;
/// Most bytes of a server's count.
pub const MAX_COUNT_BYTES: usize = 32 << 20;
/// How long nodes that are away are waited for, unless the configuration says otherwise: at the start, and by each
/// request.
pub const DEFAULT_NODE_WAIT: Duration = Duration::from_secs(60);
/// Longest pause between two attempts meanwhile.
pub const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Most bytes of one answer's text.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Most bytes of one answer's stream, framing included.
pub const MAX_STREAM_BYTES: usize = 256 << 20;
/// Most bytes of an error body that are read.
pub const MAX_ERROR_BODY_BYTES: usize = 64 << 10;
/// Most characters of a server's error message that are kept.
pub const MAX_ERROR_CHARS: usize = 300;
/// Most submissions graded at once.
pub const MAX_PARALLEL: usize = 256;
/// Attempts at one job, the first included, unless the configuration says otherwise.
pub const DEFAULT_ATTEMPTS: u32 = 3;
/// Pause before the second attempt, doubled before each further one.
pub const DEFAULT_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Longest silence of a server, the prefill of a long prompt included. Work itself is not bounded.
pub const DEFAULT_IDLE_LIMIT: Duration = Duration::from_secs(300);
/// Longest time to connect.
pub const DEFAULT_CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Most characters of a result's file name, without its extension.
pub const MAX_FILE_NAME_CHARS: usize = 80;
/// Most bytes of it: file systems allow 255, and what else it is called there needs some.
pub const MAX_FILE_NAME_BYTES: usize = 200;

/// Most items of a feedback.
pub const MAX_ITEMS: usize = 40;
/// Most comments on lines of one submission.
pub const MAX_COMMENTS: usize = 100;
/// Most characters of one of them that a person writes.
pub const MAX_ITEM_CHARS: usize = 4_000;
/// Most characters of a note for those who grade.
pub const MAX_NOTE_CHARS: usize = 10_000;

/// Most bytes of a teacher's own gradebook.
pub const MAX_TABLE_BYTES: usize = 16 << 20;
/// Most rows of it.
pub const MAX_TABLE_ROWS: usize = 50_000;
/// Most columns of it.
pub const MAX_TABLE_COLUMNS: usize = 2_000;
