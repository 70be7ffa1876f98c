//! `tandem canvas`: a course of Canvas by its API. [`fetch`] makes the files that Canvas's pages give out, and [`send`] fills
//! in what those would take back, so that all rules are those of files.

mod api;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Deserialize;
use tandem_gradebook::Gradebook;
use tandem_gradebook::exports::{Target, Written, keep};
use tandem_gradebook::store::SheetFile;
use tandem_grading::export::{Choice, Format};
use tandem_grading::{CriterionDraft, Draft, LevelDraft};

use self::api::{Assignment, Canvas, Criterion, Submission};
use crate::environment::Environment;
use crate::progress::Reporter;
use crate::{course, files, output};

/// Most bytes of a file with a token.
const MAX_TOKEN_BYTES: u64 = 4 << 10;
/// Most bytes of a file's name.
const MAX_NAME_BYTES: usize = 150;
/// The column of the grade in the table of a course, and its rows before those of students.
const GRADE: usize = 5;
const HEAD: usize = 2;

/// Arguments of `tandem canvas`.
#[derive(Args)]
pub struct Arguments {
    /// Where Canvas is, such as `https://school.instructure.com`.
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    /// A file with an access token of yours, which nobody else may read (mode 0600). Canvas makes one under Account →
    /// Settings → New Access Token.
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the courses in which you teach, or the assignments of one, with their numbers.
    List(List),
    /// Fetches submissions, students and rubric of an assignment into a folder, for `tandem grade` or a new assignment.
    Fetch(Fetch),
    /// Sends the approved grades of the gradebook, and feedback as comments; what is there already is not sent again.
    Send(Send),
}

#[derive(Args)]
struct List {
    /// The course whose assignments are listed.
    #[arg(long, value_name = "NUMBER")]
    course: Option<u64>,
}

#[derive(Args)]
struct Place {
    /// The course in Canvas.
    #[arg(long, value_name = "NUMBER")]
    course: u64,
    /// The assignment in Canvas.
    #[arg(long, value_name = "NUMBER")]
    assignment: u64,
}

#[derive(Args)]
struct Fetch {
    #[command(flatten)]
    place: Place,
    /// The folder; there must be none.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 everything that is approved is in Canvas; 3 some of it is not, standard output says why; \
                        1 not everything was sent; 2 wrong arguments."
)]
struct Send {
    #[command(flatten)]
    place: Place,
    /// The assignment in the gradebook: its title, COURSE/TITLE, or its number; `tandem course list` shows them.
    from: String,
    /// The gradebook [default: the one of this user].
    #[arg(long, value_name = "FILE")]
    gradebook: Option<PathBuf>,
    /// Sends the feedback, too, as a comment.
    #[arg(long)]
    with_feedback: bool,
    /// Sends points as the same share of the assignment's maximum, where the rubric has another one.
    #[arg(long)]
    same_share: bool,
    /// Sends nothing: shows what would change.
    #[arg(long)]
    dry_run: bool,
}

