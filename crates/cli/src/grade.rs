//! `tandem grade`: a batch of submissions.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use tandem_cluster::Public;
use tandem_coordinator::{ModelConfig, NodeList};
use tandem_gradebook::Gradebook;
use tandem_grading::{
    EarlierRun, FeedbackMode, Folder, Graded, GradingConfig, Progress, Rubric, Status, Submission,
    forecast, grade, load_submissions,
};

use crate::address::{ANY_PORT, listen_address};
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::progress::Reporter;
use crate::setup::{self, Setup};
use crate::{course, nodes, output, shutdown, tables};

/// Exit status if some submissions need a person, and none has failed.
const NEEDS_A_PERSON: u8 = 3;
/// Exit status if some submissions have failed.
const SOME_FAILED: u8 = 4;
/// Between two looks for nodes that are away.
const LOOK: Duration = Duration::from_millis(500);

/// Between two looks whether servers have the models that they had.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

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

/// Arguments of `tandem grade`.
#[derive(Args)]
#[command(
    after_help = "Exit status: 0 all graded or not attempted; 3 some need a person; 4 some failed; 1 the run did \
                        not come to its end, standard error says why; 2 wrong arguments; 130 told to stop."
)]
pub struct Arguments {
    #[command(flatten)]
    setup: setup::Arguments,
    /// The rubric; examples/intro-course/rubric.yaml is one.
    #[arg(long, value_name = "FILE")]
    rubric: PathBuf,
    /// Folder for the results; each is written when it is made.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["dry_run", "web"])]
    out: Option<PathBuf>,
    /// Puts the submissions into the gradebook and serves its pages, on which the run is started, watched and reviewed.
    #[arg(long, conflicts_with_all = ["out", "dry_run", "resume", "replace"])]
    web: bool,
    /// Where the pages are [default: any free port of this machine].
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address, requires = "web")]
    listen: Option<SocketAddr>,
    /// What the gradebook calls the course.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "My course",
        requires = "web"
    )]
    course: String,
    /// Goes on with the results of an earlier run in that folder. Kept is what would come out again; what failed is
    /// graded anew.
    #[arg(long, conflicts_with = "replace")]
    resume: bool,
    /// Writes over the results of an earlier run.
    #[arg(long)]
    replace: bool,
    /// Grades nothing: shows how large each prompt is, and whether it fits.
    #[arg(long)]
    dry_run: bool,
    /// When the feedback is written: after the analysis and from its points, or at the same time and without them.
    #[arg(long, value_enum, default_value_t = Feedback::After)]
    feedback: Feedback,
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
    let submissions = load_submissions(&arguments.submissions)?;
    if arguments.web {
        let gradebook = Gradebook::open(&environment.gradebook()?)?;
        let page = gradebook.hand_in(&arguments.course, &rubric, &submissions)?;
        let setup = arguments.setup.prepare(environment).await?;
        return course::serve(&gradebook, &page, setup, arguments.listen).await;
    }
    let Setup {
        config,
        security,
        mut local,
    } = arguments.setup.prepare(environment).await?;
    let jobs = &config.grading;
    let mut coordinator = Coordinator::start(
        ANY_PORT,
        Public::plaintext(),
        config.coordinator.clone(),
        security,
    )
    .await?;
    let mut settings = GradingConfig::new(
        coordinator.base_url(),
        jobs.code_analysis.clone(),
        jobs.feedback.clone(),
    );
    settings.parallel = jobs.parallel;
    settings.keep = false;
    settings.feedback_mode = arguments.feedback.into();
    settings.node_wait = Duration::from_secs(arguments.wait);
    let (http, coordinator_url) = (coordinator.http().clone(), coordinator.base_url());
    let work = async {
        await_nodes(&mut coordinator, &config, settings.node_wait).await?;
        settings.served_by = served_by(&coordinator.nodes().await?, &config);
        match (arguments.dry_run, &arguments.out) {
            (false, Some(out)) => {
                let earlier = arguments.earlier_run();
                let folder = Folder::open(out, &settings, &rubric, &submissions, earlier)?;
                let last = look_once(&http, &coordinator_url, &config.coordinator.models);
                run(&settings, &rubric, &submissions, folder, last).await
            }
            _ => dry_run(&settings, &rubric, &submissions).await,
        }
    };
    let code = tokio::select! {
        code = work => code?,
        changed = changed(&http, &coordinator_url, &config.coordinator.models) => {
            bail!("{}", stopped(&changed));
        }
        failure = Setup::failed(&mut local) => {
            failure?;
            return Ok(ExitCode::FAILURE);
        }
        () = shutdown::signal() => {
            if !arguments.dry_run {
                eprintln!("tandem: stopped; results that were made are kept, `--resume` goes on with them");
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

/// How busy nodes were; the results are there whether or not somebody can tell.
async fn show_busy(coordinator: &mut Coordinator, is_dry_run: bool) {
    if !is_dry_run
        && let Ok(nodes) = coordinator.nodes().await
        && let Some(busy) = tables::busy(&nodes)
    {
        let _ = output::print(&busy.to_string());
    }
}

impl Arguments {
    fn earlier_run(&self) -> EarlierRun {
        match (self.resume, self.replace) {
            (true, _) => EarlierRun::Resume,
            (_, true) => EarlierRun::Replace,
            _ => EarlierRun::Refuse,
        }
    }
}

/// Digests of the weights that the nodes hold of the configured models, and what servers tell of theirs, each once.
fn served_by(nodes: &NodeList, config: &Config) -> String {
    let mut digests = BTreeSet::new();
    for model in nodes.data.iter().flat_map(|node| &node.models) {
        if config
            .coordinator
            .models
            .iter()
            .any(|m| m.name == model.name)
        {
            digests.insert(format!("{}={}", model.name, model.contract.weights));
        }
    }
    for model in nodes.servers.iter().flat_map(|server| &server.models) {
        digests.insert(format!(
            "{}={} ({})",
            model.name, model.model, model.reported
        ));
    }
    digests.into_iter().collect::<Vec<_>>().join(" ")
}

/// Completes when a server has another model than at the start: nobody would know which one made a grade.
async fn changed(http: &reqwest::Client, url: &str, models: &[ModelConfig]) -> String {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if let Some(changed) = look_once(http, url, models).await {
            return changed;
        }
    }
}

/// The same at once.
async fn look_once(http: &reqwest::Client, url: &str, models: &[ModelConfig]) -> Option<String> {
    let asked = http.get(format!("{url}/nodes")).timeout(LOOK_AGAIN).send();
    let nodes: NodeList = asked.await.ok()?.json().await.ok()?;
    is_changed(&nodes, models)
}

/// What is said of a run that ends for that.
fn stopped(changed: &str) -> String {
    format!(
        "stopped: {changed}; results that were made are kept, and those of the last minute may be of either model"
    )
}

/// That a server has another model than before, or than an equal one.
fn is_changed(nodes: &NodeList, models: &[ModelConfig]) -> Option<String> {
    let changed = nodes
        .servers
        .iter()
        .flat_map(|server| &server.changed)
        .next();
    let unequal = models
        .iter()
        .filter_map(|m| nodes::unequal_servers(m, nodes));
    let unequal = unequal
        .filter(|(_, is_sure)| *is_sure)
        .map(|(reason, _)| reason);
    changed.cloned().or(unequal.into_iter().next())
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
    for line in tables::left_out(submissions) {
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

/// Grades with progress on standard error; the folder gets each result when it is made. `last` says why the whole is not to
/// be trusted, when all is graded.
async fn run(
    settings: &GradingConfig,
    rubric: &Rubric,
    submissions: &[Submission],
    folder: Folder<'_>,
    last: impl Future<Output = Option<String>>,
) -> anyhow::Result<ExitCode> {
    let reporter = Reporter::new("grading", submissions.len());
    let report = |progress: Progress<'_>| reporter.report(&progress);
    let graded = grade(settings, rubric, submissions, &folder, &report).await;
    reporter.finish();
    let graded = graded?;
    if let Some(changed) = last.await {
        bail!("{}", stopped(&changed));
    }
    folder.finish(&graded)?;
    // The results are there, and the status says what came out, also if nobody reads this.
    let _ = output::print(&tables::grades(&graded).to_string());
    for line in tables::causes(&graded)
        .into_iter()
        .chain(tables::notes(&graded))
    {
        eprintln!("tandem: {line}");
    }
    let _ = output::print(&format!(
        "results, suggested by models and to be approved by a person: {}",
        folder.path().display()
    ));
    let some = |status| graded.iter().any(|g: &Graded| g.status == status);
    Ok(exit_code(some(Status::Failed), some(Status::NeedsReview)))
}
