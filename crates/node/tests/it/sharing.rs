//! Requests that begin at once and alike: what they share is computed and sent by one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tandem_engine::fake::{Call, CallKind, FakeConfig};
use tandem_identity::{Authority, Security};
use tandem_kv::policy::Quality;
use tandem_node::Limits;
use tandem_proto::{ParityAction, Reuse, Role};
use tokio::task::JoinHandle;

use super::cluster::{
    Calls, Deal, Outcome, SHORT, Setup, TestNode, endless, eventually, finish, limits, prompt,
};
use super::kills::Brake;
use super::parity::different;
use super::reuse::{CHUNK, token_bytes, window_bytes};

/// Tokens that all prompts here begin with: eight pages, which come in many blocks.
const SHARED: u32 = 512;

/// Holds the chunks of an engine from this token on, until the test lets them go.
struct Held {
    /// The token.
    from: Arc<AtomicU32>,
    reached: Arc<AtomicBool>,
}

impl Held {
    fn of(config: &mut FakeConfig, from: u32) -> Self {
        let held = Self {
            from: Arc::new(AtomicU32::new(from)),
            reached: Arc::default(),
        };
        let (from, reached) = (Arc::clone(&held.from), Arc::clone(&held.reached));
        config.gate = Some(Arc::new(move |call| {
            let Call::Prefill { tokens, .. } = call else {
                return;
            };
            while tokens.start >= from.load(Ordering::Relaxed) {
                reached.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        }));
        held
    }

    async fn reached(&self) {
        eventually("the chunk", || self.reached.load(Ordering::Relaxed)).await;
    }

    /// Holds them from another token on.
    fn from(&self, token: u32) {
        self.from.store(token, Ordering::Relaxed);
    }

    fn release(&self) {
        self.from(u32::MAX);
    }
}

impl Drop for Held {
    /// A test that fails must not hang.
    fn drop(&mut self) {
        self.release();
    }
}

fn config() -> FakeConfig {
    FakeConfig {
        tokens_per_sequence: 1024,
        ..FakeConfig::default()
    }
}

fn windowed() -> FakeConfig {
    FakeConfig {
        tokens_per_sequence: 1024,
        ..FakeConfig::windowed()
    }
}

fn deal(seed: u32, count: u32) -> Deal {
    let mut tokens = prompt(SHARED);
    tokens.extend((0..count).map(|i| 33 + (i * 13 + seed * 17) % 80));
    let mut deal = Deal::new(&tokens, CHUNK);
    deal.id = format!("req-{seed}");
    deal
}

/// The same, to be compared before its first token.
fn compared(seed: u32, count: u32) -> Deal {
    let mut deal = deal(seed, count);
    deal.terms.action = ParityAction::Redo;
    deal
}

/// Plays the coordinator meanwhile.
fn going(deal: &Deal, prefill: &Arc<TestNode>, decode: &Arc<TestNode>) -> JoinHandle<Outcome> {
    let (deal, prefill, decode) = (deal.clone(), Arc::clone(prefill), Arc::clone(decode));
    tokio::spawn(async move { deal.run(&prefill, &decode).await })
}

async fn start(role: Role, config: &FakeConfig) -> Arc<TestNode> {
    Arc::new(Setup::new(role, config).start().await)
}

/// Runs these at once, each from one of the nodes, and looks that all are answered rightly and what is shared
/// was sent once.
async fn shared_once(
    config: &FakeConfig,
    deals: &[Deal],
    held: &[Held],
    prefills: &[Arc<TestNode>],
    decode: &Arc<TestNode>,
) {
    let nodes = prefills.iter().cycle();
    let all: Vec<_> = (deals.iter().zip(nodes))
        .map(|(deal, prefill)| going(deal, prefill, decode))
        .collect();
    let count = deals.len() as u64;
    decode
        .until("all have said hello", |s| s.receiving == count)
        .await;
    held.iter().for_each(Held::release);
    let mut cached = Vec::new();
    for (deal, outcome) in deals.iter().zip(all) {
        let outcome = outcome.await.unwrap();
        outcome.whole(&deal.expected(config).await, "tokens");
        let (raw, _, have, _) = outcome.done();
        let own = deal.tokens.len() as u32 - 1 - have;
        assert_eq!(
            raw,
            u64::from(own) * token_bytes(config) + window_bytes(config)
        );
        cached.push(have);
    }
    cached.sort_unstable();
    let mut once = vec![SHARED; deals.len()];
    once[0] = 0;
    assert_eq!(cached, once);
    for node in prefills.iter().chain([decode]) {
        node.clean().await;
    }
}

#[tokio::test]
async fn what_requests_share_that_begin_at_once_crosses_the_wire_once() {
    for config in [config(), windowed()] {
        let deals = [deal(1, 20), deal(2, 33), deal(3, 70)];
        let decode = start(Role::Decode, &config).await;
        // From one node, which computes it once where it can go on from it.
        let mut sending = config.clone();
        let held = Held::of(&mut sending, 0);
        let computed = Calls::of(&mut sending);
        let prefill = start(Role::Prefill, &sending).await;
        shared_once(&config, &deals, &[held], &[prefill], &decode).await;
        let own: u32 = deals
            .iter()
            .map(|d| d.tokens.len() as u32 - 1 - SHARED)
            .sum();
        let all = SHARED * deals.len() as u32 + own;
        let prefilled = computed.prefilled();
        if config.window == 0 {
            assert!(
                (SHARED + own..all).contains(&prefilled),
                "{prefilled} of {all}"
            );
        } else {
            assert_eq!(prefilled, all);
        }
        // From two, to a node that has seen nothing of it.
        let decode = start(Role::Decode, &config).await;
        let mut configs = [config.clone(), config.clone()];
        let held = configs.each_mut().map(|config| Held::of(config, 0));
        let prefills = [
            start(Role::Prefill, &configs[0]).await,
            start(Role::Prefill, &configs[1]).await,
        ];
        shared_once(&config, &deals[..2], &held, &prefills, &decode).await;
    }
}

#[tokio::test]
async fn who_waited_for_another_that_ends_early_goes_on_from_what_came() {
    let config = config();
    for cancel_request in [true, false] {
        let decode = start(Role::Decode, &config).await;
        let mut sending = config.clone();
        // After the first page.
        let held = Held::of(&mut sending, 64);
        let prefill = start(Role::Prefill, &sending).await;
        let (first, second) = (deal(1, 20), deal(2, 33));
        let (mut events, ticket) = first.open(&decode).await;
        let leaving = prefill.prefill(&first.prefill(&ticket)).await.unwrap();
        held.reached().await;
        let other = going(&second, &prefill, &decode);
        decode
            .until("both have said hello", |s| s.receiving == 2)
            .await;
        if cancel_request {
            drop((events, leaving));
        } else {
            // The client stays.
            drop(leaving);
            decode
                .prefill_failed(&first.id, "the coordinator left it")
                .await;
            tokio::spawn(async move { finish(&mut events).await });
        }
        held.release();
        let outcome = other.await.unwrap();
        outcome.whole(&second.expected(&config).await, "tokens");
        assert_eq!(outcome.done().2, 64, "{outcome:?}");
        decode.clean().await;
        prefill.clean().await;
    }
}

/// Who is compared itself shares what has not been compared: it is compared with all that it began with.
#[tokio::test]
async fn what_must_be_compared_crosses_the_wire_once() {
    for config in [config(), windowed()] {
        let deals = [compared(1, 20), compared(2, 33), compared(3, 70)];
        let decode = start(Role::Decode, &config).await;
        let mut sending = config.clone();
        let held = Held::of(&mut sending, 0);
        let prefill = start(Role::Prefill, &sending).await;
        shared_once(&config, &deals, &[held], &[prefill], &decode).await;
    }
}

/// Two nodes that compute the same, and what a third one that does not has brought: all that it shares.
struct Wrong {
    decode: Arc<TestNode>,
    right: Arc<TestNode>,
    held: Held,
    deal: Deal,
    going: JoinHandle<Outcome>,
}

impl Wrong {
    async fn brings(deal: Deal) -> Self {
        let config = config();
        let decode = start(Role::Decode, &config).await;
        let mut wrong = different(&config);
        let held = Held::of(&mut wrong, SHARED);
        let wrong = start(Role::Prefill, &wrong).await;
        let going = going(&deal, &wrong, &decode);
        held.reached().await;
        decode.until("what they share", |s| s.pages == 8).await;
        Self {
            right: start(Role::Prefill, &config).await,
            decode,
            held,
            deal,
            going,
        }
    }