/// Does what was asked for.
///
/// # Errors
/// If Canvas does not answer as documented, or something cannot be read or written.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let (Some(url), Some(file)) = (&arguments.url, &arguments.token_file) else {
        bail!("--url and --token-file are needed: where Canvas is, and a token of yours");
    };
    let token = files::read_secret(file, MAX_TOKEN_BYTES)?;
    let canvas = Canvas::new(url, token.trim())?;
    match arguments.command {
        Command::List(List { course: None }) => {
            for course in canvas.courses().await? {
                let name = course.name.unwrap_or_default();
                output::print(&format!("{:>8}  {}", course.id, shown(&name)))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::List(List { course: Some(id) }) => {
            for one in canvas.assignments(id).await? {
                output::print(&format!("{:>8}  {}", one.id, shown(&one.name)))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Fetch(arguments) => fetch(&canvas, &arguments).await,
        Command::Send(arguments) => send(&canvas, &arguments, environment).await,
    }
}

/// A text of a server on a terminal.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// An assignment, and what its students handed in, each of them once.
async fn found(canvas: &Canvas, place: &Place) -> anyhow::Result<(Assignment, Vec<Submission>)> {
    let assignment = canvas.assignment(place.course, place.assignment).await?;
    if assignment.anonymize_students == Some(true) {
        bail!(
            "Canvas hides who the students of \"{}\" are; end that in its settings, or use the files of its pages",
            shown(&assignment.name)
        );
    }
    let mut all = canvas.submissions(place.course, place.assignment).await?;
    all.sort_by_key(|one| one.user_id);
    all.dedup_by_key(|one| one.user_id);
    if all.is_empty() {
        bail!("\"{}\" has no students", shown(&assignment.name));
    }
    Ok((assignment, all))
}

async fn fetch(canvas: &Canvas, arguments: &Fetch) -> anyhow::Result<ExitCode> {
    let (assignment, all) = found(canvas, &arguments.place).await?;
    let out = &arguments.out;
    files::make_private(out)?;
    let folder = out.join("submissions");
    std::fs::create_dir(&folder)?;
    let (mut students, mut groups) = (0, BTreeSet::new());
    let reporter = Reporter::new("fetching", all.len());
    for one in &all {
        // Canvas gives the grade of one to all of a group.
        let group = one.group.as_ref().and_then(|group| group.id);
        let is_first = group.is_none_or(|id| !assignment.is_of_groups() || groups.insert(id));
        if is_first && write_submission(canvas, one, &folder).await? {
            students += 1;
        }
        reporter.advance();
    }
    reporter.finish();
    std::fs::write(out.join("gradebook.csv"), table(&assignment, &all)?)?;
    let rubric = rubric(&assignment);
    std::fs::write(out.join("rubric.yaml"), rubric.source())?;
    let shown = out.display();
    output::print(&format!(
        "{students} of {} students handed something in: {shown}/submissions\n\
         students and grades: {shown}/gradebook.csv\nrubric, to be looked through: {shown}/rubric.yaml, {} criteria",
        all.len(),
        rubric.criteria.len()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes what a student handed in under the names that Canvas's own zip has; false if that is nothing.
async fn write_submission(
    canvas: &Canvas,
    one: &Submission,
    folder: &Path,
) -> anyhow::Result<bool> {
    let user = one.user.as_ref();
    let name = user.and_then(|user| user.sortable_name.as_deref().or(user.name.as_deref()));
    let letters = name.unwrap_or_default().to_lowercase();
    let letters: String = letters.chars().filter(|c| c.is_alphanumeric()).collect();
    let is_number = letters.bytes().all(|b| b.is_ascii_digit());
    let late = if one.late { "_LATE" } else { "" };
    let student = if is_number { "student" } else { "" };
    let begin = format!("{student}{letters}{late}_{}", one.user_id);
    let kind = one.submission_type.as_deref().unwrap_or_default();
    let text = match (kind, &one.body, &one.url) {
        ("online_text_entry", Some(body), _) => Some(("text", body)),
        ("online_url", _, Some(url)) => Some(("link", url)),
        _ => None,
    };
    if let Some((kind, text)) = text {
        std::fs::write(folder.join(format!("{begin}_{kind}.html")), text)?;
    }
    for attachment in &one.attachments {
        let file = plain(attachment.display_name.as_deref().unwrap_or("file"));
        let path = folder.join(format!("{begin}_{}_{file}", attachment.id));
        let fetched = canvas.fetch(attachment, &path).await;
        fetched.with_context(|| format!("the file {} of student {}", file, one.user_id))?;
    }
    Ok(text.is_some() || !one.attachments.is_empty())
}

/// A name of a file that leads nowhere.
fn plain(name: &str) -> String {
    let is_odd = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':');
    let name = name.replace(is_odd, "-");
    // What begins with a point is hidden, and passed over.
    let mut name = name.trim_start_matches('.').to_owned();
    if name.is_empty() {
        "file".clone_into(&mut name);
    }
    // The end tells the kind.
    while name.len() > MAX_NAME_BYTES {
        name.remove(0);
    }
    name
}

/// The students of an assignment with the grades that they have, as Canvas's own gradebook has them.
fn table(assignment: &Assignment, all: &[Submission]) -> anyhow::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let column = format!("{} ({})", assignment.name, assignment.id);
    let known = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"];
    writer.write_record(known.into_iter().chain([column.as_str()]))?;
    let points = assignment.points_possible.map(|p| p.to_string());
    let points = points.unwrap_or_default();
    writer.write_record(["    Points Possible", "", "", "", "", &points])?;
    for one in all {
        let cells = match &one.user {
            Some(user) => [
                user.sortable_name.as_ref().or(user.name.as_ref()),
                user.sis_user_id.as_ref(),
                user.login_id.as_ref(),
            ],
            None => [None; 3],
        };
        let [name, school, login] = cells.map(|cell| cell.cloned().unwrap_or_default());
        let score = one.score.map(|score| score.to_string()).unwrap_or_default();
        let id = one.user_id.to_string();
        writer.write_record([&name, &id, &school, &login, "", &score])?;
    }
    Ok(writer.into_inner()?)
}

/// The rubric that Canvas has, or none of its criteria; with the task, it is one to begin with.
fn rubric(assignment: &Assignment) -> Draft {
    let criterion = |one: &Criterion| {
        let text = |text: &Option<String>| readable(text.as_deref().unwrap_or_default());
        let mut levels: Vec<LevelDraft> = (one.ratings.iter())
            .map(|rating| LevelDraft {
                label: text(&rating.description),
                points: rating.points,
                description: text(&rating.long_description),
            })
            .collect();
        for level in levels.iter_mut().filter(|l| l.description.is_empty()) {
            level.description.clone_from(&level.label);
        }
        let title = text(&one.description);
        let description = match text(&one.long_description) {
            long if long.is_empty() => title.clone(),
            long => long,
        };
        CriterionDraft {
            title,
            description,
            max_points: one.points,
            levels: (levels.len() > 1).then_some(levels),
            step: (one.ratings.len() < 2).then_some(1.0),
            ..CriterionDraft::default()
        }
    };
    let mut draft = Draft {
        title: assignment.name.clone(),
        task: readable(assignment.description.as_deref().unwrap_or_default()),
        criteria: assignment.rubric.iter().map(criterion).collect(),
        ..Draft::default()
    };
    draft.number();
    draft
}

/// The text of a piece of HTML: a start that a person reads through.
fn readable(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        let Some((tag, after)) = tag.split_once('>') else {
            text.push('<');
            rest = tag;
            break;
        };
        let name = tag.trim_start_matches('/').to_lowercase();
        let is_block = ["p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "pre"]
            .iter()
            .any(|block| name == *block || name.starts_with(&format!("{block} ")));
        if is_block || name == "br/" {
            text.push('\n');
        }
        rest = after;
    }
    text.push_str(rest);
    let entities = [
        ("&nbsp;", " "),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    for (entity, sign) in entities {
        text = text.replace(entity, sign);
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut text = lines.join("\n");
    while text.contains("\n\n\n") {
        text = text.replace("\n\n\n", "\n\n");
    }
    text.trim().to_owned()
}

/// What goes to one student.
struct Parcel {
    user: u64,
    name: String,
    points: Option<String>,
    comment: Option<String>,
}

async fn send(
    canvas: &Canvas,
    arguments: &Send,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    let gradebook = course::open(arguments.gradebook.as_deref(), environment)?;
    let ours = course::assignment(&gradebook, &arguments.from)?;
    let (theirs, all) = found(canvas, &arguments.place).await?;
    if let Some(kind @ ("pass_fail" | "not_graded")) = theirs.grading_type.as_deref() {
        bail!(
            "\"{}\" takes no points in Canvas: it is {kind}",
            shown(&theirs.name)
        );
    }
    let file = SheetFile {
        name: format!("Canvas, {}", shown(&theirs.name)),
        bytes: table(&theirs, &all)?,
    };
    let choice = Choice {
        column: Some(GRADE),
        scales: arguments.same_share,
        with_feedback: false,
    };
    let (written, counts) = course::preview(&gradebook, ours.id, &Target::Sheet(file, choice))?;
    let texts = match arguments.with_feedback {
        true => texts(&gradebook, ours.id)?,
        false => BTreeMap::new(),
    };
    let parcels = parcels(&written, &all, &texts)?;
    output::print(&course::account(&written, &counts, false))?;
    let comments = parcels.iter().filter(|one| one.comment.is_some()).count();
    if arguments.with_feedback {
        output::print(&format!("{comments} comments are not there yet"))?;
    }
    if !arguments.dry_run {
        deliver(canvas, &arguments.place, &theirs, &parcels).await?;
        keep(gradebook.store(), ours.id, &written)?;
        output::print(&format!("sent to Canvas: {} students", parcels.len()))?;
    }
    Ok(course::exit_code(&written))
}

/// The feedback that was approved, by the name of the submission.
fn texts(gradebook: &Gradebook, assignment: i64) -> anyhow::Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Grades {
        submissions: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        name: String,
        feedback: String,
    }
    let (written, _) = course::preview(gradebook, assignment, &Target::File(Format::Json))?;
    let grades: Grades = serde_json::from_slice(&written.export.bytes)?;
    let texts = grades.submissions.into_iter();
    Ok(texts.map(|one| (one.name, one.feedback)).collect())
}

/// What is not in Canvas yet, of the grades that a table was filled in with.
fn parcels(
    written: &Written,
    all: &[Submission],
    texts: &BTreeMap<String, String>,
) -> anyhow::Result<Vec<Parcel>> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(written.export.bytes.as_slice());
    let rows = reader
        .records()
        .collect::<Result<Vec<csv::StringRecord>, _>>()?;
    let mut parcels = Vec::new();
    for (row, work) in &written.export.filled {
        let (Some(cells), Some(one)) = (rows.get(*row), all.get(row.wrapping_sub(HEAD))) else {
            bail!("row {row} of the table is no student's");
        };
        let cell = cells.get(GRADE).unwrap_or_default();
        let points: f64 = cell.parse()?;
        let is_there = one
            .score
            .is_some_and(|score| (score - points).abs() < f64::EPSILON);
        let text = texts.get(&written.works[*work].1);
        let text = text.filter(|text| !text.trim().is_empty() && !has_comment(one, text));
        let parcel = Parcel {
            user: one.user_id,
            name: cells.get(0).unwrap_or_default().to_owned(),
            points: (!is_there).then(|| cell.to_owned()),
            comment: text.cloned(),
        };
        if parcel.points.is_some() || parcel.comment.is_some() {
            parcels.push(parcel);
        }
    }
    Ok(parcels)
}

/// Whether somebody has said the same there, however it is broken into lines.
fn has_comment(one: &Submission, text: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let comments = one.submission_comments.iter();
    let mut comments = comments.filter_map(|comment| comment.comment.as_deref());
    comments.any(|there| words(there) == words(text))
}

/// Sends all, one after the other. What was sent is there: the next time it is not sent again.
async fn deliver(
    canvas: &Canvas,
    place: &Place,
    assignment: &Assignment,
    parcels: &[Parcel],
) -> anyhow::Result<()> {
    for (sent, one) in parcels.iter().enumerate() {
        let at = (place.course, place.assignment);
        let what = (one.points.as_deref(), one.comment.as_deref());
        let graded = canvas.grade(at, one.user, what, assignment.is_of_groups());
        graded.await.with_context(|| {
            let (of, name) = (parcels.len(), shown(&one.name));
            format!("{name}: not sent; {sent} of {of} were, and are not sent again")
        })?;
    }
    Ok(())
}
