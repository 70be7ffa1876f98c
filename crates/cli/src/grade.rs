//! `tandem grade`: a batch of submissions.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum, value_parser};
use tandem_cluster::Public;
use tandem_gradebook::store::SheetFile;
use tandem_gradebook::{Batch, Gradebook, GradebookError};
use tandem_grading::export;
use tandem_grading::limits::MAX_TABLE_BYTES;
use tandem_grading::{
    EarlierRun, FeedbackMode, Folder, Graded, GradingConfig, Progress, Roster, Rubric, Status,
    Submission, add_test_results, forecast, load_submissions_for,
};
use tandem_proto::limits::MAX_GENERATED_TOKENS;

use crate::address::{ANY_PORT, listen_address};
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::progress::Reporter;
use crate::setup::{self, Setup};
use crate::{course, files, nodes, output, shutdown, stability, tables};

/// Exit status if some submissions need a person, and none has failed.
const NEEDS_A_PERSON: u8 = 3;
/// Exit status if some submissions have failed.
const SOME_FAILED: u8 = 4;
/// Between two looks for nodes that are away.
const LOOK: Duration = Duration::from_millis(500);
/// The gradebook in the folder of the results.
const GRADEBOOK: &str = "gradebook.sqlite";

/// When the feedback is written.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Feedback {
    /// After the analysis, from its points.
    After,
    /// At the same time, without points.
    Parallel,
}

impl From<Feedback> for FeedbackMode {
    fn from(feedback: Feedback) -> Self {
        match feedback {
            Feedback::After => Self::After,
            Feedback::Parallel => Self::Parallel,
        }
    }
}

/// As many as a node makes of an answer.
fn tokens() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=i64::from(MAX_GENERATED_TOKENS))
}

/// Arguments of `tandem grade`.
#[derive(Args)]
#[command(
    after_help = "Exit status: 0 all graded or not attempted; 3 some need a person, or with --stability differ; 4 some failed; 1 the run did \
                        not come to its end, standard error says why; 2 wrong arguments; 130 told to stop."
)]
pub struct Arguments {
    #[command(flatten)]
    setup: setup::Arguments,
    /// The rubric; examples/intro-course/rubric.yaml is one.
    #[arg(long, value_name = "FILE")]
    rubric: PathBuf,
    /// Folder for the results; each is written when it is made. Its gradebook has them, too: `tandem course` shows it.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["dry_run", "web", "stability"])]
    out: Option<PathBuf>,
    /// Puts the submissions into the gradebook and serves its pages, on which the run is started, watched and reviewed.
    #[arg(long, conflicts_with_all = ["out", "dry_run", "resume", "replace"])]
    web: bool,
    /// Where the pages are [default: any free port of this machine].
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address, requires = "web")]
    listen: Option<SocketAddr>,
    /// What the gradebook calls the course.
    #[arg(long, value_name = "NAME", default_value = "My course")]
    course: String,
    /// The course's gradebook (CSV of Canvas or Moodle, or any table with names): no model is shown who is in it.
    #[arg(long, value_name = "FILE")]
    roster: Option<PathBuf>,
    /// Files that no model needs, where a submission is too large: `*` stands for any letters, such as `*.css` or `lib/*`.
    /// --dry-run shows which ones are large.
    #[arg(long, value_name = "PATTERN")]
    leave_out: Vec<String>,
    /// Results of tests that you ran (JUnit's XML, Gradescope's results.json): files, folders or archives, named after the
    /// submissions. Models see them as facts.
    #[arg(long, value_name = "PATH")]
    tests: Vec<PathBuf>,
    /// Goes on with the results of an earlier run in that folder. What would come out again is not asked for again; what
    /// failed is.
    #[arg(long, conflicts_with = "replace")]
    resume: bool,
    /// Grades anew what has a result in that folder, but for what a person has settled.
    #[arg(long)]
    replace: bool,
    /// Grades nothing: shows how large each prompt is, and whether it fits.
    #[arg(long)]
    dry_run: bool,
    /// Keeps nothing: grades the first so many submissions alone, alone again, and all at once in reverse, and shows what
    /// differs.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["out", "web", "dry_run", "resume", "replace"],
          value_parser = clap::value_parser!(u16).range(1..))]
    stability: Option<u16>,
    /// Tokens of an analysis at most, instead of the configuration's.
    #[arg(long, value_name = "TOKENS", value_parser = tokens())]
    analysis_tokens: Option<u32>,
    /// Tokens of a feedback at most, instead of the configuration's.
    #[arg(long, value_name = "TOKENS", value_parser = tokens())]
    feedback_tokens: Option<u32>,
    /// When the feedback is written: after the analysis and from its points, or at the same time and without them.
    #[arg(long, value_enum, default_value_t = Feedback::After)]
    feedback: Feedback,
    /// Each answer comes out the same in every run, also in one that was stopped and goes on. It takes longer: a node computes
    /// one answer at a time. Results say so.
    #[arg(long)]
    reproducible: bool,
    /// How long nodes that are away are waited for, in seconds: at the start, and by each request.
    #[arg(long, value_name = "SECONDS", default_value_t = tandem_grading::limits::DEFAULT_NODE_WAIT.as_secs())]
    wait: u64,
    /// Files, or folders in which every file and every folder is one submission.
    #[arg(required = true)]
    submissions: Vec<PathBuf>,
}