    async fn beside(&self, deal: &Deal) -> Outcome {
        going(deal, &self.right, &self.decode).await.unwrap()
    }

    /// The rest comes, and is computed again.
    async fn ends(self) {
        self.held.release();
        let outcome = self.going.await.unwrap();
        let expected = self.deal.expected(&config()).await;
        assert_eq!(outcome.answer.tokens, expected);
        assert!(outcome.answer.summary.fallback.is_some());
        self.decode.clean().await;
    }
}

/// It came from a node that computes something else: whoever began with it finds that out, and both are computed again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_shared_and_does_not_fit_is_computed_again_by_all() {
    let wrong = Wrong::brings(compared(1, 20)).await;
    let (second, third) = (compared(2, 33), compared(3, 70));
    let outcome = wrong.beside(&second).await;
    // These two machines are not to blame.
    assert!(outcome.answer.parity.is_none());
    assert_eq!(outcome.answer.tokens, second.expected(&config()).await);
    let reason = outcome.answer.summary.fallback.unwrap();
    assert!(reason.contains("do not compute the same"), "{reason}");
    // Nobody begins with it any more.
    let outcome = wrong.beside(&third).await;
    outcome.whole(&third.expected(&config()).await, "behind it");
    assert_eq!(outcome.done().2, 0);
    wrong.ends().await;
}

