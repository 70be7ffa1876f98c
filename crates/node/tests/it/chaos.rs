//! Anything may happen, and at once: conversations that share their beginnings, on nodes whose links break, hold, damage and
//! repeat, whose engines fail and stand still, which die, and one of which computes something else. Every answer from exact rows is
//! that of an undisturbed node, and in the end nothing is left over. (Answers are handed back past the links; whole clusters, in `crates/cli`,
//! break those, too.)
//!
//! Each world is drawn from a seed; what happens in it depends on time, too, so that what a seed has found may need some runs to be
//! found again. `TANDEM_CHAOS` names other seeds: `17`, or `0..1000`.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tandem_cluster::{Authority, Security};
use tandem_engine::fake::{Call, CallKind, Failure, FakeConfig};
use tandem_handoff::frame::Kind;
use tandem_handoff::policy::Quality;
use tandem_handoff::receipt::ParityBound;
use tandem_node::{DiskConfig, Limits, PagesConfig};
use tandem_proto::{
    CodecChoice, ErrorCode, GenerateEvent, HandoffTerms, NodeError, PrefillEvent, PrefillMode,
    PrefillRequest, Role,
};
use tempfile::TempDir;
use tokio::time::timeout;

use super::cluster::{Answer, Deal, Events, PATIENCE, Reuse, Setup, TestNode, finish, prompt};
use super::codecs;
use super::proxy::{Fault, Proxy};

/// Worlds of a usual run.
const WORLDS: Range<u64> = 0..12;
/// Conversations at once in each of them.
const CONVERSATIONS: u64 = 6;
/// Connections of a link that may have a fault.
const CONNECTIONS: usize = 400;
/// The fake engine turns the smallest difference into other tokens: a fault that would forget pages.
const ANY: ParityBound = ParityBound {
    kl: f64::MAX,
    margin: f64::MAX,
};

/// What decides.
struct Dice(StdRng);

impl Dice {
    /// One for each part of a world: what others draw changes nothing for it.
    fn new(world: u64, part: u64) -> Self {
        Self(StdRng::seed_from_u64(world << 16 | part))
    }

    fn between(&mut self, range: Range<u64>) -> u64 {
        self.0.random_range(range)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.between(0..end)
    }

    /// True so many times of a hundred.
    fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn milliseconds(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.between(range))
    }

    /// What happens to a connection.
    fn fault(&mut self) -> Fault {
        // Near ones hit a hello and what answers it, far ones rows.
        let far = self.of(&[400, 2_000, 20_000, 200_000]);
        let (at, frame) = (self.below(far), self.below(12) as usize);
        match self.below(44) {
            0..=5 => Fault::Cut(at),
            6..=8 => Fault::CutReply(at),
            9 => Fault::Flip(at),
            10 => Fault::FlipReply(at),
            11 => Fault::Hold(at),
            12 => Fault::HoldReply(at),
            13 => Fault::Vanish(at),
            14 | 15 => Fault::Pace(self.of(&[100_000, 1_000_000])),
            16 | 17 => Fault::HoldBefore(self.of(&[Kind::Commit, Kind::Receipt])),
            18 => self.of(&[
                Fault::Repeat(frame),
                Fault::Swap(frame),
                Fault::RepeatReply(frame),
                Fault::SwapReply(frame),
            ]),
            _ => Fault::None,
        }
    }

    /// Whatever is given up is given up soon.
    fn limits(&mut self) -> Limits {
        let of = Duration::from_millis;
        Limits {
            handoff_silence: of(500),
            connect: of(500),
            page_read: of(2_000),
            resume: self.of(&[of(150), of(500)]),
            receipt: self.of(&[of(20), of(300)]),
            return_ticket: of(2_000),
            hand_back: of(2_000),
            beat: of(100),
            handoff_beat: of(100),
            ..Limits::default()
        }
    }

    fn model(&mut self) -> FakeConfig {
        FakeConfig {
            sequences: 64,
            tail_tokens: self.of(&[16, u32::MAX]),
            by_layer: self.percent(70),
            final_rows: self.percent(70),
            ..codecs::config(self.percent(50))
        }
    }

    /// Failures of an engine, in half of the cases.
    fn failure(&mut self) -> Option<Failure> {
        // There are many calls of these, and few of others.
        let many = [CallKind::Prefill, CallKind::Give, CallKind::Export];
        let few = [
            CallKind::Open,
            CallKind::Given,
            CallKind::Import,
            CallKind::Decode,
        ];
        match self.percent(40) {
            true => self.failure_of(&many, 40),
            false => self.failure_of(&few, 6),
        }
    }

    /// Failures of one of these calls, one of the first ones and perhaps later ones, in half of the cases.
    fn failure_of(&mut self, calls: &[CallKind], first: u64) -> Option<Failure> {
        self.percent(50).then(|| Failure {
            call: self.of(calls),
            nth: self.below(first) as u32,
            every: self.of(&[0, 3, 7, 31]),
        })
    }

    /// A place for pages on disk, in some cases.
    fn disk(&mut self, all: &mut Vec<TempDir>) -> Option<DiskConfig> {
        self.percent(30).then(|| {
            let dir = TempDir::new().unwrap();
            let config = DiskConfig {
                dir: dir.path().join("pages"),
                bytes: self.of(&[1 << 20, 1 << 30]),
            };
            all.push(dir);
            config
        })
    }

    /// How a conversation is served.
    fn terms(&mut self) -> HandoffTerms {
        let mut terms = HandoffTerms {
            salt: self.of(&["", "", "a"]).into(),
            keep: self.percent(80),
            overlap: self.percent(90),
            codec: self.of(&[CodecChoice::Auto, CodecChoice::Raw, CodecChoice::Plane]),
            ..HandoffTerms::default()
        };
        self.of(&[Reuse::Off, Reuse::Exact, Reuse::All, Reuse::All, Reuse::All])
            .set(&mut terms);
        if self.percent(10) {
            (terms.quality, terms.bound) = (Quality::Q8, ANY);
            terms.codec = CodecChoice::Q8;
        }
        terms
    }
}

