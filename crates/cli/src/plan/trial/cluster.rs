//! The nodes and the coordinator of one way, and the requests that it serves.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures_util::{StreamExt, TryStreamExt, future, stream};
use serde::Deserialize;
use serde_json::json;
use sysinfo::System;
use tandem_api::TandemInfo;
use tandem_cluster::{Public, Security};
use tandem_coordinator::{Config, ModelConfig, NodeConfig};
use tandem_proto::{CodecChoice, Role};
use tandem_sched::plan::{Served, Setup, Workload};

use super::{Trial, is_used, small};
use crate::coordinator::Coordinator;
use crate::nodes;
use crate::processes::{self, NodeProcess};

/// A run that takes so many times what it should is given up.
const LIMIT_TIMES: f64 = 5.0;
/// How long a run may take beyond that.
const LIMIT_MORE: Duration = Duration::from_secs(60);
/// Tokens of a warm-up's answer.
const WARM_TOKENS: u32 = 4;
/// Tokens of a context beyond prompt and answer.
const SPARE_TOKENS: f64 = 64.0;
/// Requests that wait in the coordinator, beyond those that have a place.
const WAITING: usize = 4;

/// What came out.
pub struct Outcome {
    /// Every request, in seconds of the machines that are played.
    pub requests: Vec<Served>,
    /// How busy this machine was, in percent.
    pub host_busy_percent: f64,
    /// Requests that were served in another way than planned.
    pub served_otherwise: usize,
}

/// Starts what a way needs, warms it up, and measures it; a run should take so many seconds.
///
/// # Errors
/// If a node does not start, or a request has no answer in time.
pub async fn run(trial: &Trial<'_>, setup: &Setup<'_>, seconds: f64) -> anyhow::Result<Outcome> {
    let machines = (0..setup.machines.len()).filter(|m| is_used(setup, *m));
    let starting = machines.map(|machine| start(trial, setup, machine));
    let nodes = future::try_join_all(starting).await?;
    let measured = async {
        let mut coordinator = coordinator(setup, &nodes).await?;
        let outcome = measure(trial, setup, seconds, &mut coordinator).await?;
        coordinator.stop().await?;
        Ok(outcome)
    };
    let outcome = measured.await;
    processes::stop(nodes).await;
    outcome
}

async fn start(
    trial: &Trial<'_>,
    setup: &Setup<'_>,
    machine: usize,
) -> anyhow::Result<NodeProcess> {
    let decodes = setup.decode.iter().any(|of| of.contains(&machine));
    let prefills = setup.prefill.iter().any(|of| of.contains(&machine));
    let role = match (prefills, decodes) {
        (true, true) => Role::Both,
        (_, true) => Role::Decode,
        _ => Role::Prefill,
    };
    let tokens = setup
        .workloads
        .iter()
        .map(|workload| workload.prompt + workload.answer);
    let context = tokens.fold(0.0, f64::max) + SPARE_TOKENS;
    let chunk = format!("{:.0}", setup.chunk);
    let mut arguments: Vec<OsString> = Vec::new();
    for (option, value) in [
        ("--engine", format!("paced:{}", trial.profiles[machine])),
        ("--speed", trial.speed.to_string()),
        ("--link", trial.link.name.clone()),
        ("--chunk", chunk.clone()),
        ("--ubatch", chunk),
        ("--context", format!("{context:.0}")),
        ("--slots", setup.batch.to_string()),
        (
            "--pages-ram",
            small((trial.kept_bytes(setup, machine) / 1_048_576.0).ceil()).to_string(),
        ),
    ] {
        arguments.extend([option.into(), value.into()]);
    }
    for (i, workload) in setup.workloads.iter().enumerate() {
        if setup.prefill[i].contains(&machine) || setup.decode[i].contains(&machine) {
            let name = &workload.model.name;
            arguments.extend(["--model".into(), format!("{name}={name}").into()]);
        }
    }
    NodeProcess::start(&setup.machines[machine].name, role, arguments, &trial.logs).await
}

async fn coordinator(setup: &Setup<'_>, nodes: &[NodeProcess]) -> anyhow::Result<Coordinator> {
    let names = |machines: &[usize]| {
        let names = machines.iter().map(|m| setup.machines[*m].name.clone());
        names.collect()
    };
    let node = |node: &NodeProcess| NodeConfig {
        name: node.name.clone(),
        address: node.address.to_string(),
        identity: None,
        profile: None,
    };
    let model = |(i, workload): (usize, &Workload<'_>)| ModelConfig {
        name: workload.model.name.clone(),
        prefill: names(&setup.prefill[i]),
        decode: names(&setup.decode[i]),
        servers: Vec::new(),
        mixed_quantisation: false,
        profile: None,
    };
    let mut config = Config::new(
        nodes.iter().map(node).collect(),
        setup.workloads.iter().enumerate().map(model).collect(),
    );
    config.chunk = small(setup.chunk);
    // What is predicted is rows as they are.
    config.handoff.codec = CodecChoice::Raw;
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let public = Public::plaintext();
    let starting = Coordinator::start(any_port, public, config.clone(), Security::Plaintext);
    let mut coordinator = starting.await?;
    let mut faults = nodes::problems(&config, &coordinator.nodes().await?, false);
    faults.extend(coordinator.unavailable().await?);
    if !faults.is_empty() {
        bail!("the nodes cannot be used: {}", faults.join("; "));
    }
    Ok(coordinator)
}