/// What is not compared is better, too, and takes the place of what has not been yet.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_compared_does_not_find_what_has_not_been() {
    let reusing = |mut deal: Deal| {
        deal.terms.reuse = Reuse::All;
        deal
    };
    let wrong = Wrong::brings(reusing(compared(1, 20))).await;
    for (deal, have) in [(deal(2, 33), 0), (compared(3, 70), SHARED)] {
        let deal = reusing(deal);
        let outcome = wrong.beside(&deal).await;
        outcome.whole(&deal.expected(&config()).await, &deal.id);
        assert_eq!(outcome.done().2, have);
    }
    wrong.ends().await;
}

/// Its own comparison might not find what that of the one who brought them has found.
#[tokio::test(flavor = "multi_thread")]
async fn who_began_with_pages_that_turn_out_to_be_wrong_is_computed_again() {
    let config = config();
    let decode = start(Role::Decode, &config).await;
    let [mut first_config, mut second_config] = [config.clone(), config.clone()];
    let brakes = [&mut first_config, &mut second_config].map(|c| Brake::on(c, CallKind::Decode, 0));
    let dying = Setup {
        mortal: true,
        ..Setup::new(Role::Prefill, &first_config)
    };
    let dying = dying.start().await;
    let right = start(Role::Prefill, &second_config).await;
    let (first, second) = (compared(1, 20), compared(2, 33));
    let (mut events, ticket) = first.open(&decode).await;
    let _leaving = dying.prefill(&first.prefill(&ticket)).await.unwrap();
    // Both have all of their rows, and no receipt.
    brakes[0].reached().await;
    decode.until("what they share", |s| s.pages == 8).await;
    let two = going(&second, &right, &decode);
    brakes[1].reached().await;
    // What the first one brought cannot be compared any more.
    dying.kill();
    let answer = finish(&mut events).await;
    assert_eq!(answer.tokens, first.expected(&config).await);
    brakes[1].release();
    let outcome = two.await.unwrap();
    assert_eq!(outcome.answer.tokens, second.expected(&config).await);
    let reason = outcome.answer.summary.fallback.unwrap();
    assert!(reason.contains("turned out to be wrong"), "{reason}");
    decode.clean().await;
}