/// An engine that takes a moment now and then, so that steps meet in other orders, and once in a while longer than silence may last.
fn unsteady(config: &FakeConfig, mut dice: Dice) -> FakeConfig {
    let long = dice.percent(20).then(|| dice.between(1..200));
    let dice = Mutex::new((dice, 0));
    let gate = move |call: &Call| {
        let is_work = matches!(
            call.kind(),
            CallKind::Prefill | CallKind::Give | CallKind::Given | CallKind::Decode
        );
        if !is_work {
            return;
        }
        let pause = {
            let (dice, count) = &mut *dice.lock().unwrap();
            *count += 1;
            match long {
                Some(nth) if nth == *count => 700_000,
                _ if dice.percent(30) => dice.below(4_000),
                _ => return,
            }
        };
        std::thread::sleep(Duration::from_micros(pause));
    };
    FakeConfig {
        gate: Some(Arc::new(gate)),
        ..config.clone()
    }
}

/// A node, and what is the matter with it.
struct Member {
    node: TestNode,
    is_dead: AtomicBool,
    /// True if its engine fails again and again.
    is_failing: bool,
    /// Who it is where TLS is spoken.
    id: Option<String>,
}

impl Member {
    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    fn die(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.node.kill();
    }
}

/// Which nodes serve a request.
#[derive(Debug)]
struct Way {
    /// None if the decode node prefills by itself.
    prefill: Option<usize>,
    decode: usize,
    /// When the coordinator leaves the prefill, if it does.
    is_left: Option<Duration>,
    /// True if the decode node is told of a prefill that has failed.
    is_told: bool,
}

/// What has happened.
#[derive(Debug, Default)]
struct Tally {
    answers: AtomicU32,
    /// Answers of which all KV has come.
    whole: AtomicU32,
    /// Answers whose decode node had to compute what did not come.
    fallbacks: AtomicU32,
    reconnects: AtomicU32,
    cancels: AtomicU32,
    lost: AtomicU32,
}

fn count(what: &AtomicU32) {
    what.fetch_add(1, Ordering::Relaxed);
}

struct World<'a> {
    seed: u64,
    /// Undisturbed: what is right.
    reference: TestNode,
    chunk: u32,
    prefills: Vec<Member>,
    decodes: Vec<Member>,
    /// From each prefill node to each decode node.
    links: Vec<Vec<Proxy>>,
    /// What prompts begin with.
    beginnings: Vec<Vec<u32>>,
    tally: &'a Tally,
    _disks: Vec<TempDir>,
}

/// In what is encrypted no frames can be seen.
fn without_frames(fault: Fault) -> Fault {
    match fault {
        Fault::HoldBefore(_)
        | Fault::Repeat(_)
        | Fault::Swap(_)
        | Fault::RepeatReply(_)
        | Fault::SwapReply(_) => Fault::None,
        other => other,
    }
}

