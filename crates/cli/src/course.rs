//! `tandem course`: the gradebook, also where there is no model.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use tandem_cluster::Public;
use tandem_gradebook::exports::{self, Counts, ExportError, Target, Written, keep};
use tandem_gradebook::store::{Assignment, Reader, SheetFile};
use tandem_gradebook::{Gradebook, Scope};
use tandem_grading::export::{Choice, Format, Refusal, outline};
use tandem_grading::limits::{DEFAULT_NODE_WAIT, MAX_TABLE_BYTES};

use crate::address::{ANY_PORT, listen_address};
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::setup::Setup;
use crate::{files, output, shutdown, tables};

/// Exit status if something that is approved is not in the file.
pub const SOME_LEFT: u8 = 3;

/// Arguments of `tandem course`.
#[derive(Args)]
pub struct Arguments {
    /// The gradebook, such as the one that `tandem grade --out DIR` leaves in its folder [default: the one of this user].
    #[arg(long, value_name = "FILE", global = true)]
    gradebook: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves the pages of the gradebook without a model: what is graded can be reviewed and approved.
    Open(Open),
    /// Lists the assignments of the gradebook.
    List,
    /// Writes the approved grades of an assignment: into your own gradebook, or as files.
    Export(Export),
    /// Writes all of the gradebook into one file, while pages and runs go on; `--gradebook FILE` opens it.
    Backup(Backup),
    /// Deletes assignments in which nobody and nothing did anything for a while.
    Purge(Purge),
    /// Deletes an assignment, or all of one student in every course.
    Delete(Delete),
}

#[derive(Args)]
struct Backup {
    /// The file; there must be none.
    file: PathBuf,
}

#[derive(Args)]
struct Purge {
    /// Since how many days.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..))]
    unused_for: u32,
    /// Deletes nothing: shows what would go.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
struct Delete {
    /// Its title, COURSE/TITLE, or its number; `tandem course list` shows them.
    assignment: String,
    /// Instead of the assignment, all of the student who is called so in it.
    #[arg(long, value_name = "NAME")]
    student: Option<String>,
    /// Deletes nothing: shows what would go.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 everything that is approved is in the file; 3 some of it is not, standard output says \
                        why; 1 nothing was written; 2 wrong arguments."
)]
struct Export {
    /// Its title, COURSE/TITLE, or its number; `tandem course list` shows them.
    assignment: String,
    /// Your own gradebook, as Canvas or Moodle gave it, or a table with a row for each student: comes back filled in.
    #[arg(long, value_name = "FILE", required_unless_present = "form")]
    into: Option<PathBuf>,
    /// The header of the column that takes the grades [default: the one with the assignment's title].
    #[arg(long, value_name = "TITLE", requires = "into")]
    column: Option<String>,
    /// Writes points as the same share of the column's maximum, where the rubric has another one.
    #[arg(long, requires = "into")]
    same_share: bool,
    /// Writes the feedback, too, where the file has a column for it.
    #[arg(long, requires = "into")]
    with_feedback: bool,
    /// The form of a file of its own.
    #[arg(long = "as", value_name = "FORM", conflicts_with = "into", value_parser = forms())]
    form: Option<Format>,
    /// Where the file is written.
    #[arg(long, value_name = "FILE", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// Writes over a file that is there.
    #[arg(long)]
    replace: bool,
    /// Writes nothing: shows what would change.
    #[arg(long)]
    dry_run: bool,
}

fn forms() -> impl TypedValueParser<Value = Format> {
    let form = |text: String| Format::ALL.into_iter().find(|form| form.as_str() == text);
    PossibleValuesParser::new(Format::ALL.map(Format::as_str))
        .try_map(move |text| form(text).ok_or("no form"))
}

#[derive(Args)]
struct Open {
    /// Where the pages are [default: any free port of this machine].
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address)]
    listen: Option<SocketAddr>,
}

