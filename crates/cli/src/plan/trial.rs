//! Ways of a plan that are run: as processes of paced nodes on this machine, with real sockets and caches of the real size.
//!
//! - this file: what is run, and what came out beside what was predicted;
//! - [`cluster`]: the nodes and the coordinator of one way, and its requests.

mod cluster;

use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::Serialize;
use sysinfo::System;
use tandem_engine_llama::MAX_SEQUENCES;
use tandem_sched::plan::{self, Answered, Course, Served, Setup, Way, Workload};
use tandem_sched::profile::{Link, Machine};

use crate::numbers::{float, small};

/// From this share of its processors' time on, in percent, this machine is what a run waits for.
const HOST_BOUND: f64 = 70.0;
/// Memory of a node process that holds nothing, in bytes.
const NODE_BYTES: f64 = 60e6;

/// Tokens of prompts that are run: the template and the name of a work need some.
const SHORTEST_PROMPT: f64 = 40.0;
const LONGEST_PROMPT: f64 = 1_000_000.0;
/// Tokens of an answer that is run, and of all of a model.
const LONGEST_ANSWER: f64 = 100_000.0;
const MOST_WRITTEN: f64 = 10_000_000.0;

/// What all runs have in common.
pub struct Trial<'a> {
    /// The machines, under names of their own.
    pub machines: &'a [Machine],
    /// The profile of each of them: its name or its file.
    pub profiles: &'a [String],
    /// The link between them.
    pub link: &'a Link,
    /// How many times faster than the profiles the nodes are.
    pub speed: f64,
    /// Where nodes write what happens.
    pub logs: PathBuf,
}

/// One way that is to be run.
pub struct Wanted<'a> {
    /// The way.
    pub way: Way,
    /// Who does what.
    pub setup: Setup<'a>,
    /// Works an hour at best, in an even flow.
    pub best_per_hour: Option<f64>,
}

/// What a run takes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Times {
    /// Until its last answer, in seconds.
    pub end_s: f64,
    /// Until the first token of a request that has left the queue, in seconds; the mean.
    pub first_token_s: f64,
    /// Works an hour.
    pub per_hour: f64,
}

/// A run, beside its prediction. All seconds are those of the machines that are played.
#[derive(Debug, Serialize)]
pub struct Ran {
    /// The way.
    pub way: Way,
    /// The machines that have something to do.
    pub machines: Vec<String>,
    /// The models that each work asks.
    pub models: Vec<String>,
    /// Tokens of a prompt.
    pub prompt: f64,
    /// How many works.
    pub works: u32,
    /// Answers of a model that a machine writes at once.
    pub batch: u32,
    /// Works an hour at best, in an even flow.
    pub best_per_hour: Option<f64>,
    /// What the cost model says.
    pub predicted: Times,
    /// What it took.
    pub measured: Times,
    /// How much longer it took than predicted, in percent.
    pub difference_percent: f64,
    /// How busy this machine was meanwhile, in percent of its processors.
    pub host_busy_percent: f64,
    /// True if this machine was so busy that the run waited for it.
    pub is_host_bound: bool,
    /// Requests that were not served as planned, such as after a fallback.
    pub served_otherwise: usize,
    /// Every request as predicted.
    pub predicted_requests: Vec<Served>,
    /// Every request as measured.
    pub measured_requests: Vec<Served>,
}