/// From so many nodes to each of these, with what will happen to their connections.
async fn links(dice: &mut Dice, from: usize, to: &[Member]) -> Vec<Vec<Proxy>> {
    let mut links = Vec::new();
    for _ in 0..from {
        let mut all = Vec::new();
        for member in to {
            let link = Proxy::to(member.node.port).await;
            let faults = (0..CONNECTIONS).map(|_| dice.fault());
            let faults: Vec<Fault> = match member.id {
                Some(_) => faults.map(without_frames).collect(),
                None => faults.collect(),
            };
            link.next(&faults);
            all.push(link);
        }
        links.push(all);
    }
    links
}

impl<'a> World<'a> {
    async fn new(seed: u64, tally: &'a Tally) -> Self {
        let mut dice = Dice::new(seed, 0);
        let (config, limits) = (dice.model(), dice.limits());
        let authority = dice.percent(25).then(|| Authority::create().unwrap());
        let mut disks = Vec::new();
        let mut member = async |dice: &mut Dice, role, config: &FakeConfig| {
            let pages = PagesConfig {
                ram_bytes: dice.of(&[0, 500 << 10, 64 << 20]),
                disk: dice.disk(&mut disks),
            };
            let own = Dice::new(seed, dice.between(1000..2000));
            let security = authority.as_ref().map_or(Security::Plaintext, |authority| {
                Security::Tls(Arc::new(authority.issue().unwrap()))
            });
            let id = security.own_id().map(|id| id.to_string());
            let setup = Setup {
                limits,
                mortal: true,
                pages,
                security,
                ..Setup::new(role, &unsteady(config, own))
            };
            Member {
                node: setup.start().await,
                is_dead: AtomicBool::new(false),
                is_failing: config.fail.is_some_and(|fail| fail.every > 0),
                id,
            }
        };
        let mut prefills = Vec::new();
        for _ in 0..dice.between(2..4) {
            let fails = FakeConfig {
                fail: dice.failure(),
                ..config.clone()
            };
            prefills.push(member(&mut dice, Role::Prefill, &fails).await);
        }
        let mut decodes = Vec::new();
        for _ in 0..dice.between(1..3) {
            // What it cannot take in it computes; its own window it must be able to put back.
            let fail = dice.failure_of(&[CallKind::Import], 20);
            let fails = FakeConfig {
                fail: fail.filter(|_| config.window == 0),
                ..config.clone()
            };
            decodes.push(member(&mut dice, Role::Decode, &fails).await);
        }
        let links = links(&mut dice, prefills.len(), &decodes).await;
        let lengths = [dice.between(150..250), dice.between(300..400)];
        Self {
            seed,
            reference: Setup::new(Role::Both, &config).start().await,
            chunk: dice.of(&[16, 32, 64]),
            prefills,
            decodes,
            links,
            beginnings: lengths.map(|length| prompt(length as u32)).to_vec(),
            tally,
            _disks: disks,
        }
    }

    /// Who the two are for each other, where they speak TLS.
    fn peers(&self, prefill: usize, decode: usize) -> Option<(String, String)> {
        let (prefill, decode) = (&self.prefills[prefill], &self.decodes[decode]);
        prefill.id.clone().zip(decode.id.clone())
    }

    /// What an undisturbed node answers that has computed all of it.
    async fn expected(&self, deal: &Deal) -> Vec<u32> {
        let mut alone = deal.clone();
        alone.peers = None;
        alone.terms = HandoffTerms {
            reuse: false,
            ..HandoffTerms::default()
        };
        let answer = alone.local(&self.reference).await;
        assert!(answer.done, "{answer:?}");
        answer.tokens
    }

    /// Several turns, one after the other.
    async fn conversation(&self, number: u64) {
        let mut dice = Dice::new(self.seed, 100 + number);
        tokio::time::sleep(dice.milliseconds(0..80)).await;
        let mut deal = Deal::new(&dice.of(&self.beginnings), self.chunk);
        let new =
            |count: u64, salt: u64| (0..count).map(move |i| 33 + ((i * 13 + salt) % 80) as u32);
        deal.tokens.extend(new(dice.between(1..120), number * 17));
        deal.terms = dice.terms();
        for turn in 0..dice.between(1..6) {
            deal.id = format!("{}-{number}-{turn}", self.seed);
            deal.max_tokens = dice.between(1..60) as u32;
            let way = self.way(&mut dice);
            let leaves = dice.percent(10).then(|| dice.milliseconds(0..120));
            let answer = match leaves {
                None => self.answer(&deal, &way).await,
                Some(after) => {
                    let answer = timeout(after, self.answer(&deal, &way)).await;
                    answer.unwrap_or_else(|_| {
                        count(&self.tally.cancels);
                        None
                    })
                }
            };
            if let Some(answer) = answer {
                let what = format!("world {}, {number}, {way:?}, {:?}", self.seed, deal.terms);
                self.check(&deal, &answer, &what).await;
                deal.tokens.extend_from_slice(&answer.tokens);
            }
            deal.tokens.extend(new(dice.between(1..70), turn));
        }
    }

