//! `tandem plan`: what machines would do together, of their profiles or of what running nodes measured.
//!
//! - this file: what is asked, and what the cost model answers;
//! - [`measured`]: the machines of a running cluster, in place of profiles;
//! - [`words`]: tables and sentences;
//! - [`drawing`]: the phases as a picture;
//! - [`trial`]: the ways that tandem does, run with paced nodes.

mod drawing;
mod measured;
mod trial;
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tandem_coordinator::{MAX_PROFILE_BYTES, machine_profile};
use tandem_sched::cost::Speed;
use tandem_sched::plan::{self, Answered, BreakEven, Course, Judged, MAX_MACHINES, Way, Workload};
use tandem_sched::profile::{Catalogue, Link, Machine};

use crate::environment::Environment;
use crate::{config, files, output, paced, security};
use trial::{Ran, Trial, Wanted};

/// New tokens of one step of prefill.
const CHUNK: f64 = 2048.0;

/// Machines whose times differ by less than this factor are of one kind.
const ALIKE: f64 = 1.1;

/// Most tokens of an answer.
const MOST_TOKENS: u32 = 1_000_000;

/// The name of a way.
fn way(way: Way, is_built: bool) -> String {
    let name = match way {
        Way::Alone => "alone",
        Way::Pair => "pair",
        Way::LayerSplit => "layers split",
        Way::Servers => "a server each",
        Way::Mixed => "mixed",
    };
    match is_built {
        true => name.to_owned(),
        false => format!("{name} (not built)"),
    }
}

/// Arguments of `tandem plan`.
#[derive(Args)]
pub struct Arguments {
    /// A machine: the name of a profile, or the file of one; repeated, also for equal machines.
    #[arg(
        long = "machine",
        value_name = "PROFILE",
        required_unless_present_any = ["list", "explain"]
    )]
    machines: Vec<String>,
    /// The model and the tokens of its answers; repeated if each work needs several.
    #[arg(
        long = "model",
        value_name = "NAME[:ANSWER]",
        required_unless_present_any = ["list", "explain"]
    )]
    models: Vec<String>,
    /// The link between machines.
    #[arg(long, default_value = "10gbit", conflicts_with = "explain")]
    link: String,
    /// Tokens of the prompt; several to compare.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "5000", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    prompt: Vec<u32>,
    /// Tokens of the answer, where a model does not say.
    #[arg(long, value_name = "TOKENS", default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    answer: u32,
    /// Tokens at the beginning that the works of a course share, such as a rubric.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    shared: u32,
    /// Works of the course.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    works: u32,
    /// Most answers that a machine writes at once in a course; several to compare.
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: Vec<u32>,
    /// More models and links: a file like profiles/models.toml.
    #[arg(long, value_name = "FILE")]
    profiles: Vec<PathBuf>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Draws the phases of one answer to the first prompt into a file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Lists the profiles that there are.
    #[arg(long)]
    list: bool,
    /// Plans with the nodes of a running cluster and what they measured: their prefill and decode, and the link between
    /// them. A node that has not done enough yet is asked for some answers. --model then has the names of the configuration.
    #[arg(long, requires = "config", conflicts_with_all = ["machines", "profiles", "list", "paced"])]
    explain: bool,
    /// With --explain: the configuration that names the nodes.
    #[arg(long, value_name = "FILE", requires = "explain")]
    config: Option<PathBuf>,
    #[command(flatten)]
    security: security::Arguments,
    /// Runs each way that tandem does, as processes of nodes that take the machines' time and compute nothing, and puts
    /// what was measured beside what was predicted.
    #[arg(long)]
    paced: bool,
    /// How many times faster than the machines the paced nodes are; caches are as many times smaller.
    #[arg(long, default_value_t = 1.0, requires = "paced")]
    speed: f64,
    /// Folder for the logs of paced nodes.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "out/paced",
        requires = "paced"
    )]
    out: PathBuf,
}

