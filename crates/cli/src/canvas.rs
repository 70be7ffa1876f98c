//! `tandem canvas`: a course of Canvas by its API. [`fetch`] makes the files that Canvas's pages give out, and [`send`] fills
//! in what those would take back, so that all rules are those of files.

mod api;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tandem_gradebook::Gradebook;
use tandem_gradebook::exports::{Target, Written, keep};
use tandem_gradebook::store::SheetFile;
use tandem_grading::export::Choice;
use tandem_grading::{CriterionDraft, Draft, LevelDraft};

use self::api::{Assignment, Canvas, Criterion, Submission};
use crate::environment::Environment;
use crate::progress::Reporter;
use crate::{course, files, output};

/// So many students may be refused before nobody else is tried.
const MAX_REFUSED: usize = 20;
/// What Canvas's own table has for who is excused.
const EXCUSED: &str = "EX";
/// Most bytes of a file with a token.
const MAX_TOKEN_BYTES: u64 = 4 << 10;
/// Most bytes of a file's name.
const MAX_NAME_BYTES: usize = 150;
/// Most letters of a student's name in that of a file.
const MAX_LETTERS: usize = 30;
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
    /// Sends grades also to who handed in again in Canvas since their work was taken in.
    #[arg(long)]
    resubmitted: bool,
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
    if out.exists() {
        bail!(
            "{} is there already: name another --out, or delete it",
            out.display()
        );
    }
    files::make_private(out)?;
    let folder = out.join("submissions");
    std::fs::create_dir(&folder)?;
    let (mut students, mut groups, mut missing) = (0, BTreeSet::new(), Vec::new());
    let reporter = Reporter::new("fetching", all.len());
    for one in &all {
        // Canvas gives the grade of one to all of a group: the first who has its work.
        let group = one.group.as_ref().and_then(|group| group.id);
        let group = group.filter(|_| assignment.is_of_groups());
        if group.is_some_and(|id| groups.contains(&id)) {
            reporter.advance();
            continue;
        }
        match write_submission(canvas, one, &folder).await? {
            Ok(true) => {
                students += 1;
                groups.extend(group);
            }
            Ok(false) => {}
            Err(fault) => missing.push(fault),
        }
        reporter.advance();
    }
    reporter.finish();
    std::fs::write(out.join("gradebook.csv"), table(&assignment, &all)?)?;
    let rubric = rubric(&assignment);
    let has_rubric = !rubric.criteria.is_empty();
    if has_rubric {
        std::fs::write(out.join("rubric.yaml"), rubric.source())?;
    }
    let place = out.display();
    output::print(&format!(
        "{students} of {} students or groups handed something in: {place}/submissions\n\
         students and grades: {place}/gradebook.csv",
        all.len() - assigned_to_others(&assignment, &all)
    ))?;
    output::print(&match has_rubric {
        true => format!(
            "rubric, to be looked through: {place}/rubric.yaml, {} criteria",
            rubric.criteria.len()
        ),
        false => "Canvas has no rubric: begin one on the page of a new assignment".to_owned(),
    })?;
    for fault in &missing {
        output::print(&format!("not fetched: {fault}"))?;
    }
    Ok(match missing.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(course::SOME_LEFT),
    })
}

/// How many students stand behind another one of their group.
fn assigned_to_others(assignment: &Assignment, all: &[Submission]) -> usize {
    let groups = all.iter().filter_map(|one| one.group.as_ref()?.id);
    let groups: Vec<u64> = groups.filter(|_| assignment.is_of_groups()).collect();
    let different: BTreeSet<&u64> = groups.iter().collect();
    groups.len() - different.len()
}