/// Its machine is gone: nobody says goodbye, and nobody waits for it to come again.
#[tokio::test(flavor = "multi_thread")]
async fn who_waited_for_a_machine_that_dies_goes_on_at_once() {
    let config = config();
    let decode = Setup {
        limits: endless(),
        ..Setup::new(Role::Decode, &config)
    };
    let decode = Arc::new(decode.start().await);
    let mut sending = config.clone();
    let held = Held::of(&mut sending, 64);
    let dying = Setup {
        mortal: true,
        ..Setup::new(Role::Prefill, &sending)
    };
    let dying = dying.start().await;
    let quick = start(Role::Prefill, &config).await;
    let (first, second) = (deal(1, 20), deal(2, 33));
    let (_events, ticket) = first.open(&decode).await;
    let _leaving = dying.prefill(&first.prefill(&ticket)).await.unwrap();
    held.reached().await;
    let other = going(&second, &quick, &decode);
    decode
        .until("both have said hello", |s| s.receiving == 2)
        .await;
    dying.kill();
    let outcome = other.await.unwrap();
    outcome.whole(&second.expected(&config).await, "tokens");
    assert_eq!(outcome.done().2, 64, "{outcome:?}");
}

/// While the first is held in the middle of what both begin with, the second one does without it.
#[tokio::test]
async fn who_cannot_use_what_comes_does_not_wait_for_it() {
    let config = config();
    type Change = fn(&mut Deal, &mut Deal);
    let changes: [(&str, Change); 5] = [
        ("a tenant", |_, second| second.terms.salt = "two".into()),
        ("no reuse", |_, second| second.terms.reuse = Reuse::Off),
        ("nothing is kept", |first, _| first.terms.reuse = Reuse::Off),
        ("rows that may be lossy", |first, _| {
            first.terms.quality = Quality::Q8;
        }),
        ("rows that have not been compared", |first, _| {
            first.terms.action = ParityAction::Redo;
        }),
    ];
    for (what, change) in changes {
        let decode = start(Role::Decode, &config).await;
        let mut slow = config.clone();
        let held = Held::of(&mut slow, 32);
        let slow = start(Role::Prefill, &slow).await;
        let quick = start(Role::Prefill, &config).await;
        let (mut first, mut second) = (deal(1, 20), deal(2, 33));
        change(&mut first, &mut second);
        let one = going(&first, &slow, &decode);
        held.reached().await;
        decode
            .until("it has said hello", |s| s.receiving == 1)
            .await;
        let outcome = going(&second, &quick, &decode).await.unwrap();
        outcome.whole(&second.expected(&config).await, what);
        assert_eq!(outcome.done().2, 0, "{what}");
        held.release();
        let outcome = one.await.unwrap();
        outcome.whole(&first.expected(&config).await, what);
        decode.clean().await;
    }
}

/// Waiting costs a machine nothing that it needs to compute anyway.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_another_machine_computes_on() {
    for by_layer in [false, true] {
        let config = FakeConfig {
            by_layer,
            ..config()
        };
        let decode = start(Role::Decode, &config).await;
        let mut slow = config.clone();
        let held = Held::of(&mut slow, 64);
        let slow = start(Role::Prefill, &slow).await;
        let mut quick = config.clone();
        let calls = Calls::of(&mut quick);
        let quick = start(Role::Prefill, &quick).await;
        let (first, second) = (deal(1, 20), deal(2, 33));
        let one = going(&first, &slow, &decode);
        held.reached().await;
        let two = going(&second, &quick, &decode);
        decode
            .until("both have said hello", |s| s.receiving == 2)
            .await;
        let computed = std::cell::Cell::new(0);
        let all = second.tokens.len() as u32 - 1;
        eventually("all of the second one", || {
            computed.set(computed.get() + calls.prefilled());
            computed.get() == all
        })
        .await;
        assert!(!two.is_finished());
        held.release();
        for (deal, going, have) in [(&first, one, 0), (&second, two, SHARED)] {
            let outcome = going.await.unwrap();
            outcome.whole(&deal.expected(&config).await, "tokens");
            assert_eq!(outcome.done().2, have);
        }
        for node in [slow, quick, decode] {
            node.clean().await;
        }
    }
}

