//! `tandem demo`: four nodes and a coordinator on this machine grade the sample course.
//!
//! - [`models`]: which models, given or made;
//! - [`course`]: where the sample course is;
//! - [`summary`]: the outcome as JSON, and whether it is a success.

mod course;
mod models;
mod summary;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use comfy_table::Table;
use tandem_api::RouteChoice;
use tandem_cluster::{Public, Security};
use tandem_coordinator::{Config, ModelConfig, NodeConfig};
use tandem_gradebook::Gradebook;
use tandem_grading::limits::DEFAULT_NODE_WAIT;
use tandem_grading::{
    EarlierRun, FeedbackMode, Folder, Graded, GradingConfig, JobConfig, Progress, Rubric,
    Submission, grade, load_submissions,
};
use tandem_proto::Role;

use crate::config::{ANALYSIS_TOKENS, FEEDBACK_TOKENS, Grading};
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::processes::{self, NodeProcess};
use crate::progress::Reporter;
use crate::{nodes, output, plan, shutdown, tables};
use models::Models;
use summary::Summary;
use tandem_engine_llama::{build::cores, options::parse_model};

/// The feedback is sampled, so that the comparison covers sampling too.
const FEEDBACK_TEMPERATURE: f64 = 0.7;
/// Seed of the feedback.
const FEEDBACK_SEED: u64 = 1;

/// Tokens of one sequence, prompt and answer together.
const CONTEXT: u32 = 16384;
/// Sequences at once.
const SLOTS: u32 = 2;
/// The models: each has a node that prefills, and one that decodes.
const MODELS: [&str; 2] = ["code", "feedback"];

/// Arguments of `tandem demo`.
#[derive(Args)]
pub struct Arguments {
    /// Prints one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
    /// Grades once more with prefill and decode on the same node, and compares every token.
    #[arg(long)]
    compare: bool,
    /// Ends after the table. Otherwise, in a terminal, the course is there as pages until Ctrl-C.
    #[arg(long)]
    once: bool,
    /// Folder for results and logs.
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Model files for `code` and `feedback` [default: models/nano-coder.gguf and
    /// models/nano-writer.gguf if both are there, otherwise small models with random weights].
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_model)]
    model: Vec<(String, PathBuf)>,
    /// Shows instead what a course takes on two Sparks and two Mac Studios, with processes that take the machines' time
    /// and compute nothing: one Mac alone, a server on each machine, and pairs.
    #[arg(long, conflicts_with_all = ["compare", "once", "model", "course"])]
    paced: bool,
    /// How many times faster than the machines the processes of --paced are.
    #[arg(long, default_value_t = 10.0, requires = "paced")]
    speed: f64,
    /// Works of the course of --paced.
    #[arg(long, default_value_t = 10, requires = "paced", value_parser = clap::value_parser!(u32).range(1..=1000))]
    works: u32,
    /// A folder with rubric.yaml and submissions/ [default: the sample course].
    #[arg(long, value_name = "DIR")]
    course: Option<PathBuf>,
}

/// What is graded, and how.
struct Task {
    rubric: Rubric,
    submissions: Vec<Submission>,
    compare: bool,
    /// Where the results go; those of the second run into a folder in it.
    out: PathBuf,
}

/// Both runs; the second only if a comparison was asked for.
struct Outcome {
    remote: Vec<Graded>,
    local: Option<Vec<Graded>>,
    wall_ms: f64,
}

/// Runs the demo and stops everything that it started, also when it is told to stop.
///
/// # Errors
/// If something cannot be started, read or written, if a submission that should be graded has no
/// answer, or if a comparison finds a difference.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    if arguments.paced {
        return plan::demo(
            arguments.speed,
            arguments.works,
            arguments.json,
            &arguments.out,
        )
        .await;
    }
    let course = course::find(arguments.course.as_deref())?;
    let task = Task {
        rubric: Rubric::load(&course.join("rubric.yaml"))?,
        submissions: load_submissions(&[course.join("submissions")])?,
        compare: arguments.compare,
        out: arguments.out.clone(),
    };
    let models = models::choose(&arguments.model, environment)?;
    let logs = arguments.out.join("logs");
    eprintln!("starting four nodes; their logs: {}", logs.display());
    // One for both waits: what comes between them must not be missed.
    let mut told = std::pin::pin!(shutdown::signal());
    let nodes = tokio::select! {
        nodes = start_nodes(&models, &logs) => nodes?,
        () = &mut told => return Ok(ExitCode::from(shutdown::INTERRUPTED)),
    };
    let work = async {
        let (mut coordinator, gradebook) = start_coordinator(&nodes, &arguments.out).await?;
        let outcome = run(&coordinator, &task).await?;
        let busy = tables::busy(&coordinator.nodes().await?);
        let code = finish(&arguments, &models, &outcome, busy)?;
        if arguments.stays() {
            show_pages(&coordinator, &gradebook, &models, &task, &outcome)?;
            return Ok((code, Some(coordinator)));
        }
        coordinator.stop().await?;
        anyhow::Ok((code, None))
    };
    let done = tokio::select! {
        done = work => Some(done),
        () = &mut told => None,
    };
    let code = match done {
        Some(Ok((code, Some(mut coordinator)))) => {
            tokio::select! {
                failed = coordinator.failed() => failed.map(|()| code),
                () = &mut told => coordinator.stop().await.map(|()| code),
            }
        }
        Some(Ok((code, None))) => Ok(code),
        Some(Err(error)) => Err(error),
        None => {
            eprintln!("tandem: stopped, with everything that was started");
            Ok(ExitCode::from(shutdown::INTERRUPTED))
        }
    };
    processes::stop(nodes).await;
    code
}

