//! A course: the flow of works through machines that gives most works an hour.

use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};
use serde::Serialize;

use super::{Judged, Way, Workload};
use crate::cost::{Missing, Speed};
use crate::profile::{Link, Machine, Model};

/// Share of a machine's memory that weights and caches may take.
const MEMORY_SHARE: f64 = 0.9;
/// What is used to this share is full.
const FULL: f64 = 0.999;
/// Most machines of a fleet, because each division into those that prefill and those that decode is tried.
pub const MAX_MACHINES: usize = 10;

/// What a machine does in a course.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// The machine.
    pub machine: String,
    /// The model.
    pub model: String,
    /// Share of its time in which it prefills for others.
    pub prefill: f64,
    /// Share of its time in which it decodes what others prefilled.
    pub decode: f64,
    /// Share of its time in which it serves whole requests.
    pub serve: f64,
    /// Sequences that it has room to decode at once.
    pub batch: f64,
}

/// What a course takes by one way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Course {
    /// The way.
    pub way: Way,
    /// The machines that have something to do.
    pub machines: Vec<String>,
    /// Works an hour, each of which needs all workloads, once it runs evenly.
    pub per_hour: f64,
    /// Who does what.
    pub parts: Vec<Part>,
    /// What it is bound by: machines, or the link into or out of one.
    pub bound_by: Vec<String>,
    /// Watt-hours of a work, where the watts of all machines are known.
    pub watt_hours: Option<f64>,
    /// Whether tandem does it.
    pub is_built: bool,
    /// What the figures rest on.
    pub notes: Vec<String>,
}

/// What is to be planned: a course of so many works.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The workloads of each work.
    pub workloads: Vec<Workload<'a>>,
    /// How many works.
    pub works: f64,
    /// Most sequences that a machine decodes at once.
    pub batch: f64,
}

/// A course by each way: the best machine alone, a server on each machine, machines that only prefill for others that
/// only decode, and machines that do each of it in a part of their time.
///
/// Machines have names of their own. More than [`MAX_MACHINES`] are not divided into those that prefill and those that
/// decode: the first half prefills then.
#[must_use]
pub fn course(machines: &[&Machine], link: &Link, wanted: &Wanted<'_>) -> Vec<Judged<Course>> {
    let per_hour = |judged: &Judged<Course>| judged.known().map_or(0.0, |c| c.per_hour);
    let better = |a: &Judged<Course>, b: &Judged<Course>| per_hour(a).total_cmp(&per_hour(b));
    let solve = |way, able: &[Able]| {
        let used: Vec<&Machine> = machines
            .iter()
            .zip(able)
            .filter(|(_, able)| able.prefills || able.decodes || able.serves)
            .map(|(machine, _)| *machine)
            .collect();
        Judged::of(
            way,
            &used,
            Fleet {
                machines,
                able,
                link,
                wanted,
            }
            .solve(way),
        )
    };
    let all = machines.len();
    let alone = (0..all).map(|one| {
        let able = |m| Able {
            serves: m == one,
            ..Able::default()
        };
        solve(Way::Alone, &(0..all).map(able).collect::<Vec<_>>())
    });
    let servers = Able {
        serves: true,
        ..Able::default()
    };
    let divisions = match all {
        0..=MAX_MACHINES => 1..(1_usize << all).saturating_sub(1),
        _ => {
            let half = (1_usize << (all / 2).min(63)) - 1;
            half..half + 1
        }
    };
    let pairs = divisions.map(|chosen| {
        let able = |m: usize| Able {
            prefills: chosen >> m & 1 == 1,
            decodes: chosen >> m & 1 == 0,
            serves: false,
        };
        solve(Way::Pair, &(0..all).map(able).collect::<Vec<_>>())
    });
    let anything = Able {
        prefills: true,
        decodes: true,
        serves: true,
    };
    let mut ways = Vec::new();
    ways.extend(alone.max_by(better));
    if all > 1 {
        ways.push(solve(Way::Servers, &vec![servers; all]));
        ways.extend(pairs.max_by(better));
        ways.push(solve(Way::Mixed, &vec![anything; all]));
    }
    ways
}

