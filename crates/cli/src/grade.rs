//! `tandem grade`: a batch of submissions.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::bail;
use clap::Args;
use tandem_grading::{
    Graded, GradingConfig, Progress, Rubric, Status, Submission, grade, load_submissions,
    write_results,
};
use tandem_identity::Public;

use crate::config::{self, Config};
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::progress::Reporter;
use crate::{nodes, output, security, shutdown, tables};

/// Arguments of `tandem grade`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    config: config::Arguments,
    #[command(flatten)]
    security: security::Arguments,
    /// The rubric; examples/intro-course/rubric.yaml is one.
    #[arg(long, value_name = "FILE")]
    rubric: PathBuf,
    /// Folder for the results; files of an earlier run are replaced.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Files, or folders in which every file and every folder is one submission.
    #[arg(required = true)]
    submissions: Vec<PathBuf>,
}

/// Grades and writes the results; told to stop, it writes those that are there.
///
/// # Errors
/// If something cannot be read or written, or a model has no node that could serve it.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let config = arguments.config.load()?;
    let security = arguments.security.security(environment)?;
    let Some(jobs) = &config.grading else {
        bail!(
            "{} has no [grading]: add [grading.code_analysis] and [grading.feedback] with `model` and \
             `max_tokens`",
            arguments.config.file().display()
        );
    };
    let rubric = Rubric::load(&arguments.rubric)?;
    let submissions = load_submissions(&arguments.submissions)?;
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut coordinator = Coordinator::start(
        any_port,
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
    let finished = Mutex::new(Vec::new());
    let grading = async {
        check_nodes(&mut coordinator, &config).await?;
        run(&settings, &rubric, &submissions, &finished).await
    };
    let graded = tokio::select! {
        graded = grading => graded?,
        () = shutdown::signal() => {
            let graded = finished.into_inner().unwrap_or_else(PoisonError::into_inner);
            eprintln!("tandem: stopped after {} of {} submissions", graded.len(), submissions.len());
            report(&arguments.out, &rubric, &graded)?;
            return Ok(ExitCode::from(shutdown::INTERRUPTED));
        }
    };
    coordinator.stop().await?;
    report(&arguments.out, &rubric, &graded)
}

async fn check_nodes(coordinator: &mut Coordinator, config: &Config) -> anyhow::Result<()> {
    let found = nodes::problems(
        &config.coordinator,
        &coordinator.nodes().await?,
        coordinator.is_tls(),
    );
    for warning in config.warnings.iter().chain(&found) {
        eprintln!("tandem: warning: {warning}");
    }
    let unavailable = coordinator.unavailable().await?;
    if !unavailable.is_empty() {
        bail!("nothing was graded: {}", unavailable.join("; "));
    }
    Ok(())
}

/// Grades with progress on standard error; `finished` gets each record when it is complete.
async fn run(
    settings: &GradingConfig,
    rubric: &Rubric,
    submissions: &[Submission],
    finished: &Mutex<Vec<Graded>>,
) -> anyhow::Result<Vec<Graded>> {
    let reporter = Reporter::new("grading", submissions.len());
    let graded = grade(settings, rubric, submissions, &|progress| {
        if let Progress::Finished { graded, .. } = &progress {
            let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner);
            finished.push((*graded).clone());
        }
        reporter.report(&progress);
    })
    .await;
    reporter.finish();
    Ok(graded?)
}

/// Writes the results and says what came out. Fails only if nothing at all could be graded.
fn report(out: &Path, rubric: &Rubric, graded: &[Graded]) -> anyhow::Result<ExitCode> {
    write_results(out, rubric, graded)?;
    output::print(&tables::grades(graded).to_string())?;
    output::print(&format!(
        "results, suggested by models and to be approved by a person: {}",
        out.display()
    ))?;
    let failed: Vec<&Graded> = graded
        .iter()
        .filter(|g| g.status == Status::Failed)
        .collect();
    for one in &failed {
        eprintln!("tandem: `{}` failed: {}", one.name, one.reasons.join("; "));
    }
    if !graded.is_empty() && failed.len() == graded.len() {
        bail!("nothing could be graded");
    }
    Ok(ExitCode::SUCCESS)
}