/// A machine that goes on bringing pages is waited for until all that is shared has come, however long that takes.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_machine_goes_on_bringing_crosses_the_wire_once() {
    let config = config();
    let wait = Duration::from_secs(4);
    let decode = Setup {
        limits: Limits {
            shared_wait: wait,
            ..limits()
        },
        ..Setup::new(Role::Decode, &config)
    };
    let decode = Arc::new(decode.start().await);
    let mut slow = config.clone();
    let held = Held::of(&mut slow, 64);
    let slow = start(Role::Prefill, &slow).await;
    let quick = start(Role::Prefill, &config).await;
    let (first, second) = (deal(1, 20), deal(2, 33));
    let one = going(&first, &slow, &decode);
    held.reached().await;
    let begun = Instant::now();
    let two = going(&second, &quick, &decode);
    decode
        .until("both have said hello", |s| s.receiving == 2)
        .await;
    for page in 2..4 {
        tokio::time::sleep(wait * 5 / 8).await;
        held.from(page * 64);
        decode
            .until("a page more", |s| s.pages == u64::from(page))
            .await;
    }
    held.release();
    for (deal, going, have) in [(&first, one, 0), (&second, two, SHARED)] {
        let outcome = going.await.unwrap();
        outcome.whole(&deal.expected(&config).await, "tokens");
        assert_eq!(outcome.done().2, have);
    }
    assert!(begun.elapsed() > wait);
    for node in [slow, quick, decode] {
        node.clean().await;
    }
}

/// A machine that stands still holds another one up for a limited time.
#[tokio::test]
async fn what_another_machine_brings_is_waited_for_for_a_limited_time() {
    let config = config();
    let authority = Authority::create().unwrap();
    let [decoding, slow, quick] =
        [(); 3].map(|()| Security::Tls(Arc::new(authority.issue().unwrap())));
    let id = |security: &Security| security.own_id().unwrap().to_string();
    let ids = [&decoding, &slow, &quick].map(id);
    let limits = Limits {
        shared_wait: SHORT,
        ..limits()
    };
    let node = |role, config: &FakeConfig, security| {
        let setup = Setup {
            security,
            limits,
            ..Setup::new(role, config)
        };
        async { Arc::new(setup.start().await) }
    };
    let decode = node(Role::Decode, &config, decoding).await;
    let mut held_config = config.clone();
    let held = Held::of(&mut held_config, 64);
    let slow = node(Role::Prefill, &held_config, slow).await;
    let quick = node(Role::Prefill, &config, quick).await;
    let mut deals = [deal(1, 20), deal(2, 33), deal(3, 40)];
    for (deal, prefill) in deals.iter_mut().zip([1, 2, 1]) {
        deal.peers = Some((ids[prefill].clone(), ids[0].clone()));
    }
    let first = going(&deals[0], &slow, &decode);
    held.reached().await;
    let begun = Instant::now();
    let outcome = going(&deals[1], &quick, &decode).await.unwrap();
    assert!(begun.elapsed() >= SHORT, "it has not waited");
    outcome.whole(&deals[1].expected(&config).await, "from another machine");
    assert_eq!(outcome.done().2, 64, "what had come meanwhile");
    // One from the same machine would have to wait for its engine anyway. By now, what they share is there.
    let third = going(&deals[2], &slow, &decode);
    held.release();
    for (deal, going) in [(&deals[0], first), (&deals[2], third)] {
        let outcome = going.await.unwrap();
        outcome.whole(&deal.expected(&config).await, "from the slow one");
    }
    decode.clean().await;
}