/// Does what was asked for.
///
/// # Errors
/// If the gradebook cannot be opened, or the address is taken.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let gradebook = open(arguments.gradebook.as_deref(), environment)?;
    match arguments.command {
        Command::Open(open) => {
            let home = gradebook.home().to_owned();
            let none = Setup::without_models();
            serve(&gradebook, &home, none, open.listen, DEFAULT_NODE_WAIT).await
        }
        Command::List => {
            for one in assignments(&gradebook)? {
                output::print(&format!("{:>4}  {}/{}", one.id, one.course, one.title))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Export(arguments) => export(&gradebook, &arguments),
        Command::Backup(backup) => {
            gradebook.back_up(&backup.file)?;
            output::print(&format!("written: {}", backup.file.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Purge(purge) => {
            let milliseconds = i64::from(purge.unused_for) * 24 * 3600 * 1000;
            let since = UNIX_EPOCH.elapsed()?.as_millis();
            let since = i64::try_from(since)?.saturating_sub(milliseconds);
            let unused = gradebook.unused(since)?;
            if unused.is_empty() {
                output::print("nothing is that old")?;
            }
            for unused in unused {
                delete(&gradebook, Scope::Assignment(unused.id), purge.dry_run)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Delete(arguments) => {
            let assignment = assignment(&gradebook, &arguments.assignment)?;
            let scope = match &arguments.student {
                None => Scope::Assignment(assignment.id),
                Some(name) => {
                    let read = |reader: &Reader<'_>| reader.works(assignment.id);
                    let works = gradebook.store().read_now(read)?;
                    let mut found = works.iter().filter(|work| work.name == *name);
                    match (found.next(), found.next()) {
                        (Some(one), None) => Scope::Student(one.id),
                        (None, _) => bail!("nobody is called \"{name}\" in {}", assignment.title),
                        _ => bail!(
                            "several are called \"{name}\" in {}: delete on their pages",
                            assignment.title
                        ),
                    }
                }
            };
            delete(&gradebook, scope, arguments.dry_run)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A gradebook, or the one of this user.
///
/// # Errors
/// If it is not there, or cannot be opened.
pub fn open(file: Option<&Path>, environment: &Environment) -> anyhow::Result<Gradebook> {
    Ok(match file {
        Some(file) if !file.is_file() => bail!("there is no gradebook {}", file.display()),
        Some(file) => Gradebook::open_alone(file)?,
        None => Gradebook::open(&environment.gradebook()?)?,
    })
}

/// Deletes, and says what went; or what would.
fn delete(gradebook: &Gradebook, scope: Scope, is_dry_run: bool) -> anyhow::Result<()> {
    let (erasure, what) = match is_dry_run {
        true => (gradebook.would_erase(scope)?, "would be deleted"),
        false => (gradebook.erase(scope)?, "deleted"),
    };
    let Some(erasure) = erasure else {
        return Ok(());
    };
    let names: Vec<String> = match erasure.assignments.as_slice() {
        [] => erasure.names,
        all => all
            .iter()
            .map(|one| format!("{}/{}", one.course, one.title))
            .collect(),
    };
    let (count, names) = (erasure.works.len(), names.join("; "));
    output::print(&format!(
        "{what}: {names}, {count} submissions with all that was made of them"
    ))?;
    if erasure.not_exported > 0 {
        let count = erasure.not_exported;
        output::print(&format!(
            "of these, {count} approved grades have not been exported"
        ))?;
    }
    Ok(())
}

fn assignments(gradebook: &Gradebook) -> anyhow::Result<Vec<Assignment>> {
    Ok(gradebook.store().read_now(|reader| reader.assignments())?)
}

/// The assignment that a text means.
///
/// # Errors
/// If there is none, or several.
pub fn assignment(gradebook: &Gradebook, text: &str) -> anyhow::Result<Assignment> {
    let all = assignments(gradebook)?;
    let is = |one: &&Assignment| {
        one.title == text
            || format!("{}/{}", one.course, one.title) == text
            || one.id.to_string() == text
    };
    let mut found = all.iter().filter(is);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one.clone()),
        (None, _) => bail!("no assignment is called \"{text}\"; `tandem course list` shows them"),
        (Some(_), Some(_)) => {
            bail!("several assignments are called \"{text}\": write COURSE/TITLE, or the number")
        }
    }
}

/// Writes what the preview shows, or shows it alone.
fn export(gradebook: &Gradebook, arguments: &Export) -> anyhow::Result<ExitCode> {
    let assignment = assignment(gradebook, &arguments.assignment)?;
    let target = match (&arguments.into, arguments.form) {
        (Some(file), _) => sheet(file, &assignment.title, arguments)?,
        (None, Some(form)) => Target::File(form),
        (None, None) => bail!("--into or --as is missing"),
    };
    let (written, counts) = preview(gradebook, assignment.id, &target)?;
    let is_own = matches!(target, Target::File(_));
    output::print(&account(&written, &counts, is_own))?;
    if let (Some(out), false) = (&arguments.out, arguments.dry_run) {
        write(out, &written.export.bytes, arguments.replace)?;
        keep(gradebook.store(), assignment.id, &written)?;
        output::print(&format!("written: {}", out.display()))?;
    }
    Ok(exit_code(&written))
}

/// What would be written there.
///
/// # Errors
/// If there is no such assignment, or its grades cannot go there; says which option they could go with.
pub fn preview(
    gradebook: &Gradebook,
    assignment: i64,
    target: &Target,
) -> anyhow::Result<(Written, Counts)> {
    match exports::preview(gradebook.store(), assignment, target) {
        Err(ExportError::Refused(refusal @ Refusal::Maximum { .. })) => {
            bail!("{refusal} (--same-share)")
        }
        previewed => Ok(previewed?),
    }
}

/// Whether everything that is approved is in the file.
pub fn exit_code(written: &Written) -> ExitCode {
    match written.export.left.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(SOME_LEFT),
    }
}

/// A teacher's own gradebook, with what is chosen of it.
fn sheet(file: &Path, title: &str, arguments: &Export) -> anyhow::Result<Target> {
    let shown = file.display();
    let bytes = files::read(file, u64::try_from(MAX_TABLE_BYTES)?)?;
    let known = outline(&bytes, title).with_context(|| format!("{shown} is no gradebook"))?;
    let named = |title: &String| {
        let columns = known.columns.iter();
        let columns: Vec<_> = columns.filter(|c| c.title.trim() == title.trim()).collect();
        let titles: Vec<&str> = known.columns.iter().map(|c| c.title.as_str()).collect();
        match columns.as_slice() {
            [only] => Ok(only.index),
            [] => bail!(
                "--column: {shown} has no such column; it has: {}",
                titles.join("; ")
            ),
            _ => bail!("--column: {shown} has several columns called \"{title}\"; rename one"),
        }
    };
    let choice = Choice {
        column: arguments.column.as_ref().map(named).transpose()?,
        scales: arguments.same_share,
        with_feedback: arguments.with_feedback,
    };
    if choice.column.is_none() && known.suggested.is_none() {
        let titles: Vec<&str> = known.columns.iter().map(|c| c.title.as_str()).collect();
        bail!(
            "{shown} has no column with the title of the assignment, or several: choose one with --column: {}",
            titles.join("; ")
        );
    }
    let name = file
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Ok(Target::Sheet(SheetFile { name, bytes }, choice))
}

/// What a person needs to know before grades leave.
pub fn account(written: &Written, counts: &Counts, is_own: bool) -> String {
    let export = &written.export;
    let mut lines = Vec::new();
    if !export.changes.is_empty() {
        lines.push(tables::changes(&export.changes).to_string());
    }
    for left in &export.left {
        let name = written
            .works
            .get(left.row)
            .map_or("", |work| work.1.as_str());
        lines.push(format!("left out: {name}: {}", left.why));
    }
    for left in &export.unapproved {
        let name = written.works.get(left.row);
        let name = name.map_or("", |work| work.1.as_str());
        lines.push(format!(
            "not approved now: {name}: {}, which stays",
            left.why
        ));
    }
    for unknown in &export.unknown {
        let name = written.works.get(unknown.row);
        let name = name.map_or("", |work| work.1.as_str());
        lines.push(format!(
            "not approved, and not found: {name}: {}",
            unknown.why
        ));
    }
    let states = [
        (counts.approved, "approved"),
        (counts.open, "not approved yet"),
        (counts.failed, "failed"),
        (counts.ungraded, "not graded yet"),
        (counts.not_attempted, "with nothing in them"),
        (counts.without_points, "settled without points"),
        (counts.again, "handed in again since they were approved"),
        (counts.quick, "approved within two seconds"),
        (export.absent.len(), "not submitted"),
    ];
    let states = states.iter().filter(|(count, _)| *count > 0);
    let states: Vec<String> = states
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    lines.push(states.join(", "));
    lines.push(match is_own {
        true => format!("{} grades in the file", export.grades),
        false => format!(
            "{} grades in the file, {} cells change",
            export.grades,
            export.changes.len()
        ),
    });
    lines.join("\n")
}

/// Writes a whole file, or none.
fn write(out: &Path, bytes: &[u8], replaces: bool) -> anyhow::Result<()> {
    let shown = out.display();
    if out.exists() && !replaces {
        bail!("{shown} is there already; --replace writes over it");
    }
    let mut part = out.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let cannot = || format!("cannot write {shown}");
    std::fs::write(&part, bytes).with_context(cannot)?;
    std::fs::rename(&part, out).with_context(cannot)
}

/// Serves the pages until it is told to stop. Models that are away are waited for so long.
///
/// # Errors
/// If the address is taken, or a model of this process fails.
pub async fn serve(
    gradebook: &Gradebook,
    page: &str,
    setup: Setup,
    listen: Option<SocketAddr>,
    wait: Duration,
) -> anyhow::Result<ExitCode> {
    let Setup {
        config,
        security,
        mut local,
    } = setup;
    let mut coordinator = Coordinator::start_with_pages(
        listen.unwrap_or(ANY_PORT),
        Public::plaintext(),
        config.coordinator.clone(),
        security,
        Some(gradebook),
    )
    .await?;
    if !config.coordinator.models.is_empty() {
        coordinator.connect(gradebook, &config.grading, wait);
    }
    let address = gradebook.address_of(&coordinator.url(), page)?;
    output::print(&format!("gradebook {address}"))?;
    eprintln!("tandem: open this address; Ctrl-C ends it, and what was graded is kept");
    tokio::select! {
        failed = coordinator.failed() => failed?,
        failure = Setup::failed(&mut local) => failure?,
        () = shutdown::signal() => coordinator.stop().await?,
    }
    if let Some(local) = local {
        local.stop().await;
    }
    Ok(ExitCode::SUCCESS)
}
