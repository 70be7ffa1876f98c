//! A whole cluster in one process, with engines without models: a coordinator, nodes, and clients that have conversations, while
//! links break and nodes die and come back. What is answered is what an undisturbed cluster answers.
//!
//! `TANDEM_CHAOS` names other seeds than the usual ones: `17`, or `0..1000`.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tandem_cluster::{Public, Security};
use tandem_coordinator::{Config, ModelConfig, NodeConfig, ParityAction};
use tandem_engine::KvEngine;
use tandem_engine::fake::{Call, CallKind, FakeConfig, FakeEngine};
use tandem_node::{Limits, PagesConfig};
use tandem_proto::{HandoffStatus, Role};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::client::{handoff_status, http, node_status};

const MODEL: &str = "m";
/// Clusters of a usual run.
const CLUSTERS: Range<u64> = 0..6;
const CONVERSATIONS: u64 = 6;
const CHUNK: u32 = 32;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine that takes its time.
fn slow(engine: FakeConfig) -> FakeConfig {
    let gate = |call: &Call| {
        let pause = match call.kind() {
            CallKind::Prefill => 6,
            CallKind::Decode => 2,
            _ => return,
        };
        std::thread::sleep(Duration::from_millis(pause));
    };
    FakeConfig {
        gate: Some(Arc::new(gate)),
        ..engine
    }
}

/// What decides in a part of a cluster: what others draw changes nothing for it.
fn dice(cluster: u64, part: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(cluster << 16 | part)
}

async fn pause(dice: &mut ChaCha8Rng, milliseconds: Range<u64>) {
    sleep(Duration::from_millis(dice.random_range(milliseconds))).await;
}

/// A task that panics would look like a connection that broke, which costs no token.
fn panics_end_the_test() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            let thread = std::thread::current();
            if tokio::task::try_id().is_some() || thread.name() == Some("tandem-pages") {
                std::process::abort();
            }
        }));
    });
}

/// What ends with its owner.
struct Task(AbortHandle);

impl Task {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What lies between a port and whoever connects to it.
#[derive(Default)]
struct Link {
    /// Where connections go on to.
    to: Mutex<Option<SocketAddr>>,
    is_down: AtomicBool,
    /// How often all of them were closed.
    cut: watch::Sender<u32>,
    /// How often they stood still from then on.
    hushed: watch::Sender<u32>,
}

impl Link {
    fn to(&self) -> Option<SocketAddr> {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lead(&self, to: Option<SocketAddr>) {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    fn cut(&self) {
        self.cut.send_modify(|n| *n += 1);
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((mut near, _)) = listener.accept().await {
            let Some(to) = self.to().filter(|_| !self.is_down.load(Ordering::Relaxed)) else {
                continue;
            };
            let (mut cut, mut hushed) = (self.cut.subscribe(), self.hushed.subscribe());
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(to).await else {
                    return;
                };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    _ = cut.changed() => {}
                    _ = hushed.changed() => { let _ = cut.changed().await; }
                }
            });
        }
    }
}

/// A node that dies and comes back.
struct Node {
    role: Role,
    engine: FakeConfig,
    limits: Limits,
    number: u8,
    address: SocketAddr,
    control: Arc<Link>,
    handoff: Arc<Link>,
    life: Mutex<Option<Life>>,
    /// True from its death until it is back.
    is_away: AtomicBool,
    _control: Task,
}

/// A node's process, and the links to where it takes KV in.
struct Life {
    runtime: Runtime,
    _links: Vec<Task>,
}

