//! `tandem plan`: what machines would do together, of their profiles; no node needs to run.
//!
//! - this file: what is asked, and what the cost model answers;
//! - [`words`]: tables and sentences;
//! - [`drawing`]: the phases as a picture.

mod drawing;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tandem_sched::plan::{
    self, Answered, BreakEven, Course, Job, Judged, MAX_MACHINES, Wanted, Way,
};
use tandem_sched::profile::{Catalogue, Link, Machine, Model};

use crate::{files, output};

/// Largest profile that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// New tokens of one step of prefill.
const CHUNK: f64 = 2048.0;

/// Most tokens of an answer.
const MOST_TOKENS: u32 = 1_000_000;

/// Arguments of `tandem plan`.
#[derive(Args)]
pub struct Arguments {
    /// A machine: the name of a profile, or the file of one; repeated, also for equal machines.
    #[arg(
        long = "machine",
        value_name = "PROFILE",
        required_unless_present = "list"
    )]
    machines: Vec<String>,
    /// The model and the tokens of its answers; repeated if each work needs several.
    #[arg(
        long = "model",
        value_name = "NAME[:ANSWER]",
        required_unless_present = "list"
    )]
    models: Vec<String>,
    /// The link between machines.
    #[arg(long, default_value = "10gbit")]
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

/// All that was asked.
#[derive(Serialize)]
struct Answer {
    link: Link,
    works: u32,
    requests: Vec<Request>,
    courses: Vec<Run>,
}

/// Prints what each way would take.
///
/// # Errors
/// If a name is not known, a profile cannot be read, or the result cannot be written.
pub fn main(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut catalogue = Catalogue::built_in()?;
    for file in &arguments.profiles {
        let text = files::read_text(file, MAX_BYTES)?;
        catalogue.add_lists(&file.display().to_string(), &text)?;
    }
    if arguments.list {
        output::print(&words::list(&catalogue))?;
        return Ok(ExitCode::SUCCESS);
    }
    let machines = machines(&mut catalogue, &arguments.machines)?;
    let answer = ask(arguments, &catalogue, &machines)?;
    if let Some(file) = &arguments.svg {
        let drawn = drawing::svg(&answer.requests);
        std::fs::write(file, drawn).with_context(|| format!("cannot write {}", file.display()))?;
    }
    output::print(&match arguments.json {
        true => serde_json::to_string_pretty(&answer)?,
        false => words::told(&answer),
    })?;
    Ok(ExitCode::SUCCESS)
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
        let name = match Path::new(name).extension() {
            None => name.clone(),
            Some(_) => {
                let text = files::read_text(Path::new(name), MAX_BYTES)?;
                catalogue.add_machine(name, &text)?
            }
        };
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

/// The model that an argument names, and the tokens of its answers.
fn model<'a>(
    catalogue: &'a Catalogue,
    named: &str,
    answer: u32,
) -> anyhow::Result<(&'a Model, f64)> {
    let (name, tokens) = match named.rsplit_once(':') {
        Some((name, tokens)) => (name, tokens.parse::<u32>().ok()),
        None => (named, Some(answer)),
    };
    let tokens = tokens.filter(|tokens| (1..=MOST_TOKENS).contains(tokens));
    let tokens = tokens.with_context(|| {
        format!("--model {named}: behind the colon stands a number of tokens up to {MOST_TOKENS}, such as {name}:800")
    })?;
    Ok((catalogue.model(name)?, f64::from(tokens)))
}

fn ask(
    arguments: &Arguments,
    catalogue: &Catalogue,
    machines: &[Machine],
) -> anyhow::Result<Answer> {
    let link = catalogue.link(&arguments.link)?;
    let models: Vec<(&Model, f64)> = arguments
        .models
        .iter()
        .map(|named| model(catalogue, named, arguments.answer))
        .collect::<Result<_, _>>()?;
    let (mut requests, mut courses) = (Vec::new(), Vec::new());
    let all: Vec<&Machine> = machines.iter().collect();
    for &prompt in &arguments.prompt {
        let jobs = models.iter().map(|&(model, answer)| Job {
            model,
            prompt: f64::from(prompt),
            // One token at least is a work's own.
            shared: f64::from(arguments.shared.min(prompt - 1)),
            answer,
        });
        let jobs: Vec<Job<'_>> = jobs.collect();
        for job in &jobs {
            requests.push(request(machines, link, job, prompt));
        }
        for &batch in &arguments.batch {
            let wanted = Wanted {
                jobs: jobs.clone(),
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
        link: link.clone(),
        works: arguments.works,
        requests,
        courses,
    })
}

fn request(machines: &[Machine], link: &Link, job: &Job<'_>, prompt: u32) -> Request {
    // Of equal machines two are enough.
    let mut kinds: Vec<&Machine> = Vec::new();
    for machine in machines {
        let equal = kinds.iter().filter(|kind| kind.figures == machine.figures);
        if equal.count() < 2 {
            kinds.push(machine);
        }
    }
    let mut pays_from = Vec::new();
    let pairs = match Way::Pair.is_built_for(job.model) {
        true => kinds.as_slice(),
        false => &[],
    };
    for p in pairs {
        for d in kinds.iter().filter(|d| d.figures != p.figures) {
            pays_from.extend(plan::break_even([p, d], link, job, CHUNK));
        }
    }
    Request {
        model: job.model.name.clone(),
        prompt,
        answer: job.answer,
        ways: plan::request(&kinds, link, job, CHUNK),
        pays_from,
    }
}