impl Arguments {
    /// True if pages are served after the table, until somebody ends it.
    fn stays(&self) -> bool {
        !self.json && !self.once && std::io::stdout().is_terminal()
    }
}

/// Starts a coordinator in front of the nodes, with a gradebook in the demo's own folder.
async fn start_coordinator(
    nodes: &[NodeProcess],
    out: &Path,
) -> anyhow::Result<(Coordinator, Gradebook)> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = config(nodes);
    let gradebook = Gradebook::open(&out.join("gradebook.sqlite"))?;
    let mut coordinator = Coordinator::start_with_pages(
        any_port,
        Public::plaintext(),
        config.clone(),
        Security::Plaintext,
        Some(&gradebook),
    )
    .await?;
    let mut faults = nodes::problems(&config, &coordinator.nodes().await?, false);
    faults.extend(coordinator.unavailable().await?);
    if !faults.is_empty() {
        bail!("the nodes cannot be used: {}", faults.join("; "));
    }
    let [code_analysis, feedback] = jobs();
    coordinator.connect(
        &gradebook,
        &Grading {
            parallel: 1,
            reproducible: false,
            code_analysis,
            feedback,
        },
        DEFAULT_NODE_WAIT,
    );
    Ok((coordinator, gradebook))
}

/// The last line: the address of the graded course. Random scores are not put into a gradebook; then it is the sample that
/// comes with tandem.
fn show_pages(
    coordinator: &Coordinator,
    gradebook: &Gradebook,
    models: &Models,
    task: &Task,
    outcome: &Outcome,
) -> anyhow::Result<()> {
    let page = match models.random {
        true => gradebook.sample_page(),
        false => gradebook.keep_run(
            "Demo",
            &task.rubric,
            &task.submissions,
            &outcome.remote,
            ("demo", "demo"),
        )?,
    };
    eprintln!("the course as pages, until Ctrl-C; open this address:");
    output::print(&gradebook.address_of(&coordinator.url(), &page)?)
}

async fn start_nodes(models: &Models, logs: &Path) -> anyhow::Result<Vec<NodeProcess>> {
    // They share this machine.
    let threads = (cores() / 4).max(1);
    let mut starting = Vec::new();
    for (model, path) in MODELS.into_iter().zip([&models.code, &models.feedback]) {
        let mut spec = OsString::from(format!("{model}="));
        spec.push(path);
        let mut arguments = vec!["--model".into(), spec];
        let figures = [
            ("--context", CONTEXT),
            ("--slots", SLOTS),
            ("--threads", threads),
        ];
        arguments.extend(figures.into_iter().flat_map(|(option, figure)| {
            [OsString::from(option), OsString::from(figure.to_string())]
        }));
        for role in [Role::Prefill, Role::Decode] {
            let arguments = arguments.clone();
            starting.push(async move {
                let name = name(model, role);
                NodeProcess::start(&name, role, arguments, logs).await
            });
        }
    }
    let nodes = futures_util::future::try_join_all(starting).await?;
    for node in &nodes {
        eprintln!("node {} is ready at {}", node.name, node.address);
    }
    Ok(nodes)
}

/// The name of the node that has a model in a role.
fn name(model: &str, role: Role) -> String {
    let role = match role {
        Role::Prefill => "prefill",
        _ => "decode",
    };
    format!("{model}-{role}")
}

/// Grades, once or twice.
async fn run(coordinator: &Coordinator, task: &Task) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let remote = run_once(coordinator, task, RouteChoice::Auto).await?;
    let wall_ms = start.elapsed().as_secs_f64() * 1e3;
    let local = match task.compare {
        true => Some(run_once(coordinator, task, RouteChoice::Local).await?),
        false => None,
    };
    Ok(Outcome {
        remote,
        local,
        wall_ms,
    })
}