impl<'a> Trial<'a> {
    /// A single answer by a way.
    pub fn of_request(&'a self, answered: &Answered, workload: &Workload<'a>) -> Wanted<'a> {
        let place = |name: &String| self.machines.iter().position(|m| m.name == *name);
        let places: Vec<usize> = answered.machines.iter().filter_map(place).collect();
        let (prefill, decode) = match *places {
            [prefill, decode] => (vec![prefill], vec![decode]),
            _ => (Vec::new(), places),
        };
        let workload = Workload {
            shared: 0.0,
            ..workload.clone()
        };
        Wanted {
            way: answered.way,
            setup: self.setup(vec![workload], vec![prefill], vec![decode], (1, 1)),
            best_per_hour: None,
        }
    }

    /// A course by a way, with no more answers at once than each machine that writes has room for.
    pub fn of_course(
        &'a self,
        course: &Course,
        workloads: &[Workload<'a>],
        (works, batch): (u32, u32),
    ) -> Wanted<'a> {
        let writes = course.parts.iter().filter(|p| p.decode + p.serve > 1e-6);
        let fits = writes.map(|p| p.batch).fold(f64::from(batch), f64::min);
        let sizes = (works, small(fits).max(1));
        let who = |workload: &Workload<'_>, does: fn(&plan::Part) -> f64| {
            let parts = course
                .parts
                .iter()
                .filter(|p| p.model == workload.model.name);
            let does = parts.filter(|part| does(part) > 1e-6);
            let place = |p: &plan::Part| self.machines.iter().position(|m| m.name == p.machine);
            does.filter_map(place).collect::<Vec<_>>()
        };
        let prefill = workloads
            .iter()
            .map(|workload| who(workload, |part| part.prefill));
        let decode = workloads
            .iter()
            .map(|workload| who(workload, |part| part.decode + part.serve));
        Wanted {
            way: course.way,
            setup: self.setup(
                workloads.to_vec(),
                prefill.collect(),
                decode.collect(),
                sizes,
            ),
            best_per_hour: Some(course.per_hour),
        }
    }

    fn setup(
        &'a self,
        workloads: Vec<Workload<'a>>,
        prefill: Vec<Vec<usize>>,
        decode: Vec<Vec<usize>>,
        (works, batch): (u32, u32),
    ) -> Setup<'a> {
        Setup {
            machines: self.machines.iter().collect(),
            link: self.link,
            workloads,
            prefill,
            decode,
            works,
            batch,
            chunk: super::CHUNK,
        }
    }

    /// Refuses runs that cannot be: with sizes that nodes do not take, with a model that is asked twice, or without memory of
    /// this machine for them.
    ///
    /// # Errors
    /// Names what it needs, and what there is.
    pub fn check(&self, wanted: &[Wanted<'_>]) -> anyhow::Result<()> {
        for setup in wanted.iter().map(|one| &one.setup) {
            let mut names: Vec<&str> = setup
                .workloads
                .iter()
                .map(|j| j.model.name.as_str())
                .collect();
            names.sort_unstable();
            if let Some(twice) = names.windows(2).find(|two| two[0] == two[1]) {
                bail!(
                    "{} is asked twice by each work; paced nodes take each model once",
                    twice[0]
                );
            }
            if setup.batch > MAX_SEQUENCES {
                bail!(
                    "--batch {}: a node writes {MAX_SEQUENCES} answers at most",
                    setup.batch
                );
            }
            for workload in &setup.workloads {
                check_size(workload, setup.works)?;
            }
        }
        self.check_memory(wanted)
    }

    fn check_memory(&self, wanted: &[Wanted<'_>]) -> anyhow::Result<()> {
        let mut system = System::new();
        system.refresh_memory();
        let free = float(system.available_memory());
        for one in wanted {
            let needed = self.bytes(&one.setup);
            if needed > free {
                bail!(
                    "{} for prompts of {:.0} tokens needs {:.1} GB of this machine's memory for caches, and {:.1} GB are free: plan with fewer answers at once (--batch), shorter prompts, or a higher --speed, which divides the size of caches",
                    super::way(one.way, true),
                    one.setup
                        .workloads
                        .first()
                        .map_or(0.0, |workload| workload.prompt),
                    needed / 1e9,
                    free / 1e9
                );
            }
        }
        Ok(())
    }

    /// Bytes that the nodes of a way need: caches on their way, at both ends, and those that are kept.
    fn bytes(&self, setup: &Setup<'_>) -> f64 {
        let workloads = setup.workloads.iter().enumerate().map(|(i, workload)| {
            let each = workload.model.kv_bytes(workload.prompt) / self.speed;
            let crossing = setup.prefill[i].len() * 2;
            each * float(crossing as u64)
        });
        let kept: f64 = (0..setup.machines.len())
            .map(|m| self.kept_bytes(setup, m))
            .sum();
        let used = (0..setup.machines.len())
            .filter(|m| is_used(setup, *m))
            .count();
        let nodes = float(used as u64) * NODE_BYTES;
        workloads.sum::<f64>() + kept + nodes
    }

    /// Bytes of the prefix cache of a machine: of what works share, and of the works that come and go meanwhile.
    fn kept_bytes(&self, setup: &Setup<'_>, machine: usize) -> f64 {
        let workloads = setup.workloads.iter().enumerate();
        let has = workloads.filter(|(i, workload)| {
            workload.shared > 0.0
                && (setup.prefill[*i].contains(&machine) || setup.decode[*i].contains(&machine))
        });
        let bytes = has.map(|(_, workload)| {
            let each = workload.model.kv_bytes(workload.prompt + workload.answer) / self.speed;
            each * f64::from(setup.batch + 2)
        });
        bytes.sum()
    }

    /// Runs a way.
    ///
    /// # Errors
    /// If a node does not start, or a request has no answer.
    pub async fn run(&self, wanted: &Wanted<'_>) -> anyhow::Result<Ran> {
        let setup = &wanted.setup;
        let predicted = plan::run(setup)?;
        let limit = predicted.end_s / self.speed;
        let named = super::way(wanted.way, true);
        let outcome = cluster::run(self, setup, limit)
            .await
            .with_context(|| format!("{named}, run with paced nodes"))?;
        let used = (0..setup.machines.len()).filter(|m| is_used(setup, *m));
        let times = |requests: &[Served]| times(requests, setup.works);
        let (of_plan, of_run) = (times(&predicted.requests), times(&outcome.requests));
        Ok(Ran {
            way: wanted.way,
            machines: used.map(|m| setup.machines[m].name.clone()).collect(),
            models: setup
                .workloads
                .iter()
                .map(|j| j.model.name.clone())
                .collect(),
            prompt: setup
                .workloads
                .first()
                .map_or(0.0, |workload| workload.prompt),
            works: setup.works,
            batch: setup.batch,
            best_per_hour: wanted.best_per_hour,
            difference_percent: (of_run.end_s / of_plan.end_s - 1.0) * 100.0,
            predicted: of_plan,
            measured: of_run,
            host_busy_percent: outcome.host_busy_percent,
            is_host_bound: outcome.host_busy_percent > HOST_BOUND,
            served_otherwise: outcome.served_otherwise,
            predicted_requests: predicted.requests,
            measured_requests: outcome.requests,
        })
    }
}

/// That nodes take such prompts and answers, and that there are not too many of them.
fn check_size(workload: &Workload<'_>, works: u32) -> anyhow::Result<()> {
    let (prompt, answer) = (workload.prompt, workload.answer);
    if !(SHORTEST_PROMPT..=LONGEST_PROMPT).contains(&prompt) {
        bail!(
            "--prompt {prompt}: paced nodes take prompts of {SHORTEST_PROMPT} to {LONGEST_PROMPT} tokens"
        );
    }
    if answer > LONGEST_ANSWER || answer * f64::from(works) > MOST_WRITTEN {
        bail!(
            "answers of {answer} tokens for {works} works: at most {LONGEST_ANSWER} each and {MOST_WRITTEN} together are run"
        );
    }
    Ok(())
}

/// True if a machine has something to do.
fn is_used(setup: &Setup<'_>, machine: usize) -> bool {
    let mut all = setup.prefill.iter().chain(&setup.decode);
    all.any(|machines| machines.contains(&machine))
}

fn times(requests: &[Served], works: u32) -> Times {
    let end_s = requests.iter().map(|r| r.end_s).fold(0.0, f64::max);
    let waits = requests.iter().map(|r| r.first_token_s - r.begins_s);
    let count = u32::try_from(requests.len()).unwrap_or(u32::MAX).max(1);
    Times {
        end_s,
        first_token_s: waits.sum::<f64>() / f64::from(count),
        per_hour: f64::from(works) * 3600.0 / end_s.max(1e-9),
    }
}