/// One answer of a model to a prompt.
#[derive(Serialize)]
struct Request {
    model: String,
    prompt: u32,
    answer: f64,
    ways: Vec<Judged<Answered>>,
    pays_from: Vec<BreakEven>,
}

/// A course.
#[derive(Serialize)]
struct Run {
    prompt: u32,
    batch: u32,
    ways: Vec<Judged<Course>>,
}

/// What is planned with.
struct Fleet {
    machines: Vec<Machine>,
    /// Has the models.
    catalogue: Catalogue,
    link: Link,
    /// Each with the tokens of its answers.
    models: Vec<(String, u32)>,
    /// Answers at once, where nodes run already.
    places: Option<u32>,
    /// What should be known of all this.
    notes: Vec<String>,
}

impl Fleet {
    /// What the figures are.
    const fn figures(&self) -> &'static str {
        match self.places {
            None => "profiles",
            Some(_) => "what the nodes measured",
        }
    }
}

/// All that was asked.
#[derive(Serialize)]
struct Answer {
    /// What it is calculated of.
    figures: &'static str,
    link: Link,
    works: u32,
    requests: Vec<Request>,
    courses: Vec<Run>,
    /// What should be known of all of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    /// What was run with paced nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    paced: Option<Paced>,
}

/// What was run with paced nodes.
#[derive(Serialize)]
struct Paced {
    /// How many times faster than the machines they were.
    speed: f64,
    runs: Vec<Ran>,
    /// Why ways have no run.
    failed: Vec<String>,
}