    async fn check(&self, deal: &Deal, answer: &Answer, what: &str) {
        assert!(answer.done && answer.failed.is_none(), "{what}: {answer:?}");
        if deal.terms.quality == Quality::Lossless {
            let expected = self.expected(deal).await;
            assert_eq!(answer.tokens, expected, "{what}: {answer:?}");
        }
        let summary = &answer.summary;
        let tokens = summary.cached_tokens + summary.remote_tokens + summary.local_tokens;
        assert_eq!(tokens as usize, deal.tokens.len() - 1, "{what}: {answer:?}");
        count(&self.tally.answers);
        if answer.summary.fallback.is_some() {
            count(&self.tally.fallbacks);
        } else if answer.summary.remote_tokens > 0 {
            count(&self.tally.whole);
        }
        let fits = answer.parity.as_ref().is_none_or(|parity| parity.holds);
        assert!(fits, "{what}: {answer:?}");
    }

    /// Which nodes serve the next turn.
    fn way(&self, dice: &mut Dice) -> Way {
        let able: Vec<usize> = (0..self.prefills.len()).collect();
        let mut alive: Vec<usize> = (0..self.decodes.len()).collect();
        alive.retain(|number| !self.decodes[*number].is_dead());
        Way {
            prefill: dice.percent(85).then(|| dice.of(&able)),
            decode: dice.of(&alive),
            is_left: dice.percent(8).then(|| dice.milliseconds(0..100)),
            is_told: dice.percent(85),
        }
    }

    /// Plays the coordinator of a request. None if its decode node has died.
    async fn answer(&self, deal: &Deal, way: &Way) -> Option<Answer> {
        let decode = &self.decodes[way.decode];
        let answer = self.answered(deal, way).await;
        if answer.as_ref().is_none_or(|answer| !answer.done) && decode.is_dead() {
            let said = answer.unwrap_or_default().tokens;
            if deal.terms.quality == Quality::Lossless {
                let expected = self.expected(deal).await;
                assert!(expected.starts_with(&said), "{said:?}, {expected:?}");
            }
            count(&self.tally.lost);
            return None;
        }
        Some(answer.expect("an answer"))
    }

    async fn answered(&self, deal: &Deal, way: &Way) -> Option<Answer> {
        let mut deal = deal.clone();
        if let Some(prefill) = way.prefill {
            deal.via = Some(self.links[prefill][way.decode].port);
            deal.peers = self.peers(prefill, way.decode);
        }
        let decode = &self.decodes[way.decode].node;
        let request = match way.prefill {
            Some(_) => deal.generate(PrefillMode::Remote),
            None => deal.generate(PrefillMode::Local),
        };
        let mut events = loop {
            let opened = decode.try_post("/node/v1/generate", &request).await;
            match opened.ok()? {
                // Said with its last breath.
                Err(error) if error.code == ErrorCode::Stopping => return None,
                // One that runs alone has all places.
                Err(error) if error.code == ErrorCode::Busy => {}
                opened => break opened.expect("a place"),
            }
        };
        let ticket = match events.next().await? {
            GenerateEvent::Opened { ticket, .. } => ticket,
            other => panic!("{other:?}"),
        };
        let serving = async {
            match (way.prefill, ticket) {
                (None, _) => {}
                (Some(prefill), ticket) => {
                    let request = deal.prefill(&ticket.expect("a ticket"));
                    let prefilling = self.prefill(request, prefill);
                    let why = match way.is_left {
                        None => prefilling.await.err(),
                        Some(after) => match timeout(after, prefilling).await {
                            Ok(ended) => ended.err(),
                            Err(_) => Some("the coordinator left the prefill".into()),
                        },
                    };
                    if let Some(why) = why.filter(|_| way.is_told) {
                        decode.prefill_failed(&deal.id, &why).await;
                    }
                }
            }
        };
        Some(tokio::join!(finish(&mut events), serving).0)
    }