async fn measure(
    trial: &Trial<'_>,
    setup: &Setup<'_>,
    seconds: f64,
    coordinator: &mut Coordinator,
) -> anyhow::Result<Outcome> {
    let limit = Duration::from_secs_f64(seconds * LIMIT_TIMES) + LIMIT_MORE;
    let late = || format!("it should take {seconds:.0} s, and has not ended after {limit:?}");
    let client = Client {
        coordinator,
        setup,
        speed: trial.speed,
    };
    let warming = tokio::time::timeout(limit, client.warm_up());
    let extra = warming.await.with_context(late)??;
    let mut system = System::new();
    system.refresh_cpu_usage();
    let serving = tokio::time::timeout(limit, client.serve(&extra));
    let requests = serving.await.with_context(late)??;
    system.refresh_cpu_usage();
    Ok(Outcome {
        served_otherwise: requests.iter().filter(|(_, planned)| !planned).count(),
        requests: requests.into_iter().map(|(served, _)| served).collect(),
        host_busy_percent: f64::from(system.global_cpu_usage()),
    })
}

/// The answer to a request, as far as it is of use here.
#[derive(Deserialize)]
struct Answer {
    tandem: TandemInfo,
}

struct Client<'a> {
    coordinator: &'a Coordinator,
    setup: &'a Setup<'a>,
    speed: f64,
}

impl Client<'_> {
    /// Asks once for each place that will be used: the first touch of memory and the first connections are not what is measured. Returns for
    /// each job the tokens that its template adds.
    async fn warm_up(&self) -> anyhow::Result<Vec<usize>> {
        let workloads = (0..self.setup.workloads.len()).map(|workload| async move {
            let works = usize::try_from(self.setup.works).unwrap_or(usize::MAX);
            let asking = (0..self.places(workload).min(works)).map(|place| async move {
                let text = self.text(workload, &format!("warm-up {place}"), 0, 0)?;
                let answer = self.ask(workload, text.clone(), WARM_TOKENS).await?;
                let told = usize::try_from(answer.prompt_tokens).unwrap_or(usize::MAX);
                anyhow::Ok(told.saturating_sub(text.len()))
            });
            let extra = future::try_join_all(asking).await?;
            anyhow::Ok(extra.into_iter().max().unwrap_or(0))
        });
        future::try_join_all(workloads).await
    }

    /// Answers of a job that are written at once on all machines.
    fn places(&self, workload: usize) -> usize {
        let batch = usize::try_from(self.setup.batch).unwrap_or(usize::MAX);
        self.setup.decode[workload].len().saturating_mul(batch)
    }

    /// Serves all works, and tells of each request whether it was served as planned.
    async fn serve(&self, extra: &[usize]) -> anyhow::Result<Vec<(Served, bool)>> {
        let began = Instant::now();
        let workloads = extra.iter().enumerate().map(|(workload, extra)| {
            let works = stream::iter(0..self.setup.works);
            let asked = works.map(move |work| self.one(began, work, workload, *extra));
            let at_once = self.places(workload).saturating_add(WAITING);
            asked.buffer_unordered(at_once).try_collect::<Vec<_>>()
        });
        let served = future::try_join_all(workloads).await?;
        let mut served = served.concat();
        served.sort_by(|a, b| a.0.end_s.total_cmp(&b.0.end_s));
        Ok(served)
    }

    async fn one(
        &self,
        began: Instant,
        work: u32,
        workload: usize,
        extra: usize,
    ) -> anyhow::Result<(Served, bool)> {
        let wanted = &self.setup.workloads[workload];
        let shared = usize::try_from(small(wanted.shared))?;
        let shared = shared.saturating_sub(extra);
        let text = self.text(workload, &format!("work {work} "), shared, extra)?;
        let answer = small(wanted.answer);
        let sent = began.elapsed().as_secs_f64();
        let info = self.ask(workload, text, answer).await?;
        let end = began.elapsed().as_secs_f64();
        if info.generated_tokens != answer || info.prompt_tokens != small(wanted.prompt) {
            bail!(
                "an answer has {} tokens to {} of a prompt, not {answer} to {}",
                info.generated_tokens,
                info.prompt_tokens,
                wanted.prompt
            );
        }
        let phases = &info.phases_ms;
        let remote = !self.setup.prefill[workload].is_empty();
        let is_planned = (info.mode == "remote") == remote && info.reconnects == 0;
        let served = Served {
            work,
            workload,
            prefill_on: info.prefill_node,
            decode_on: info.decode_node,
            begins_s: (sent + (phases.queue + phases.tokenize) / 1e3) * self.speed,
            first_token_s: (sent + phases.first_token / 1e3) * self.speed,
            end_s: end * self.speed,
        };
        Ok((served, is_planned))
    }

    /// A prompt that becomes as many tokens as are wanted: a token a byte, and those of the template.
    fn text(
        &self,
        workload: usize,
        own: &str,
        shared: usize,
        extra: usize,
    ) -> anyhow::Result<String> {
        let workload = &self.setup.workloads[workload];
        let size = usize::try_from(small(workload.prompt))?;
        let least = extra + own.len();
        let Some(room) = size.checked_sub(least) else {
            bail!(
                "a prompt has {size} tokens; with its template the shortest one here has {least}"
            );
        };
        let shared = shared.min(room);
        Ok(format!(
            "{}{own}{}",
            "s".repeat(shared),
            "x".repeat(room - shared)
        ))
    }

    async fn ask(&self, workload: usize, text: String, tokens: u32) -> anyhow::Result<TandemInfo> {
        let body = json!({
            "model": self.setup.workloads[workload].model.name,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
        });
        let url = format!("{}/chat/completions", self.coordinator.base_url());
        let sending = self.coordinator.http().post(url).json(&body).send();
        let answer = sending.await.context("the coordinator does not answer")?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            bail!("a request was refused, {status}: {text}");
        }
        let answer: Answer = serde_json::from_str(&text).context("an answer")?;
        Ok(answer.tandem)
    }
}