/// Writes what a student handed in under the names that Canvas's own zip has; false if that is nothing. Of what cannot be
/// fetched whole there is nothing then, as a part would be graded like the whole; and the reason.
async fn write_submission(
    canvas: &Canvas,
    one: &Submission,
    folder: &Path,
) -> anyhow::Result<Result<bool, String>> {
    let name = name_of(one);
    let letters = name.to_lowercase();
    let letters = letters.chars().filter(|c| c.is_alphanumeric());
    let letters: String = letters.take(MAX_LETTERS).collect();
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
    let mut written = Vec::new();
    if let Some((kind, text)) = text {
        let path = folder.join(format!("{begin}_{kind}.html"));
        std::fs::write(&path, text)?;
        written.push(path);
    }
    for attachment in &one.attachments {
        let file = plain(attachment.display_name.as_deref().unwrap_or("file"));
        let path = folder.join(format!("{begin}_{}_{file}", attachment.id));
        written.push(path.clone());
        if let Err(error) = canvas.fetch(attachment, &path).await {
            for path in written.iter().filter(|path| path.exists()) {
                std::fs::remove_file(path)?;
            }
            return Ok(Err(format!("{name}: {file}: {}", output::explain(&error))));
        }
    }
    Ok(Ok(!written.is_empty()))
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
    // What may be taken for the mark between cells is none.
    let title = shown(&assignment.name).replace(';', ",");
    let column = format!("{title} ({})", assignment.id);
    let known = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"];
    writer.write_record(known.into_iter().chain([column.as_str()]))?;
    let points = assignment.points_possible.map(|p| p.to_string());
    let points = points.unwrap_or_default();
    writer.write_record(["    Points Possible", "", "", "", "", &points])?;
    for one in all {
        let cells = match &one.user {
            Some(user) => [&user.sis_user_id, &user.login_id],
            None => [&None; 2],
        };
        let [school, login] = cells.map(|cell| shown(cell.as_deref().unwrap_or_default()));
        let score = match (one.excused, one.given()) {
            (Some(true), _) => EXCUSED.to_owned(),
            (_, Some(score)) => score.to_string(),
            (_, None) => String::new(),
        };
        let id = one.user_id.to_string();
        writer.write_record([&name_of(one), &id, &school, &login, "", &score])?;
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
    let stale = match arguments.resubmitted {
        true => Vec::new(),
        false => stale(&gradebook, &written, &all)?,
    };
    let parcels = parcels(&written, &all, &stale, arguments.with_feedback)?;
    output::print(&course::account(&written, &counts, false))?;
    for one in all.iter().filter(|one| stale.contains(&one.user_id)) {
        output::print(&format!(
            "left out: {}: handed in again in Canvas since it was taken in; fetch it again, or send with --resubmitted",
            name_of(one)
        ))?;
    }
    if ours.title.trim() != theirs.name.trim() {
        output::print(&format!(
            "the assignment is \"{}\" in Canvas and \"{}\" here",
            shown(&theirs.name),
            ours.title
        ))?;
    }
    for one in parcels.iter().filter(|one| one.comment.is_some()) {
        output::print(&format!("comment: {}", one.name))?;
    }
    if !arguments.dry_run {
        let refused = deliver(canvas, &arguments.place, &theirs, &parcels).await?;
        for why in &refused {
            output::print(&format!("not in Canvas as it should be: {why}"))?;
        }
        let sent = parcels.len() - refused.len();
        output::print(&format!("sent to Canvas: {sent} students"))?;
        if !refused.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
        keep(gradebook.store(), ours.id, &written)?;
    }
    match stale.is_empty() {
        true => Ok(course::exit_code(&written)),
        false => Ok(ExitCode::from(course::SOME_LEFT)),
    }
}

/// A student as Canvas's own table has them.
fn name_of(one: &Submission) -> String {
    let user = one.user.as_ref();
    let name = user.and_then(|user| user.sortable_name.as_deref().or(user.name.as_deref()));
    shown(name.unwrap_or_default())
}

/// Students who handed in again since their work was taken in.
fn stale(gradebook: &Gradebook, written: &Written, all: &[Submission]) -> anyhow::Result<Vec<u64>> {
    let mut stale = Vec::new();
    for filled in &written.export.filled {
        let one = all.get(filled.place.wrapping_sub(HEAD));
        let Some((one, at)) = one.and_then(|one| Some((one, one.submitted_at.as_ref()?))) else {
            continue;
        };
        let work = written.works[filled.row].0;
        let taken_in = gradebook.store().read_now(|reader| reader.taken_in(work))?;
        let at: jiff::Timestamp = at
            .parse()
            .with_context(|| format!("Canvas says \"{}\" for a time", shown(at)))?;
        if at.as_millisecond() > taken_in {
            stale.push(one.user_id);
        }
    }
    Ok(stale)
}

/// What is not in Canvas yet, of the grades that a table was filled in with.
fn parcels(
    written: &Written,
    all: &[Submission],
    stale: &[u64],
    with_feedback: bool,
) -> anyhow::Result<Vec<Parcel>> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(written.export.bytes.as_slice());
    let rows = reader
        .records()
        .collect::<Result<Vec<csv::StringRecord>, _>>()?;
    let mut parcels = Vec::new();
    for filled in &written.export.filled {
        let row = filled.place;
        let (Some(cells), Some(one)) = (rows.get(row), all.get(row.wrapping_sub(HEAD))) else {
            bail!("row {row} of the table is no student's");
        };
        if stale.contains(&one.user_id) {
            continue;
        }
        let cell = cells.get(GRADE).unwrap_or_default();
        let points: f64 = cell.parse()?;
        let is_there = one
            .given()
            .is_some_and(|score| (score - points).abs() < f64::EPSILON);
        let text = Some(&filled.feedback).filter(|text| with_feedback && !text.trim().is_empty());
        let parcel = Parcel {
            user: one.user_id,
            name: name_of(one),
            points: (!is_there).then(|| cell.to_owned()),
            comment: text.filter(|text| !has_comment(one, text)).cloned(),
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
    let is_same =
        |there: &str| words(there) == words(text) || words(&readable(there)) == words(text);
    let comments = one.submission_comments.iter();
    let mut comments = comments.filter_map(|comment| comment.comment.as_deref());
    comments.any(is_same)
}

/// Sends all, one after the other; returns who is not as it should be, and why. What was sent is not sent again. Ends at once
/// where Canvas does not answer at all.
async fn deliver(
    canvas: &Canvas,
    place: &Place,
    assignment: &Assignment,
    parcels: &[Parcel],
) -> anyhow::Result<Vec<String>> {
    let mut refused = Vec::new();
    for one in parcels {
        let at = (place.course, place.assignment);
        let what = (one.points.as_deref(), one.comment.as_deref());
        let graded = canvas.grade(at, one.user, what, assignment.is_of_groups());
        if let Err(error) = graded.await {
            refused.push(format!("{}: {}", one.name, output::explain(&error)));
        }
        if refused.len() > MAX_REFUSED {
            bail!(
                "nothing more was sent, as too much is refused: {}",
                refused.join("; ")
            );
        }
    }
    Ok(refused)
}