impl Node {
    async fn start(role: Role, engine: &FakeConfig, limits: Limits, number: u8) -> Self {
        let listener = TcpListener::bind((ip(0, number), 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let control: Arc<Link> = Arc::default();
        let node = Self {
            role,
            engine: engine.clone(),
            limits,
            number,
            address,
            _control: Task::spawn(Arc::clone(&control).serve(listener)),
            control,
            handoff: Arc::default(),
            life: Mutex::default(),
            is_away: AtomicBool::new(false),
        };
        node.live().await;
        node
    }

    async fn live(&self) {
        let control = bind(Ipv4Addr::LOCALHOST).await;
        // Others are told a port of the node's own, at the address that they know, or from which it has connected to them.
        let (inside, outside) = loop {
            let inside = bind(ip(1, self.number)).await;
            let port = inside.local_addr().expect("an address").port();
            let known = TcpListener::bind((ip(0, self.number), port)).await;
            let seen = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
            if let (Ok(known), Ok(seen)) = (known, seen) {
                break (inside, [known, seen]);
            }
        };
        self.handoff.lead(inside.local_addr().ok());
        self.control.lead(control.local_addr().ok());
        let links = outside.map(|listener| Task::spawn(Arc::clone(&self.handoff).serve(listener)));
        let config = tandem_node::NodeConfig {
            role: self.role,
            version: "test".into(),
            security: Security::Plaintext,
            pages: PagesConfig {
                ram_bytes: 64 << 20,
                disk: None,
            },
            limits: self.limits,
        };
        let engine: Box<dyn KvEngine> = Box::new(FakeEngine::new(self.engine.clone()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let (control, inside) = (control.into_std(), inside.into_std());
        runtime.spawn(async move {
            let own = |listener: std::io::Result<std::net::TcpListener>| {
                TcpListener::from_std(listener.expect("a listener")).expect("a listener")
            };
            let models = vec![(MODEL.to_owned(), engine)];
            let (control, inside, for_ever) =
                (own(control), own(inside), std::future::pending::<()>());
            let ended = tandem_node::run(control, inside, config, models, || {}, for_ever).await;
            panic!("a node has ended by itself: {ended:?}");
        });
        let life = Life {
            runtime,
            _links: links.into(),
        };
        *self.life() = Some(life);
    }

    fn life(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends as its process would: connections close.
    fn die(&self) {
        self.control.lead(None);
        self.handoff.lead(None);
        let life = self.life().take();
        if let Some(life) = life {
            life.runtime.shutdown_background();
        }
        self.control.cut();
        self.handoff.cut();
    }

    /// Waits until it does nothing and holds nothing.
    async fn rests(&self) {
        let waiting = timeout(PATIENCE, async {
            loop {
                let (status, held) = (
                    node_status(self.address).await,
                    handoff_status(self.address).await,
                );
                let left = HandoffStatus {
                    pages: 0,
                    snapshots: 0,
                    page_bytes: 0,
                    disk_bytes: 0,
                    ..held
                };
                if status.models[0].sequences.is_empty() && left == HandoffStatus::default() {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
        if waiting.await.is_err() {
            panic!(
                "{} holds {:?}",
                self.address,
                handoff_status(self.address).await
            );
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.die();
    }
}

/// Addresses of nodes on this machine: what others know, and what they are not to know.
const fn ip(kind: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, kind, 10 + number)
}

async fn bind(ip: Ipv4Addr) -> TcpListener {
    TcpListener::bind((ip, 0)).await.expect("a port")
}

/// A coordinator of these nodes, which ends with the task.
async fn coordinator(nodes: &[Node], change: impl FnOnce(&mut Config)) -> (SocketAddr, Task) {
    let named = |does: fn(Role) -> bool| {
        let all = nodes.iter().enumerate();
        all.filter(move |(_, node)| does(node.role))
            .map(|(i, _)| i.to_string())
            .collect()
    };
    let addresses = nodes.iter().enumerate().map(|(i, node)| NodeConfig {
        name: i.to_string(),
        address: node.address.to_string(),
        identity: None,
        profile: None,
    });
    let model = ModelConfig {
        name: MODEL.into(),
        prefill: named(Role::prefills),
        decode: named(Role::decodes),
        servers: Vec::new(),
        mixed_quantisation: false,
        profile: None,
    };
    let mut config = Config::new(addresses.collect(), vec![model]);
    config.chunk = CHUNK;
    config.limits.poll = Duration::from_millis(30);
    change(&mut config);
    let listener = bind(Ipv4Addr::LOCALHOST).await;
    let address = listener.local_addr().expect("an address");
    let listeners = vec![(listener, Public::plaintext())];
    let task = Task::spawn(async move {
        let for_ever = std::future::pending::<()>();
        let ended = tandem_coordinator::run(listeners, config, Security::Plaintext, for_ever).await;
        panic!("a coordinator has ended by itself: {ended:?}");
    });
    timeout(PATIENCE, async {
        while http()
            .get(format!("http://{address}/health"))
            .send()
            .await
            .is_err()
        {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("a coordinator");
    (address, task)
}

/// What may break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Breaks {
    /// Prefill nodes and KV on its way: no client notices anything.
    Prefills,
    /// Everything: a client may be told that its nodes failed.
    All,
}

struct Cluster {
    seed: u64,
    breaks: Breaks,
    nodes: Vec<Node>,
    coordinator: SocketAddr,
    /// Undisturbed.
    reference: SocketAddr,
    _reference_node: Node,
    _coordinators: [Task; 2],
    answers: AtomicU32,
    remote: AtomicU32,
    errors: AtomicU32,
}

impl Cluster {
    async fn new(seed: u64, breaks: Breaks) -> Self {
        panics_end_the_test();
        let mut dice = dice(seed, 0);
        let engine = FakeConfig {
            // Few of them make requests wait.
            sequences: [2, 4, 32][dice.random_range(0..3)],
            by_layer: dice.random_bool(0.70),
            ..match dice.random_bool(0.50) {
                true => FakeConfig::windowed(),
                false => FakeConfig::default(),
            }
        };
        let of = Duration::from_millis;
        let limits = Limits {
            handoff_silence: of(500),
            connect: of(500),
            resume: of(300),
            receipt: of(100),
            return_ticket: of(1_000),
            hand_back: of(1_000),
            beat: of(100),
            handoff_beat: of(100),
            ..Limits::default()
        };
        let mut nodes = Vec::new();
        let roles: [&[Role]; 4] = [
            &[Role::Prefill, Role::Prefill, Role::Decode, Role::Decode],
            &[Role::Prefill, Role::Decode],
            &[Role::Both, Role::Both],
            &[Role::Both, Role::Prefill, Role::Decode],
        ];
        for &role in roles[dice.random_range(0..4)] {
            let number = u8::try_from(nodes.len()).unwrap_or(0);
            nodes.push(Node::start(role, &slow(engine.clone()), limits, number).await);
        }
        let refuses = dice.random_bool(0.30);
        let coordinator = coordinator(&nodes, |config| {
            if refuses {
                config.handoff.parity = ParityAction::Refuse;
            }
            if breaks == Breaks::All {
                config.limits.silence = Duration::from_secs(1);
                config.limits.connect = Duration::from_secs(1);
            }
        });
        let (coordinator, first) = coordinator.await;
        let engine = FakeConfig {
            sequences: 32,
            ..engine
        };
        let alone = Node::start(Role::Both, &engine, limits, 9).await;
        let (reference, second) = self::coordinator(std::slice::from_ref(&alone), |config| {
            config.handoff.reuse = false;
        })
        .await;
        Self {
            seed,
            breaks,
            coordinator,
            reference,
            nodes,
            _reference_node: alone,
            _coordinators: [first, second],
            answers: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            errors: AtomicU32::new(0),
        }
    }

    async fn conversation(&self, number: u64) {
        let mut dice = dice(self.seed, 100 + number);
        pause(&mut dice, 0..200).await;
        let rubric = "Is it right? Is it clear? ".repeat(8 + 4 * (number % 2) as usize);
        let mut messages = vec![json!({"role": "system", "content": rubric})];
        for turn in 0..dice.random_range(2..6) {
            let said = format!("{number} {turn} ").repeat(dice.random_range(0..12) + 1);
            messages.push(json!({"role": "user", "content": said}));
            let route = ["auto", "auto", "remote", "local"][dice.random_range(0..4)];
            let body = json!({
                "model": MODEL,
                "messages": messages,
                "max_tokens": dice.random_range(1..50),
                "temperature": 0.8,
                "tandem": {"return_tokens": true, "route": route},
            });
            if dice.random_bool(0.08) {
                let patience = Duration::from_millis(dice.random_range(0..100));
                let _ = timeout(patience, ask(self.coordinator, &body)).await;
                messages.pop();
                continue;
            }
            let (status, answer) = ask(self.coordinator, &body).await;
            let what = format!("cluster {}, {:?}, {number}.{turn}", self.seed, self.breaks);
            if status != 200 {
                let is_told = matches!(status, 429 | 502 | 503);
                assert!(
                    self.breaks == Breaks::All && is_told,
                    "{what}: {status} {answer}"
                );
                self.errors.fetch_add(1, Ordering::Relaxed);
                pause(&mut dice, 50..300).await;
                messages.pop();
                continue;
            }
            let (status, expected) = ask(self.reference, &body).await;
            assert_eq!(status, 200, "{expected}");
            let (ours, theirs) = (&answer["tandem"]["tokens"], &expected["tandem"]["tokens"]);
            assert!(
                ours == theirs && ours.is_array(),
                "{what}: {answer} {expected}"
            );
            self.answers.fetch_add(1, Ordering::Relaxed);
            if answer["tandem"]["mode"] == "remote" {
                self.remote.fetch_add(1, Ordering::Relaxed);
            }
            messages.push(answer["choices"][0]["message"].clone());
        }
    }

    /// Breaks something now and then, for ever.
    async fn break_things(&self, part: u64) {
        let mut dice = dice(self.seed, part);
        loop {
            pause(&mut dice, 2..60).await;
            let node = &self.nodes[dice.random_range(0..self.nodes.len())];
            let is_ours = node.role == Role::Prefill || self.breaks == Breaks::All;
            match dice.random_range(0..20) {
                0..=6 => node.handoff.cut(),
                7 => node.handoff.hushed.send_modify(|n| *n += 1),
                8 | 9 => {
                    node.handoff.is_down.store(true, Ordering::Relaxed);
                    pause(&mut dice, 1..400).await;
                    node.handoff.is_down.store(false, Ordering::Relaxed);
                }
                10 | 11 if is_ours => node.control.cut(),
                12 if self.breaks == Breaks::All => node.control.hushed.send_modify(|n| *n += 1),
                13 if is_ours && !node.is_away.swap(true, Ordering::Relaxed) => {
                    node.die();
                    pause(&mut dice, 1..300).await;
                    node.live().await;
                    node.is_away.store(false, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }

    /// Behind all of it everything is as it should be.
    async fn is_well(&self) {
        for node in &self.nodes {
            for link in [&node.control, &node.handoff] {
                link.is_down.store(false, Ordering::Relaxed);
                link.cut();
            }
            let is_dead = node.control.to().is_none();
            if is_dead {
                node.live().await;
            }
            node.rests().await;
        }
        let ready = async {
            let nodes = format!("http://{}/v1/nodes", self.coordinator);
            loop {
                let told = http().get(&nodes).send().await.expect("an answer");
                let told: Value = told.json().await.expect("JSON");
                let nodes = told["data"].as_array().expect("nodes").clone();
                if nodes.iter().all(|node| node["up"] == true) {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, ready).await.expect("all nodes are up");
        let body = json!({
            "model": MODEL,
            "messages": [{"role": "user", "content": "And now? ".repeat(40)}],
            "max_tokens": 12,
            "tandem": {"return_tokens": true, "route": "remote"},
        });
        let (_, expected) = ask(self.reference, &body).await;
        // A busy machine may be silent for too long; not again and again.
        let mut last = None;
        for _ in 0..5 {
            let (status, answer) = ask(self.coordinator, &body).await;
            if status != 200 {
                continue;
            }
            assert_eq!(answer["tandem"]["tokens"], expected["tandem"]["tokens"]);
            if answer["tandem"]["mode"] == "remote" {
                return;
            }
            last = Some(answer);
        }
        panic!(
            "cluster {}: nothing is prefilled for others: {last:?}",
            self.seed
        );
    }
}

/// Status and body of an answer.
async fn ask(coordinator: SocketAddr, body: &Value) -> (u16, Value) {
    let asking = super::client::ask_any(coordinator, body);
    timeout(PATIENCE, asking).await.expect("an answer in time")
}

fn clusters() -> Range<u64> {
    let Ok(named) = std::env::var("TANDEM_CHAOS") else {
        return CLUSTERS;
    };
    let number = |text: &str| text.parse::<u64>().expect("TANDEM_CHAOS: 17, or 0..1000");
    match named.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&named)..number(&named) + 1,
    }
}

async fn answers_are_right(breaks: Breaks) {
    let (clusters, mut all_counts) = (clusters(), [0; 3]);
    for seed in clusters.clone() {
        let cluster = Cluster::new(seed, breaks).await;
        let conversations = (0..CONVERSATIONS).map(|number| cluster.conversation(number));
        let all = async {
            tokio::select! {
                _ = futures_util::future::join_all(conversations) => {}
                () = cluster.break_things(1) => {}
                () = cluster.break_things(2) => {}
            }
        };
        let all = timeout(2 * PATIENCE, all).await;
        assert!(all.is_ok(), "cluster {seed} hangs");
        cluster.is_well().await;
        let counts =
            [&cluster.answers, &cluster.remote, &cluster.errors].map(|n| n.load(Ordering::Relaxed));
        eprintln!("cluster {seed}, {breaks:?}: answers, remote ones, errors {counts:?}");
        for (all, count) in all_counts.iter_mut().zip(counts) {
            *all += count;
        }
    }
    if clusters == CLUSTERS {
        // Otherwise this would show nothing.
        let [answers, remote, _] = all_counts;
        assert!(remote > 10 && answers > remote, "{all_counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_prefill_nodes_and_links_answers_come_later_and_are_the_same() {
    answers_are_right(Breaks::Prefills).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_breaks_an_answer_is_right_or_an_error() {
    answers_are_right(Breaks::All).await;
}