impl Paced {
    fn code(&self) -> ExitCode {
        match self.failed.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

/// Prints what each way would take.
///
/// # Errors
/// If a name is not known, a profile cannot be read, or the result cannot be written.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let arguments = &arguments;
    if arguments.list {
        output::print(&words::list(&catalogue(arguments)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.security.are_given() && !arguments.explain {
        bail!("--plaintext and --cluster-dir are for --explain: profiles need no connections");
    }
    let fleet = match &arguments.config {
        Some(file) => explained(arguments, file, environment).await?,
        None => of_profiles(arguments)?,
    };
    let mut answer = ask(arguments, &fleet)?;
    if arguments.paced {
        answer.paced = Some(try_out(arguments, &fleet, &answer).await?);
    }
    if let Some(file) = &arguments.svg {
        let drawn = match &answer.paced {
            Some(paced) => drawing::timelines(&paced.runs),
            None => drawing::svg(&answer.requests, answer.figures),
        };
        std::fs::write(file, drawn).with_context(|| format!("cannot write {}", file.display()))?;
    }
    output::print(&match arguments.json {
        true => serde_json::to_string_pretty(&answer)?,
        false => words::told(&answer),
    })?;
    Ok(answer.paced.map_or(ExitCode::SUCCESS, |paced| paced.code()))
}

fn catalogue(arguments: &Arguments) -> anyhow::Result<Catalogue> {
    let mut catalogue = Catalogue::built_in()?;
    for file in &arguments.profiles {
        let text = files::read_text(file, MAX_PROFILE_BYTES)?;
        catalogue.add_lists(&file.display().to_string(), &text)?;
    }
    Ok(catalogue)
}

fn of_profiles(arguments: &Arguments) -> anyhow::Result<Fleet> {
    let mut catalogue = catalogue(arguments)?;
    let named = arguments.models.iter();
    let models = named.map(|named| asked(named, arguments.answer, |_| false));
    Ok(Fleet {
        machines: machines(&mut catalogue, &arguments.machines)?,
        link: catalogue.link(&arguments.link)?.clone(),
        models: models.collect::<Result<_, _>>()?,
        places: None,
        notes: Vec::new(),
        catalogue,
    })
}

async fn explained(
    arguments: &Arguments,
    file: &Path,
    environment: &Environment,
) -> anyhow::Result<Fleet> {
    let security = arguments.security.security(environment)?;
    let config = config::load(file)?.coordinator;
    let known = |name: &str| config.models.iter().any(|model| model.name == name);
    let named = arguments.models.iter();
    let models = named.map(|named| asked(named, arguments.answer, known));
    let mut models: Vec<(String, u32)> = models.collect::<Result<_, _>>()?;
    if models.is_empty() {
        let on_nodes = config.models.iter().filter(|m| !m.decode.is_empty());
        models.extend(on_nodes.map(|model| (model.name.clone(), arguments.answer)));
    }
    let prompt = arguments.prompt.iter().max().copied().unwrap_or(0);
    let cluster = measured::Cluster::of(&config, &security, models)?;
    cluster.measure(prompt).await
}

/// Runs what was planned, as far as tandem does it.
async fn try_out(arguments: &Arguments, fleet: &Fleet, answer: &Answer) -> anyhow::Result<Paced> {
    if !arguments.profiles.is_empty() {
        bail!(
            "--paced runs models and links of the profiles that come with tandem; leave --profiles out"
        );
    }
    let trial = Trial {
        machines: &fleet.machines,
        profiles: &arguments.machines,
        link: &fleet.link,
        speed: arguments.speed,
        logs: arguments.out.clone(),
    };
    let mut wanted = Vec::new();
    for request in &answer.requests {
        let workloads = workloads(arguments, fleet, request.prompt)?;
        let workload = workloads
            .iter()
            .find(|workload| workload.model.name == request.model);
        let known = request.ways.iter().filter_map(Judged::known);
        for answered in known.filter(|answered| answered.is_built) {
            wanted.extend(workload.map(|workload| trial.of_request(answered, workload)));
        }
    }
    for run in &answer.courses {
        let workloads = workloads(arguments, fleet, run.prompt)?;
        let known = run.ways.iter().filter_map(Judged::known);
        for course in known.filter(|course| course.is_built) {
            wanted.push(trial.of_course(course, &workloads, (arguments.works, run.batch)));
        }
    }
    run_all(&trial, &wanted).await
}

/// Runs all of it, and says meanwhile what is run.
async fn run_all(trial: &Trial<'_>, wanted: &[Wanted<'_>]) -> anyhow::Result<Paced> {
    paced::check_speed(trial.speed)?;
    trial.check(wanted)?;
    let (mut runs, mut failed) = (Vec::new(), Vec::new());
    for (i, one) in wanted.iter().enumerate() {
        let seconds = plan::run(&one.setup)?.end_s / trial.speed;
        eprintln!(
            "{} of {}: {}, about {seconds:.0} s after a warm-up",
            i + 1,
            wanted.len(),
            words::wanted(one)
        );
        // What the others found is worth showing all the same.
        match trial.run(one).await {
            Ok(ran) => runs.push(ran),
            Err(error) => failed.push(output::explain(&error)),
        }
    }
    Ok(Paced {
        speed: trial.speed,
        runs,
        failed,
    })
}

/// The machines and models of the claim that one meets most: two machines that prefill, two that decode, two models.
const DEMO_MACHINES: [&str; 4] = ["spark", "spark", "m3-ultra", "m4-max"];
/// Each model, and the tokens of its answers.
const DEMO_MODELS: [(&str, f64); 2] = [("qwen3-coder-30b", 800.0), ("gpt-oss-120b", 1200.0)];
/// Tokens of each prompt.
const DEMO_PROMPT: f64 = 5000.0;

/// `tandem demo --paced`: a course by one Mac, by two, and by two with two machines that prefill for them.
///
/// # Errors
/// If this machine has no memory for it, or a request has no answer.
pub async fn demo(speed: f64, works: u32, json: bool, out: &Path) -> anyhow::Result<ExitCode> {
    let mut catalogue = Catalogue::built_in()?;
    let names = DEMO_MACHINES.map(str::to_owned);
    let machines = machines(&mut catalogue, &names)?;
    let link = catalogue.link("10gbit")?;
    let workload = |(name, answer)| {
        let model = catalogue.model(name)?;
        anyhow::Ok(Workload {
            model,
            prompt: DEMO_PROMPT,
            shared: 0.0,
            answer,
        })
    };
    let workloads: Vec<Workload<'_>> = DEMO_MODELS
        .into_iter()
        .map(workload)
        .collect::<Result<_, _>>()?;
    let trial = Trial {
        machines: &machines,
        profiles: &names,
        link,
        speed,
        logs: out.join("logs"),
    };
    let mut wanted = Vec::new();
    let macs: Vec<&Machine> = machines.iter().skip(2).collect();
    let all: Vec<&Machine> = machines.iter().collect();
    for batch in [1, 8] {
        for (machines, ways) in [
            (&macs, &[Way::Alone, Way::Servers][..]),
            (&all, &[Way::Servers, Way::Pair][..]),
        ] {
            let asked = plan::Wanted {
                workloads: workloads.clone(),
                works: f64::from(works),
                batch: f64::from(batch),
            };
            let planned = plan::course(machines, link, &asked);
            let known = planned.iter().filter_map(Judged::known);
            for course in known.filter(|course| ways.contains(&course.way)) {
                wanted.push(trial.of_course(course, &workloads, (works, batch)));
            }
        }
    }
    let paced = run_all(&trial, &wanted).await?;
    std::fs::create_dir_all(out)
        .with_context(|| format!("cannot make the folder {}", out.display()))?;
    let drawn = out.join("timeline.svg");
    std::fs::write(&drawn, drawing::timelines(&paced.runs))
        .with_context(|| format!("cannot write {}", drawn.display()))?;
    if json {
        output::print(&serde_json::to_string_pretty(&paced)?)?;
    } else {
        output::print(&words::paced(&paced))?;
        output::print(&format!("drawn in {}", drawn.display()))?;
    }
    Ok(paced.code())
}

/// The machines that are meant; equal ones are numbered.
fn machines(catalogue: &mut Catalogue, named: &[String]) -> anyhow::Result<Vec<Machine>> {
    if named.len() > MAX_MACHINES {
        bail!(
            "{} machines are named; the most is {MAX_MACHINES}",
            named.len()
        );
    }
    let mut machines: Vec<Machine> = Vec::new();
    for name in named {
        let name = machine_profile(catalogue, name)?;
        machines.push(catalogue.machine(&name)?.clone());
    }
    let names: Vec<String> = machines.iter().map(|m| m.name.clone()).collect();
    for (i, machine) in machines.iter_mut().enumerate() {
        let equal = |until: usize| names[..until].iter().filter(|n| **n == names[i]).count();
        if equal(names.len()) > 1 {
            machine.name = format!("{}-{}", names[i], equal(i) + 1);
        }
    }
    Ok(machines)
}

/// The model and the tokens of its answers in `NAME[:ANSWER]`. The whole is a name if it is a known one.
fn asked(
    named: &str,
    answer: u32,
    is_known: impl Fn(&str) -> bool,
) -> anyhow::Result<(String, u32)> {
    let (name, tokens) = match named.rsplit_once(':') {
        Some((name, tokens)) if !is_known(named) => (name, tokens.parse::<u32>().ok()),
        _ => (named, Some(answer)),
    };
    let tokens = tokens.filter(|tokens| (1..=MOST_TOKENS).contains(tokens));
    let tokens = tokens.with_context(|| {
        format!("--model {named}: behind the colon stands a number of tokens up to {MOST_TOKENS}, such as {name}:800")
    })?;
    Ok((name.to_owned(), tokens))
}

/// What each work asks, with a prompt of this size.
fn workloads<'a>(
    arguments: &Arguments,
    fleet: &'a Fleet,
    prompt: u32,
) -> anyhow::Result<Vec<Workload<'a>>> {
    let workload = |(name, answer): &(String, u32)| {
        Ok(Workload {
            model: fleet.catalogue.model(name)?,
            prompt: f64::from(prompt),
            // One token at least is a work's own.
            shared: f64::from(arguments.shared.min(prompt - 1)),
            answer: f64::from(*answer),
        })
    };
    fleet.models.iter().map(workload).collect()
}

/// Answers at once, as far as running nodes have places.
fn batches(arguments: &Arguments, fleet: &Fleet) -> Vec<u32> {
    let most = fleet.places.unwrap_or(u32::MAX);
    let batches = arguments.batch.iter().map(|b| *b.min(&most));
    batches.collect::<BTreeSet<u32>>().into_iter().collect()
}

fn notes(arguments: &Arguments, fleet: &Fleet) -> Vec<String> {
    let mut notes = fleet.notes.clone();
    if let Some(places) = fleet.places
        && arguments.batch.iter().any(|batch| *batch > places)
    {
        notes.push(format!(
            "no more than {places} answers at once are planned: a node has no more places for them (--slots)"
        ));
    }
    notes
}

fn ask(arguments: &Arguments, fleet: &Fleet) -> anyhow::Result<Answer> {
    let (machines, link) = (&fleet.machines, &fleet.link);
    let (mut requests, mut courses) = (Vec::new(), Vec::new());
    let all: Vec<&Machine> = machines.iter().collect();
    for &prompt in &arguments.prompt {
        let workloads = workloads(arguments, fleet, prompt)?;
        for workload in &workloads {
            requests.push(request(machines, link, workload, prompt));
        }
        for batch in batches(arguments, fleet) {
            let wanted = plan::Wanted {
                workloads: workloads.clone(),
                works: f64::from(arguments.works),
                batch: f64::from(batch),
            };
            let ways = plan::course(&all, link, &wanted);
            courses.push(Run {
                prompt,
                batch,
                ways,
            });
        }
    }
    Ok(Answer {
        figures: fleet.figures(),
        link: link.clone(),
        works: arguments.works,
        requests,
        courses,
        notes: notes(arguments, fleet),
        paced: None,
    })
}

/// Whether two machines take about as long for a job: measured figures of equal ones differ a little.
fn are_alike(a: &Machine, b: &Machine, workload: &Workload<'_>) -> bool {
    let times = |machine| {
        let speed = Speed::new(machine, workload.model).ok()?;
        let answered = plan::served_alone(&speed, workload, 1.0);
        Some([answered.first_token_s, answered.end_s])
    };
    match (times(a), times(b)) {
        (Some(a), Some(b)) => {
            let ratios = a.iter().zip(&b).map(|(a, b)| a / b);
            ratios
                .into_iter()
                .all(|ratio| (ALIKE.recip()..=ALIKE).contains(&ratio))
        }
        _ => a.figures == b.figures,
    }
}

fn request(machines: &[Machine], link: &Link, workload: &Workload<'_>, prompt: u32) -> Request {
    // Of equal machines two are enough.
    let mut kinds: Vec<&Machine> = Vec::new();
    for machine in machines {
        let equal = kinds
            .iter()
            .filter(|kind| are_alike(kind, machine, workload));
        if equal.count() < 2 {
            kinds.push(machine);
        }
    }
    let mut pays_from = Vec::new();
    let pairs = match Way::Pair.is_built_for(workload.model) {
        true => kinds.as_slice(),
        false => &[],
    };
    for p in pairs {
        for d in kinds.iter().filter(|d| !are_alike(d, p, workload)) {
            pays_from.extend(plan::break_even([p, d], link, workload, CHUNK));
        }
    }
    Request {
        model: workload.model.name.clone(),
        prompt,
        answer: workload.answer,
        ways: plan::request(&kinds, link, workload, CHUNK),
        pays_from,
    }
}