    /// Has a node prefill; why it has not, if it has not.
    async fn prefill(&self, request: PrefillRequest, prefill: usize) -> Result<(), String> {
        let node = &self.prefills[prefill].node;
        let begun = node.try_post("/node/v1/prefill", &request).await;
        let mut sending = begun_at(begun)?;
        while let Some(event) = sending.next().await {
            match event {
                PrefillEvent::Failed(error) => return Err(error.message),
                PrefillEvent::Done { reconnects, .. } => {
                    self.tally
                        .reconnects
                        .fetch_add(reconnects, Ordering::Relaxed);
                    return Ok(());
                }
                PrefillEvent::Accepted | PrefillEvent::Progress { .. } | PrefillEvent::Beat => {}
            }
        }
        Err("the prefill node has gone".into())
    }

    /// Breaks something now and then, for ever.
    async fn break_things(&self, part: u64) {
        let mut dice = Dice::new(self.seed, part);
        loop {
            tokio::time::sleep(dice.milliseconds(10..150)).await;
            let prefill = dice.below(self.prefills.len() as u64) as usize;
            let decode = dice.below(self.decodes.len() as u64) as usize;
            let link = &self.links[prefill][decode];
            match dice.below(48) {
                0..=15 => link.cut(),
                16..=19 => link.hush(),
                20..=25 => {
                    link.down(true);
                    tokio::time::sleep(dice.milliseconds(1..400)).await;
                    link.down(false);
                }
                26..=30 => link.release(),
                31 => {
                    let dies = &self.prefills[prefill];
                    if !dies.is_dead() {
                        dies.die();
                    }
                }
                32 => {
                    let is_last = self.decodes.iter().filter(|d| !d.is_dead()).count() == 1;
                    let dies = &self.decodes[decode];
                    if !dies.is_dead() && !is_last {
                        dies.die();
                    }
                }
                _ => {}
            }
        }
    }

    /// Nothing is left over, and what comes now is as if nothing had been.
    async fn is_well(&self) {
        for link in self.links.iter().flatten() {
            link.down(false);
            link.next(&[]);
            link.cut();
        }
        let all = self.prefills.iter().chain(&self.decodes);
        for member in all.filter(|member| !member.is_dead()) {
            member.node.clean().await;
        }
        for (from, prefill) in self.prefills.iter().enumerate() {
            for (to, decode) in self.decodes.iter().enumerate() {
                let is_unfit = prefill.is_failing || decode.is_failing;
                if prefill.is_dead() || decode.is_dead() || is_unfit {
                    continue;
                }
                let mut deal = Deal::new(&self.beginnings[1], self.chunk);
                deal.via = Some(self.links[from][to].port);
                deal.peers = self.peers(from, to);
                let expected = self.expected(&deal).await;
                let mut outcome = deal.run(&prefill.node, &decode.node).await;
                // A failure that its engine had left, or a busy machine that was silent for too long.
                for _ in 0..4 {
                    if outcome.answer.summary.fallback.is_none() {
                        break;
                    }
                    outcome.made_good(&expected, "behind a world");
                    outcome = deal.run(&prefill.node, &decode.node).await;
                }
                outcome.whole(&expected, &format!("behind world {}", self.seed));
            }
        }
    }
}

/// A stream that has begun, or why it has not.
fn begun_at<E>(begun: reqwest::Result<Result<Events<E>, NodeError>>) -> Result<Events<E>, String> {
    let begun = begun.map_err(|error| error.to_string())?;
    begun.map_err(|error| error.message)
}

/// Those that the environment names, or the usual ones.
fn worlds() -> Range<u64> {
    let Ok(named) = std::env::var("TANDEM_CHAOS") else {
        return WORLDS;
    };
    let number = |text: &str| text.parse::<u64>().expect("TANDEM_CHAOS: 17, or 0..1000");
    match named.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&named)..number(&named) + 1,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_at_once_costs_time_and_no_token() {
    let (worlds, tally) = (worlds(), Tally::default());
    for seed in worlds.clone() {
        eprintln!("world {seed}");
        let world = World::new(seed, &tally).await;
        let conversations = (0..CONVERSATIONS).map(|number| world.conversation(number));
        let all = async {
            tokio::select! {
                _ = futures_util::future::join_all(conversations) => {}
                () = world.break_things(1) => {}
                () = world.break_things(2) => {}
            }
        };
        let all = timeout(PATIENCE, all).await;
        assert!(all.is_ok(), "world {seed} hangs");
        world.is_well().await;
    }
    eprintln!("{tally:?}");
    if worlds == WORLDS {
        // Otherwise this would show nothing.
        let happened = [
            tally.whole,
            tally.fallbacks,
            tally.reconnects,
            tally.cancels,
        ];
        for count in happened {
            assert!(count.into_inner() > 0);
        }
    }
}