/// Grades and writes the results; told to stop, it keeps those that are there.
///
/// # Errors
/// If something cannot be read or written, or a model has no node that could serve it.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let rubric = Rubric::load(&arguments.rubric)?;
    let (submissions, roster) = arguments.read(&rubric)?;
    let wait = Duration::from_secs(arguments.wait);
    if arguments.web {
        let gradebook = Gradebook::open(&environment.gradebook()?)?;
        let page = gradebook.hand_in(&arguments.course, &rubric, &submissions, roster.as_ref())?;
        let mut setup = arguments.setup.prepare(environment).await?;
        arguments.set_jobs(&mut setup.config);
        return course::serve(&gradebook, &page, setup, arguments.listen, wait).await;
    }
    let Setup {
        mut config,
        security,
        mut local,
    } = arguments.setup.prepare(environment).await?;
    arguments.set_jobs(&mut config);
    let mut coordinator = Coordinator::start(
        ANY_PORT,
        Public::plaintext(),
        config.coordinator.clone(),
        security,
    )
    .await?;
    let work = async {
        await_nodes(&mut coordinator, &config, wait).await?;
        match (arguments.is_kept(), &arguments.out) {
            (true, Some(out)) => {
                let folder = Folder::open(out, &rubric, &submissions, arguments.earlier_run())?;
                let gradebook = Gradebook::open_alone(&out.join(GRADEBOOK))?;
                coordinator.connect(&gradebook, &config.grading, wait);
                let of = (&rubric, submissions.as_slice(), roster.as_ref());
                run(&gradebook, &arguments, of, &folder).await
            }
            _ => {
                let jobs = &config.grading;
                let (analysis, feedback) = (jobs.code_analysis.clone(), jobs.feedback.clone());
                let mut settings = GradingConfig::new(coordinator.base_url(), analysis, feedback);
                settings.parallel = jobs.parallel;
                settings.reproducible = jobs.reproducible;
                settings.feedback_mode = arguments.feedback.into();
                settings.node_wait = wait;
                match arguments.stability {
                    Some(count) => stability(&settings, (&rubric, &submissions), count).await,
                    None => dry_run(&settings, &rubric, &submissions).await,
                }
            }
        }
    };
    let code = tokio::select! {
        code = work => code?,
        failure = Setup::failed(&mut local) => {
            failure?;
            return Ok(ExitCode::FAILURE);
        }
        () = shutdown::signal() => {
            if arguments.is_kept() {
                eprintln!("tandem: stopped; results that were made are kept, `--resume` goes on with them and writes results.csv");
            }
            return Ok(ExitCode::from(shutdown::INTERRUPTED));
        }
    };
    show_busy(&mut coordinator, arguments.dry_run).await;
    coordinator.stop().await?;
    if let Some(local) = local {
        local.stop().await;
    }
    Ok(code)
}

/// Whether a name is what a pattern stands for.
fn is_like(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    false
}