/// What a machine may do.
#[derive(Debug, Clone, Copy, Default)]
struct Able {
    prefills: bool,
    decodes: bool,
    serves: bool,
}

/// A flow of works of a workload.
#[derive(Debug, Clone, Copy)]
struct Flow {
    workload: usize,
    /// Who prefills for it, if another machine does.
    from: Option<usize>,
    by: usize,
}

/// What a machine takes for one work of a workload, in seconds.
struct Cost {
    /// Of the part that differs.
    prefill: f64,
    /// Its share of a batch.
    decode: f64,
    batch: f64,
    notes: Vec<String>,
}

struct Fleet<'a> {
    machines: &'a [&'a Machine],
    able: &'a [Able],
    link: &'a Link,
    wanted: &'a Wanted<'a>,
}

impl Fleet<'_> {
    /// The flows that give most works an hour.
    ///
    /// # Errors
    /// If no machine has the figures for some workload.
    fn solve(&self, way: Way) -> Result<Course, Missing> {
        let mut costs = Vec::new();
        for workload in &self.wanted.workloads {
            let of = (0..self.machines.len()).map(|m| self.cost(m, workload));
            costs.push(of.collect::<Vec<_>>());
        }
        let flows = self.flows(&costs);
        for (workload, costs) in costs.iter().enumerate() {
            if flows.iter().all(|flow| flow.workload != workload) {
                let missing = costs.iter().find_map(|cost| cost.as_ref().err());
                return Err(missing.cloned().unwrap_or(Missing::Flow));
            }
        }
        let usage = Usage {
            fleet: self,
            costs: &costs,
        };
        let rates = usage.best(&flows).ok_or(Missing::Flow)?;
        let flowing: Vec<(Flow, f64)> = flows.into_iter().zip(rates).collect();
        Ok(usage.told(way, &flowing))
    }

    /// # Errors
    /// If the machine lacks figures for the workload's model.
    fn cost(&self, machine: usize, workload: &Workload<'_>) -> Result<Cost, Missing> {
        let speed = Speed::new(self.machines[machine], workload.model)?;
        let batch = self.batch(machine, workload)?;
        Ok(Cost {
            prefill: speed.prefill_s(workload.shared, workload.prompt - workload.shared),
            decode: speed.decode_s(batch, workload.prompt, workload.answer) / batch,
            batch,
            notes: match batch < self.wanted.batch.min(self.wanted.works) {
                true => [
                    speed.notes(workload.prompt, batch),
                    vec![self.few(machine, workload, batch)],
                ]
                .concat(),
                false => speed.notes(workload.prompt, batch),
            },
        })
    }

    /// The sequences that a machine decodes at once: no more than are wanted, and than its memory has room for.
    ///
    /// # Errors
    /// If there is no room for the weights.
    fn batch(&self, machine: usize, workload: &Workload<'_>) -> Result<f64, Missing> {
        let machine = self.machines[machine];
        let mut models: Vec<&Model> = self.wanted.workloads.iter().map(|j| j.model).collect();
        models.sort_by(|a, b| a.name.cmp(&b.name));
        models.dedup_by(|a, b| a.name == b.name);
        let weights: f64 = models.iter().map(|model| model.weights_gb).sum();
        let room = machine.memory_gb * MEMORY_SHARE - weights;
        let each = workload.model.kv_bytes(workload.prompt + workload.answer) / 1e9;
        let fits = (room / self.wanted.workloads.len() as f64 / each.max(1e-9)).floor();
        if fits < 1.0 {
            let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
            return Err(Missing::Memory {
                machine: machine.name.clone(),
                models: names.join(", "),
            });
        }
        Ok(self.wanted.batch.min(self.wanted.works).min(fits))
    }

    /// All flows that are possible.
    fn flows(&self, costs: &[Vec<Result<Cost, Missing>>]) -> Vec<Flow> {
        let mut flows = Vec::new();
        for (workload, costs) in costs.iter().enumerate() {
            let able = |m: &usize| costs[*m].is_ok();
            for by in (0..self.machines.len()).filter(able) {
                let from = (0..self.machines.len()).filter(able);
                let from = from.filter(|m| self.able[by].decodes && self.able[*m].prefills);
                let from = from.filter(|m| *m != by).map(Some);
                let whole = self.able[by].serves.then_some(None);
                let each = whole.into_iter().chain(from);
                flows.extend(each.map(|from| Flow { workload, from, by }));
            }
        }
        flows
    }

    fn few(&self, machine: usize, workload: &Workload<'_>, batch: f64) -> String {
        let (machine, model) = (&self.machines[machine].name, &workload.model.name);
        format!("{machine} with {model}: memory has room for {batch:.0} sequences at once")
    }
}

