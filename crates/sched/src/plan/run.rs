//! A run of a course, step by step: what a scheduler and nodes like those of tandem take for it.
//!
//! [`super::course`] says what machines could do at best, once works flow evenly. This says what a course of so many
//! works takes from its first request to its last answer: requests wait for a free place, a place is held from the
//! prefill on, and a node computes one chunk of a prefill and one step of all answers in turn.

use std::collections::VecDeque;

use serde::Serialize;

use super::Workload;
use crate::cost::{Missing, Speed};
use crate::profile::{Link, Machine};

/// Who may do what in a run.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// The machines.
    pub machines: Vec<&'a Machine>,
    /// The link between any two of them.
    pub link: &'a Link,
    /// The workloads of each work.
    pub workloads: Vec<Workload<'a>>,
    /// For each workload who prefills for others; nobody where each machine does so for itself.
    pub prefill: Vec<Vec<usize>>,
    /// For each workload who decodes.
    pub decode: Vec<Vec<usize>>,
    /// How many works.
    pub works: u32,
    /// Answers of a workload that a machine writes at once.
    pub batch: u32,
    /// New tokens of one step of prefill.
    pub chunk: f64,
}

/// One request of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Served {
    /// Which work.
    pub work: u32,
    /// Which workload.
    #[serde(rename = "job")]
    pub workload: usize,
    /// Who prefills.
    pub prefill_on: String,
    /// Who decodes.
    pub decode_on: String,
    /// When it leaves the queue, in seconds from the beginning.
    pub begins_s: f64,
    /// When its first token is there.
    pub first_token_s: f64,
    /// When it ends.
    pub end_s: f64,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ran {
    /// Its requests, in the order in which they end.
    pub requests: Vec<Served>,
    /// When the last one ends, in seconds.
    pub end_s: f64,
}

/// What a run takes.
///
/// # Errors
/// If a figure is missing.
pub fn run(setup: &Setup<'_>) -> Result<Ran, Missing> {
    let mut state = Run::new(setup)?;
    loop {
        state.dispatch();
        let step = state.next_step();
        let end = state.next_end();
        match (step, end) {
            (None, None) => break,
            (Some((_, at)), Some(end)) if end <= at => state.frees(end),
            (None, Some(end)) => state.frees(end),
            (Some((worker, at)), _) => state.step(worker, at),
        }
    }
    let mut requests = state.done;
    requests.sort_by(|a, b| a.end_s.total_cmp(&b.end_s));
    Ok(Ran {
        end_s: requests.last().map_or(0.0, |r| r.end_s),
        requests,
    })
}

/// What a node does for a request.
#[derive(Debug, Clone)]
enum Task {
    /// Tokens that are there, and who gets the rest.
    Prefill { have: f64, to: Option<usize> },
    /// Tokens that are there, and those that are still to come.
    Decode {
        held: f64,
        left: f64,
        is_first: bool,
    },
}

#[derive(Debug, Clone)]
struct Entry {
    /// Its place in [`Run::open`].
    request: usize,
    task: Task,
    /// From when on.
    from: f64,
}

/// What one machine does for one workload: a thread of a node.
struct Worker<'a> {
    machine: usize,
    workload: usize,
    speed: Speed<'a>,
    /// In the order in which they came.
    entries: Vec<Entry>,
    /// The request whose chunk was the last one.
    last: Option<usize>,
    /// When its last step was over.
    free: f64,
    /// True if the chunk of a step has been computed, and its tokens have not.
    is_between: bool,
}

/// What ends, and frees a place.
#[derive(Debug, Clone, Copy)]
struct End {
    request: usize,
    /// Its prefill on another machine, or all of it.
    is_prefill: bool,
    at: f64,
}