fn config(nodes: &[NodeProcess]) -> Config {
    let model = |model: &str| ModelConfig {
        name: model.to_owned(),
        prefill: vec![name(model, Role::Prefill)],
        decode: vec![name(model, Role::Decode)],
        servers: Vec::new(),
        mixed_quantisation: false,
        profile: None,
    };
    let node = |n: &NodeProcess| NodeConfig {
        name: n.name.clone(),
        address: n.address.to_string(),
        identity: None,
        profile: None,
    };
    Config::new(nodes.iter().map(node).collect(), MODELS.map(model).to_vec())
}

/// The analysis and the feedback.
fn jobs() -> [JobConfig; 2] {
    let code = JobConfig {
        model: "code".to_owned(),
        max_tokens: ANALYSIS_TOKENS,
        temperature: 0.0,
        seed: None,
    };
    let feedback = JobConfig {
        model: "feedback".to_owned(),
        max_tokens: FEEDBACK_TOKENS,
        temperature: FEEDBACK_TEMPERATURE,
        seed: Some(FEEDBACK_SEED),
    };
    [code, feedback]
}

async fn run_once(
    coordinator: &Coordinator,
    task: &Task,
    route: RouteChoice,
) -> anyhow::Result<Vec<Graded>> {
    let [code, feedback] = jobs();
    let mut settings = GradingConfig::new(coordinator.base_url(), code, feedback);
    settings.route = route;
    settings.return_tokens = task.compare;
    settings.keep = false;
    settings.reproducible = task.compare;
    // Its models were trained to write without having seen points.
    settings.feedback_mode = FeedbackMode::Parallel;
    // The second run must not find KV of the first: it would compare it with itself.
    settings.cache_salt = format!("demo {route:?}");
    let label = match route {
        RouteChoice::Local => "grading again, prefill and decode on the same node",
        _ => "grading",
    };
    let reporter = Reporter::new(label, task.submissions.len());
    let (rubric, submissions) = (&task.rubric, &task.submissions);
    let out = match route {
        RouteChoice::Local => task.out.join("local"),
        _ => task.out.clone(),
    };
    let folder = Folder::open(&out, rubric, submissions, EarlierRun::Replace)?;
    folder.begin()?;
    let report = |p: Progress<'_>| reporter.report(&p);
    let graded = grade(&settings, rubric, submissions, &folder, &report).await;
    reporter.finish();
    let graded = graded?;
    folder.finish(&graded)?;
    Ok(graded)
}

/// Writes and shows what came out.
fn finish(
    arguments: &Arguments,
    models: &Models,
    outcome: &Outcome,
    busy: Option<Table>,
) -> anyhow::Result<ExitCode> {
    let summary = Summary::new(&outcome.remote, outcome.local.as_deref(), outcome.wall_ms);
    if arguments.json {
        output::print(&serde_json::to_string_pretty(&summary)?)?;
    } else {
        show(arguments, models, outcome, &summary)?;
        if let Some(busy) = busy {
            output::print(&busy.to_string())?;
        }
    }
    let faults = summary::faults(&outcome.remote, outcome.local.as_deref());
    if !faults.is_empty() {
        bail!("the demo failed: {}", faults.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}

/// The first feedback that a teacher could read.
fn show_feedback(graded: &[Graded]) -> anyhow::Result<()> {
    let Some((one, text)) = graded.iter().find_map(|g| Some((g, g.feedback.as_ref()?))) else {
        return Ok(());
    };
    output::print(&format!("feedback for {}:", one.name))?;
    for line in text.lines() {
        output::print(&format!("  {line}"))?;
    }
    Ok(())
}

fn show(
    arguments: &Arguments,
    models: &Models,
    outcome: &Outcome,
    summary: &Summary,
) -> anyhow::Result<()> {
    output::print(&tables::grades(&outcome.remote).to_string())?;
    let table = tables::jobs(&outcome.remote, outcome.local.as_deref());
    output::print(&table.to_string())?;
    if !models.random {
        show_feedback(&outcome.remote)?;
    }
    for (name, event) in summary::notes(&outcome.remote) {
        output::print(&format!("note: {name}: {event}"))?;
    }
    let totals = &summary.totals;
    output::print(&format!(
        "{:.1} s, {:.0} submissions per hour on this machine",
        totals.wall_ms / 1e3,
        totals.submissions_per_hour
    ))?;
    match totals.identical {
        Some(true) => output::print(
            "compared with prefill and decode on the same node: every generated token is the same",
        )?,
        Some(false) => {
            output::print("compared with prefill and decode on the same node: NOT the same")?
        }
        None => {}
    }
    if models.random {
        output::print(
            "The models are test models with RANDOM weights: their scores and texts mean nothing; \
             the path, the timings and the comparison are real.\n\
             For real answers: tandem demo --model code=PATH --model feedback=PATH",
        )?;
    }
    output::print(&format!("results: {}", arguments.out.display()))
}