/// A teacher's own gradebook, which says who is in the course.
fn read_roster(path: &Path) -> anyhow::Result<SheetFile> {
    let bytes = files::read(path, u64::try_from(MAX_TABLE_BYTES)?)?.to_vec();
    let told = || format!("{} is no table of students", path.display());
    export::outline(&bytes, "").with_context(told)?;
    let name = path.file_name().unwrap_or_default();
    Ok(SheetFile {
        name: name.to_string_lossy().into_owned(),
        bytes,
    })
}

/// Says what stands for people in prompts, also where nothing is kept.
fn hide_people(submissions: &mut [Submission], roster: &SheetFile) {
    let known = submissions
        .iter()
        .map(|one| (one.name.as_str(), &one.origin));
    let roster = Roster::new(known, Some(&roster.bytes));
    submissions.iter_mut().for_each(|one| roster.hide(one));
}

/// How busy nodes were; the results are there whether or not somebody can tell.
async fn show_busy(coordinator: &mut Coordinator, is_dry_run: bool) {
    if !is_dry_run
        && let Ok(nodes) = coordinator.nodes().await
        && let Some(busy) = tables::busy(&nodes)
    {
        let _ = output::print(&busy.to_string());
    }
}

/// Grades some submissions in several ways, and shows what differs.
async fn stability(
    settings: &GradingConfig,
    (rubric, submissions): (&Rubric, &[Submission]),
    count: u16,
) -> anyhow::Result<ExitCode> {
    let same = stability::show(settings, rubric, submissions, usize::from(count)).await?;
    Ok(exit_code(same.is_none(), same == Some(false)))
}

impl Arguments {
    /// What is graded, and who is in the course.
    fn read(&self, rubric: &Rubric) -> anyhow::Result<(Vec<Submission>, Option<SheetFile>)> {
        let mut submissions = load_submissions_for(&self.submissions, rubric)?;
        for one in &mut submissions {
            one.leave_out(|name| self.leave_out.iter().any(|pattern| is_like(pattern, name)));
        }
        let roster = self.roster.as_deref().map(read_roster).transpose()?;
        if !self.tests.is_empty() {
            let known = submissions
                .iter()
                .map(|one| (one.name.as_str(), &one.origin));
            let known: Vec<_> = known.collect();
            let listed = roster.as_ref();
            let listed = listed.map(|sheet| export::attendance(&sheet.bytes, &known));
            let listed = listed.transpose()?.unwrap_or_default();
            let found = add_test_results(&mut submissions, &listed.students, &self.tests)?;
            for line in tables::test_results(&found, submissions.len()) {
                eprintln!("tandem: {line}");
            }
        }
        if let Some(roster) = &roster {
            hide_people(&mut submissions, roster);
        }
        Ok((submissions, roster))
    }

    fn set_jobs(&self, config: &mut Config) {
        let jobs = &mut config.grading;
        jobs.reproducible |= self.reproducible;
        for (tokens, job) in [
            (self.analysis_tokens, &mut jobs.code_analysis),
            (self.feedback_tokens, &mut jobs.feedback),
        ] {
            job.max_tokens = tokens.unwrap_or(job.max_tokens);
        }
    }

    /// Whether results are kept.
    const fn is_kept(&self) -> bool {
        !self.dry_run && self.stability.is_none()
    }

    fn earlier_run(&self) -> EarlierRun {
        match (self.resume, self.replace) {
            (true, _) => EarlierRun::Resume,
            (_, true) => EarlierRun::Replace,
            _ => EarlierRun::Refuse,
        }
    }
}