/// What flows take of machines and links.
struct Usage<'a> {
    fleet: &'a Fleet<'a>,
    costs: &'a [Vec<Result<Cost, Missing>>],
}

impl Usage<'_> {
    fn cost(&self, flow: Flow, machine: usize) -> Option<&Cost> {
        self.costs[flow.workload][machine].as_ref().ok()
    }

    /// Seconds of prefill and of decode that a work of a flow takes of a machine.
    fn time(&self, flow: Flow, machine: usize) -> (f64, f64) {
        let cost = self.cost(flow, machine);
        let of = |by: usize, seconds: fn(&Cost) -> f64| match by == machine {
            true => cost.map_or(0.0, seconds),
            false => 0.0,
        };
        let prefill = of(flow.from.unwrap_or(flow.by), |cost| cost.prefill);
        (prefill, of(flow.by, |cost| cost.decode))
    }

    /// Seconds that a work of a flow takes of the link out of a machine and into it.
    fn crossing(&self, flow: Flow, machine: usize) -> (f64, f64) {
        let workload = &self.fleet.wanted.workloads[flow.workload];
        let (bytes, rest) = workload
            .model
            .handoff_bytes(workload.shared, workload.prompt);
        let seconds = (bytes + rest) / (self.fleet.link.goodput_gb_s * 1e9);
        let of = |is: bool| if is { seconds } else { 0.0 };
        let crosses = flow.from.is_some();
        (
            of(flow.from == Some(machine)),
            of(crosses && flow.by == machine),
        )
    }

    /// Works a second of each flow: most works of which each workload is done, in the time that each machine and link has.
    fn best(&self, flows: &[Flow]) -> Option<Vec<f64>> {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let any = (0.0, f64::INFINITY);
        let works = problem.add_var(1.0, any);
        let variables: Vec<Variable> = flows.iter().map(|_| problem.add_var(0.0, any)).collect();
        let each = || flows.iter().zip(&variables);
        for workload in 0..self.costs.len() {
            let mut sum = LinearExpr::empty();
            sum.add(works, -1.0);
            each()
                .filter(|(flow, _)| flow.workload == workload)
                .for_each(|(_, variable)| sum.add(*variable, 1.0));
            problem.add_constraint(sum, ComparisonOp::Eq, 0.0);
        }
        for machine in 0..self.fleet.machines.len() {
            let limits: [&dyn Fn(Flow) -> f64; 3] = [
                &|flow| self.time(flow, machine).0 + self.time(flow, machine).1,
                &|flow| self.crossing(flow, machine).0,
                &|flow| self.crossing(flow, machine).1,
            ];
            for seconds in limits {
                let mut sum = LinearExpr::empty();
                each().for_each(|(flow, variable)| sum.add(*variable, seconds(*flow)));
                problem.add_constraint(sum, ComparisonOp::Le, 1.0);
            }
        }
        let solution = problem.solve().ok()?.into_solution().ok()?;
        Some(
            variables
                .iter()
                .map(|variable| solution.var_value(*variable))
                .collect(),
        )
    }

    fn told(&self, way: Way, flowing: &[(Flow, f64)]) -> Course {
        let Fleet {
            machines,
            able,
            link,
            wanted,
        } = self.fleet;
        let rate: f64 = flowing
            .iter()
            .filter(|(flow, _)| flow.workload == 0)
            .map(|(_, rate)| rate)
            .sum();
        let (mut parts, mut notes, mut bound_by, mut used) = (vec![], vec![], vec![], vec![]);
        for (m, machine) in machines.iter().enumerate() {
            let of_machine = self.parts(m, flowing);
            let busy: f64 = of_machine
                .iter()
                .map(|p| p.prefill + p.decode + p.serve)
                .sum();
            let on_link = |side: fn((f64, f64)) -> f64| {
                let all = flowing
                    .iter()
                    .map(|(flow, rate)| side(self.crossing(*flow, m)) * rate);
                all.sum::<f64>()
            };
            if busy > FULL {
                bound_by.push(machine.name.clone());
            }
            for (share, words) in [(on_link(|c| c.0), "out of"), (on_link(|c| c.1), "into")] {
                if share > FULL {
                    bound_by.push(format!("{} {words} {}", link.name, machine.name));
                }
            }
            if busy > 0.0 {
                used.push(machine.name.clone());
                notes.extend(self.notes(m, flowing));
            }
            let missing = self
                .costs
                .iter()
                .filter_map(|costs| costs[m].as_ref().err());
            let able = &able[m];
            if able.prefills || able.decodes || able.serves {
                notes.extend(missing.map(ToString::to_string));
            }
            parts.extend(of_machine);
        }
        Course {
            way,
            machines: used,
            per_hour: rate * 3600.0,
            watt_hours: self.watt_hours(&parts, rate),
            parts,
            bound_by,
            is_built: wanted
                .workloads
                .iter()
                .all(|workload| way.is_built_for(workload.model)),
            notes,
        }
    }

    /// What a machine does for each model.
    fn parts(&self, machine: usize, flowing: &[(Flow, f64)]) -> Vec<Part> {
        let workloads = self.fleet.wanted.workloads.iter().enumerate();
        let part = |(workload, of): (usize, &Workload<'_>)| {
            let mut part = Part {
                machine: self.fleet.machines[machine].name.clone(),
                model: of.model.name.clone(),
                prefill: 0.0,
                decode: 0.0,
                serve: 0.0,
                batch: self.costs[workload][machine]
                    .as_ref()
                    .map_or(0.0, |c| c.batch),
            };
            for (flow, rate) in flowing.iter().filter(|(flow, _)| flow.workload == workload) {
                let (prefill, decode) = self.time(*flow, machine);
                match flow.from {
                    None => part.serve += (prefill + decode) * rate,
                    Some(_) => {
                        part.prefill += prefill * rate;
                        part.decode += decode * rate;
                    }
                }
            }
            part
        };
        let parts = workloads.map(part);
        parts
            .filter(|p| p.prefill + p.decode + p.serve > 1e-6)
            .collect()
    }

    fn notes(&self, machine: usize, flowing: &[(Flow, f64)]) -> Vec<String> {
        let of = flowing.iter().filter(|(flow, rate)| {
            *rate > 0.0 && (flow.by == machine || flow.from == Some(machine))
        });
        let mut workloads: Vec<usize> = of.map(|(flow, _)| flow.workload).collect();
        workloads.sort_unstable();
        workloads.dedup();
        let costs = workloads
            .iter()
            .filter_map(|workload| self.costs[*workload][machine].as_ref().ok());
        costs.flat_map(|cost| cost.notes.clone()).collect()
    }

    /// Watt-hours of one work.
    fn watt_hours(&self, parts: &[Part], rate: f64) -> Option<f64> {
        let mut watts = 0.0;
        for machine in self.fleet.machines {
            let known = machine.watts.as_ref();
            let of = parts.iter().filter(|part| part.machine == machine.name);
            let mut idle = 1.0;
            for part in of {
                let known = known?;
                // A machine that serves whole requests decodes for the most part.
                watts += part.prefill * known.prefill + (part.decode + part.serve) * known.decode;
                idle -= part.prefill + part.decode + part.serve;
            }
            if idle < 1.0 {
                watts += idle.max(0.0) * known?.idle;
            }
        }
        Some(watts / rate / 3600.0)
    }
}