struct Run<'a> {
    setup: &'a Setup<'a>,
    workers: Vec<Worker<'a>>,
    /// When each machine has done what it was given.
    machines: Vec<f64>,
    /// When what was given to the link out of each machine has left.
    links: Vec<f64>,
    /// Works that wait, by workload.
    waiting: Vec<VecDeque<u32>>,
    open: Vec<Served>,
    /// What is known to end, and when.
    ends: Vec<End>,
    /// Requests that a worker prefills and decodes, by worker.
    prefills: Vec<u32>,
    decodes: Vec<u32>,
    /// Workers of each request: who prefills, who decodes.
    by: Vec<(usize, usize)>,
    /// When what works share is in the prefix caches of two workers, once that is known.
    shared: Vec<((usize, usize), f64)>,
    now: f64,
    done: Vec<Served>,
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup<'a>) -> Result<Self, Missing> {
        let mut workers = Vec::new();
        for (workload, of) in setup.workloads.iter().enumerate() {
            for machine in 0..setup.machines.len() {
                if setup.prefill[workload].contains(&machine)
                    || setup.decode[workload].contains(&machine)
                {
                    workers.push(Worker {
                        machine,
                        workload,
                        speed: Speed::new(setup.machines[machine], of.model)?,
                        entries: Vec::new(),
                        last: None,
                        free: 0.0,
                        is_between: false,
                    });
                }
            }
        }
        Ok(Self {
            machines: vec![0.0; setup.machines.len()],
            links: vec![0.0; setup.machines.len()],
            waiting: vec![(0..setup.works).collect(); setup.workloads.len()],
            open: Vec::new(),
            ends: Vec::new(),
            prefills: vec![0; workers.len()],
            decodes: vec![0; workers.len()],
            by: Vec::new(),
            shared: Vec::new(),
            now: 0.0,
            done: Vec::new(),
            workers,
            setup,
        })
    }

    fn worker(&self, machine: usize, workload: usize) -> usize {
        let found = self
            .workers
            .iter()
            .position(|w| (w.machine, w.workload) == (machine, workload));
        found.unwrap_or(0)
    }

    /// Starts what has a place, the least busy one.
    fn dispatch(&mut self) {
        for workload in 0..self.setup.workloads.len() {
            while let Some(&work) = self.waiting[workload].front() {
                let Some((prefill, decode)) = self.places(workload) else {
                    break;
                };
                self.waiting[workload].pop_front();
                self.begin(work, workload, prefill, decode);
            }
        }
    }

    /// The workers that would prefill and decode another request of a workload, if there is a place.
    fn places(&self, workload: usize) -> Option<(usize, usize)> {
        let places = self.setup.batch;
        let of = |machines: &[usize], busy: &[u32], most: u32| {
            let workers = machines.iter().map(|m| self.worker(*m, workload));
            let free = workers.filter(|w| busy[*w] < most);
            free.min_by_key(|w| busy[*w])
        };
        let decode = of(&self.setup.decode[workload], &self.decodes, places)?;
        if self.setup.prefill[workload].is_empty() {
            return Some((decode, decode));
        }
        let prefill = of(&self.setup.prefill[workload], &self.prefills, places)?;
        Some((prefill, decode))
    }

    fn begin(&mut self, work: u32, workload: usize, prefill: usize, decode: usize) {
        let request = self.open.len();
        let is_there =
            |(of, at): &((usize, usize), f64)| *of == (prefill, decode) && *at <= self.now;
        let have = match self.shared.iter().any(is_there) {
            true => self.setup.workloads[workload].shared,
            false => 0.0,
        };
        let name = |worker: usize| {
            self.setup.machines[self.workers[worker].machine]
                .name
                .clone()
        };
        self.open.push(Served {
            work,
            workload,
            prefill_on: name(prefill),
            decode_on: name(decode),
            begins_s: self.now,
            first_token_s: self.now,
            end_s: self.now,
        });
        self.by.push((prefill, decode));
        self.decodes[decode] += 1;
        let is_remote = prefill != decode;
        self.prefills[prefill] += u32::from(is_remote);
        let asked = if is_remote {
            self.setup.link.round_trip_ms / 1e3
        } else {
            0.0
        };
        self.workers[prefill].entries.push(Entry {
            request,
            task: Task::Prefill {
                have,
                to: is_remote.then_some(decode),
            },
            from: self.now + asked,
        });
    }

    /// The worker whose next half of a step begins first, and when.
    fn next_step(&self) -> Option<(usize, f64)> {
        let next = self.workers.iter().enumerate().filter_map(|(i, worker)| {
            if worker.is_between {
                return Some((i, worker.free));
            }
            let first = worker.entries.iter().map(|e| e.from);
            let first = first.min_by(f64::total_cmp)?;
            Some((i, first.max(worker.free)))
        });
        next.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn next_end(&self) -> Option<f64> {
        self.ends.iter().map(|end| end.at).min_by(f64::total_cmp)
    }

    /// Places of what has ended until then become free.
    fn frees(&mut self, until: f64) {
        self.now = self.now.max(until);
        let (over, ends) = self.ends.iter().partition(|end| end.at <= until);
        self.ends = ends;
        let over: Vec<End> = over;
        for end in over {
            let (prefill, decode) = self.by[end.request];
            if end.is_prefill {
                self.prefills[prefill] -= 1;
            } else {
                self.decodes[decode] -= 1;
                self.done.push(self.open[end.request].clone());
            }
        }
    }

    /// The machine does something that takes so long, as soon as it can from then on. Returns when that begins and ends.
    fn compute(&mut self, machine: usize, at: f64, seconds: f64) -> (f64, f64) {
        let begins = at.max(self.machines[machine]);
        self.machines[machine] = begins + seconds;
        (begins, begins + seconds)
    }

    /// One chunk of a prefill, or after it one token of each answer.
    fn step(&mut self, worker: usize, at: f64) {
        self.now = self.now.max(at);
        let ends = match std::mem::take(&mut self.workers[worker].is_between) {
            true => self.tokens(worker, at),
            false => {
                self.workers[worker].is_between = true;
                match self.next_prefill(worker, at) {
                    Some(place) => self.chunk(worker, place, at),
                    None => at,
                }
            }
        };
        self.workers[worker].free = ends;
    }

    /// The place of the prefill whose turn it is.
    fn next_prefill(&self, worker: usize, at: f64) -> Option<usize> {
        let worker = &self.workers[worker];
        let ready: Vec<usize> = (0..worker.entries.len())
            .filter(|i| {
                let entry = &worker.entries[*i];
                entry.from <= at && matches!(entry.task, Task::Prefill { .. })
            })
            .collect();
        let after = |i: &&usize| Some(worker.entries[**i].request) > worker.last;
        ready.iter().find(after).or_else(|| ready.first()).copied()
    }

    fn chunk(&mut self, worker: usize, place: usize, at: f64) -> f64 {
        let w = &self.workers[worker];
        let (machine, workload) = (w.machine, &self.setup.workloads[w.workload]);
        let entry = w.entries[place].clone();
        let Task::Prefill { have, to } = entry.task else {
            return at;
        };
        // The last token is the first that the decode machine computes.
        let whole = workload.prompt - 1.0;
        let part = self.setup.chunk.min(whole - have);
        let seconds = w.speed.prefill_s(have, part);
        let (begins, ends) = self.compute(machine, at, seconds);
        let is_last = have + part >= whole;
        let arrived = match to {
            Some(_) => self.crosses(worker, (have, have + part), is_last, (begins, ends)),
            None => ends,
        };
        let w = &mut self.workers[worker];
        w.last = Some(entry.request);
        if !is_last {
            w.entries[place].task = Task::Prefill {
                have: have + part,
                to,
            };
            return ends;
        }
        w.entries.remove(place);
        self.shared.push(((worker, to.unwrap_or(worker)), arrived));
        let (prompt, answer) = (workload.prompt, workload.answer);
        self.workers[to.unwrap_or(worker)].entries.push(Entry {
            request: entry.request,
            task: Task::Decode {
                held: prompt,
                left: answer,
                is_first: true,
            },
            from: arrived,
        });
        if to.is_some() {
            // The prefill node lets go when all is acknowledged.
            self.ends.push(End {
                request: entry.request,
                is_prefill: true,
                at: arrived + self.setup.link.round_trip_ms / 2e3,
            });
        }
        ends
    }

    /// When a chunk has arrived that is computed in this time.
    fn crosses(
        &mut self,
        worker: usize,
        (have, end): (f64, f64),
        is_last: bool,
        (begins, ends): (f64, f64),
    ) -> f64 {
        let w = &self.workers[worker];
        let model = w.speed.model;
        let layers = f64::from(model.cached_layers().max(1));
        let goodput = self.setup.link.goodput_gb_s * 1e9;
        let (bytes, window) = model.handoff_bytes(have, end);
        let first_layer = begins + (ends - begins) / layers;
        let left = &mut self.links[w.machine];
        let mut arrived = first_layer.max(*left) + bytes / goodput;
        arrived = arrived.max(ends + bytes / layers / goodput);
        if is_last {
            arrived += window / goodput;
        }
        *left = arrived;
        arrived + self.setup.link.round_trip_ms / 2e3
    }

    fn tokens(&mut self, worker: usize, at: f64) -> f64 {
        let w = &self.workers[worker];
        let (mut batch, mut held_by_all) = (0.0, 0.0);
        for entry in w.entries.iter().filter(|e| e.from <= at) {
            if let Task::Decode { held, .. } = entry.task {
                (batch, held_by_all) = (batch + 1.0, held_by_all + held);
            }
        }
        if batch == 0.0 {
            return at;
        }
        let seconds = w.speed.step_s(batch, held_by_all / batch);
        let (_, ends) = self.compute(w.machine, at, seconds);
        let (mut first, mut over) = (Vec::new(), Vec::new());
        self.workers[worker].entries.retain_mut(|entry| {
            if let Task::Decode {
                held,
                left,
                is_first,
            } = &mut entry.task
                && entry.from <= at
            {
                if std::mem::take(is_first) {
                    first.push(entry.request);
                }
                (*held, *left) = (*held + 1.0, *left - 1.0);
                if *left < 0.5 {
                    over.push(entry.request);
                    return false;
                }
            }
            true
        });
        for request in first {
            self.open[request].first_token_s = ends;
        }
        for request in over {
            self.open[request].end_s = ends;
            self.ends.push(End {
                request,
                is_prefill: false,
                at: ends,
            });
        }
        ends
    }
}