/// Waits until each model has the nodes that it needs.
async fn await_nodes(
    coordinator: &mut Coordinator,
    config: &Config,
    limit: Duration,
) -> anyhow::Result<()> {
    let since = Instant::now();
    let mut told = false;
    loop {
        let unavailable = coordinator.unavailable().await?;
        if unavailable.is_empty() {
            break;
        }
        let reasons = unavailable.join("; ");
        if since.elapsed() >= limit {
            let nodes = coordinator.nodes().await?;
            for problem in nodes::problems(&config.coordinator, &nodes, coordinator.is_tls()) {
                eprintln!("tandem: warning: {problem}");
            }
            bail!(
                "nothing was graded: {reasons} (waited for {} s)",
                limit.as_secs()
            );
        }
        if !told {
            eprintln!("tandem: waiting, at most {} s: {reasons}", limit.as_secs());
            told = true;
        }
        tokio::time::sleep(LOOK).await;
    }
    let nodes = coordinator.nodes().await?;
    for model in &config.coordinator.models {
        if let Some((reason, true)) = nodes::unequal_servers(model, &nodes) {
            bail!("nothing was graded: {reason}");
        }
    }
    let found = nodes::problems(&config.coordinator, &nodes, coordinator.is_tls());
    for warning in config.warnings.iter().chain(&found) {
        eprintln!("tandem: warning: {warning}");
    }
    Ok(())
}

/// Shows what would become of each submission.
async fn dry_run(
    settings: &GradingConfig,
    rubric: &Rubric,
    submissions: &[Submission],
) -> anyhow::Result<ExitCode> {
    let forecasts = forecast(settings, rubric, submissions).await?;
    let (table, sentence) = tables::forecasts(submissions, &forecasts);
    output::print(&table.to_string())?;
    let heavy = tables::heavy(rubric, submissions, &forecasts);
    for line in heavy.into_iter().chain(tables::left_out(submissions)) {
        output::print(&line)?;
    }
    output::print(&sentence)?;
    let fails = forecasts.iter().any(tables::will_fail);
    let mut pairs = submissions.iter().zip(&forecasts);
    let looks = pairs.any(|(submission, forecast)| tables::needs_a_person(submission, forecast));
    Ok(exit_code(fails, looks))
}

fn exit_code(some_failed: bool, some_need_a_person: bool) -> ExitCode {
    match (some_failed, some_need_a_person) {
        (true, _) => ExitCode::from(SOME_FAILED),
        (false, true) => ExitCode::from(NEEDS_A_PERSON),
        (false, false) => ExitCode::SUCCESS,
    }
}

/// Grades with progress on standard error; the folder gets each result when it is made.
async fn run(
    gradebook: &Gradebook,
    arguments: &Arguments,
    (rubric, submissions, roster): (&Rubric, &[Submission], Option<&SheetFile>),
    folder: &Folder<'_>,
) -> anyhow::Result<ExitCode> {
    let reporter = Reporter::new("grading", submissions.len());
    let report = |progress: &Progress<'_>| reporter.report(progress);
    let batch = Batch {
        course: &arguments.course,
        rubric,
        submissions,
        roster,
        feedback_mode: arguments.feedback.into(),
        earlier_run: arguments.earlier_run(),
        folder,
        report: &report,
    };
    let graded = gradebook.grade(&batch).await;
    reporter.finish();
    let graded = match graded {
        Err(GradebookError::Run(why)) => {
            bail!("stopped: {why}; results that were made are kept, `--resume` goes on with them")
        }
        graded => graded?,
    };
    // The results are there, and the status says what came out, also if nobody reads this.
    let _ = output::print(&tables::grades(&graded).to_string());
    for line in tables::causes(&graded)
        .into_iter()
        .chain(tables::notes(&graded))
    {
        eprintln!("tandem: {line}");
    }
    let path = folder.path().display();
    let _ = output::print(&format!(
        "results, suggested by models and to be approved by a person: {path}; \
         `tandem course --gradebook {path}/{GRADEBOOK} open` has them as pages"
    ));
    let some = |status| graded.iter().any(|g: &Graded| g.status == status);
    Ok(exit_code(some(Status::Failed), some(Status::NeedsReview)))
}

#[cfg(test)]
mod tests {
    use super::is_like;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, expected) in [
            ("a.py", "a.py", true),
            ("a.py", "a.pyc", false),
            ("*.css", "lib/x.css", true),
            ("*.css", "x.css.py", false),
            ("lib/*", "lib/x/y.js", true),
            ("lib/*", "src/lib/y.js", false),
            ("*lib*.js", "a/lib/b.js", true),
            ("*lib*.js", "a/b.js", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("*ab*ab", "xabab", true),
            ("*ab*ab", "xab", false),
        ] {
            assert_eq!(is_like(pattern, name), expected, "{pattern} {name}");
        }
    }
}
