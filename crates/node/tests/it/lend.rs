//! What one node has of a prompt, lent to another one that is to prefill it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_engine::KvEngine;
use tandem_engine::fake::{FakeConfig, FakeEngine};
use tandem_identity::{Authority, Security};
use tandem_kv::frame::Kind;
use tandem_kv::page::{Namespace, Origin, page_start};
use tandem_kv::segment::step_bytes;
use tandem_kv::sender::Offer;
use tandem_node::Limits;
use tandem_node::limits::MAX_HAND_BACKS;
use tandem_proto::{
    ErrorCode, GenerateEvent, Lender, ParityAction, PrefillEvent, PrefillMode, PrefillRequest,
    Reuse, Role, Ticket,
};

use super::cluster::{
    Answer, Calls, Deal, Events, PATIENCE, SHORT, Setup, TestNode, bind, endless, eventually,
    finish, limits, prefill_end,
};
use super::conversation::{first_turn, next_turn};
use super::phases::{SILENCE, only, paged, silence};
use super::proxy::{Fault, Proxy};
use super::raw::{Handoff, false_commit};

/// The turn after one that has been had.
struct Conversation {
    second: Deal,
    expected: Vec<u32>,
    /// Tokens that whoever had the first turn has KV of.
    known: u32,
}

impl Conversation {
    fn kv_end(&self) -> u32 {
        self.second.tokens.len() as u32 - 1
    }
}

/// A prefill node and a decode node that have had the first turn.
async fn had(config: &FakeConfig) -> (TestNode, TestNode, Conversation) {
    let [prefill, decode] = [Role::Prefill, Role::Decode].map(|role| node(role, config).start());
    let (prefill, decode) = tokio::join!(prefill, decode);
    let turn = had_on(config, &prefill, &decode).await;
    (prefill, decode, turn)
}

/// The first turn, on these two nodes.
async fn had_on(config: &FakeConfig, prefill: &TestNode, decode: &TestNode) -> Conversation {
    let first = first_turn();
    let outcome = first.run(prefill, decode).await;
    let answer = outcome.answer.tokens.clone();
    outcome.whole(&first.expected(config).await, "first turn");
    let known = (first.tokens.len() + answer.len() - 1) as u32;
    for node in [prefill, decode] {
        node.until("kept", |s| {
            s.pages == u64::from(known / 64) && s.snapshots == 2
        })
        .await;
    }
    prefill.until("given back", |s| s.returns == 0).await;
    let mut second = next_turn(&first, &answer);
    second.terms.keep = false;
    Conversation {
        expected: second.expected(config).await,
        second,
        known,
    }
}

fn node(role: Role, config: &FakeConfig) -> Setup {
    Setup::new(role, config)
}

/// A node that may be killed.
fn mortal(role: Role, config: &FakeConfig, limits: Limits) -> Setup {
    Setup {
        limits,
        mortal: true,
        ..Setup::new(role, config)
    }
}

/// A prefill that has begun, for a decode node, and waits for a loan.
struct Waiting {
    answer: Events<GenerateEvent>,
    sending: Events<PrefillEvent>,
    /// What a lender is asked for.
    lend: PrefillRequest,
}

async fn begin(
    deal: &Deal,
    prefill: &TestNode,
    decode: &TestNode,
    peer: Option<String>,
) -> Waiting {
    let (answer, ticket) = deal.open(decode).await;
    let mut request = deal.prefill(&ticket);
    request.lender = Some(Lender { peer });
    let mut sending = prefill.prefill(&request).await.unwrap();
    let Some(PrefillEvent::Lend(ticket)) = sending.next().await else {
        panic!("it asks for nothing");
    };
    let lend = asked(request, &ticket);
    Waiting {
        answer,
        sending,
        lend,
    }
}

/// What a lender is asked for by whoever got this permission for it.
pub fn asked(mut request: PrefillRequest, ticket: &Ticket) -> PrefillRequest {
    request.lender = None;
    request.target = format!("127.0.0.1:{}", ticket.port);
    request.ticket = ticket.secret.clone();
    request.handoff = ticket.handoff;
    request
}

/// Where the node that borrows takes it in.
fn port(lend: &PrefillRequest) -> u16 {
    let (_, port) = lend.target.rsplit_once(':').unwrap();
    port.parse().unwrap()
}

impl Waiting {
    async fn end(mut self) -> (Answer, PrefillEvent) {
        tokio::join!(finish(&mut self.answer), prefill_end(&mut self.sending))
    }
}

fn bytes(end: &PrefillEvent) -> u64 {
    match end {
        PrefillEvent::Done { handoff_bytes, .. } => *handoff_bytes,
        other => panic!("{other:?}"),
    }
}

/// Whoever had the turn before lends it to a node that had nothing of it, which computes what is new for whoever decodes.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_had_nothing_computes_only_what_is_new() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        for (to_itself, by_decode_node) in [(true, true), (false, true), (false, false)] {
            let what = format!("{to_itself} {by_decode_node}");
            let (prefill, decode, turn) = had(&config).await;
            let mut counted = config.clone();
            let computed = Calls::of(&mut counted);
            let other = node(Role::Prefill, &counted).start().await;
            let fresh = node(Role::Decode, &config).start().await;
            let decodes = if to_itself { &decode } else { &fresh };
            let lender = if by_decode_node { &decode } else { &prefill };
            let mut waiting = begin(&turn.second, &other, decodes, None).await;
            let mut lending = lender.lend(&waiting.lend).await.unwrap();
            assert!(bytes(&prefill_end(&mut lending).await) > 0);
            let first = waiting.answer.next().await;
            let (answer, end) = waiting.end().await;
            assert!(first.is_some() && answer.done, "{what}: {answer:?}");
            assert_eq!(answer.tokens, turn.expected, "{what}");
            assert_eq!(answer.summary.local_tokens, 0, "{what}");
            assert!(bytes(&end) > 0);
            let new = turn.kv_end() - turn.known;
            assert_eq!(computed.prefilled(), new, "{what}");
            for node in [&prefill, &decode, &other, &fresh] {
                node.clean().await;
            }
        }
    }
}

/// So does a decode node that prefills by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_decode_node_that_had_nothing_computes_only_what_is_new() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let (prefill, decode, turn) = had(&config).await;
        let mut counted = config.clone();
        let computed = Calls::of(&mut counted);
        let fresh = node(Role::Decode, &counted).start().await;
        let mut request = turn.second.generate(PrefillMode::Local);
        request.lender = Some(Lender { peer: None });
        let mut events = fresh.generate(&request).await.unwrap();
        let (tokens, ticket) = match events.next().await {
            Some(GenerateEvent::Opened { tokens, ticket, .. }) => (tokens, ticket),
            other => panic!("{other:?}"),
        };
        assert_eq!(tokens.as_ref(), Some(&turn.second.tokens));
        let ticket = ticket.expect("a ticket");
        let lend = asked(turn.second.prefill(&ticket), &ticket);
        let mut lending = prefill.lend(&lend).await.unwrap();
        assert!(bytes(&prefill_end(&mut lending).await) > 0);
        let answer = finish(&mut events).await;
        assert_eq!(answer.tokens, turn.expected);
        let new = turn.kv_end() - turn.known;
        let counts = (answer.summary.cached_tokens, answer.summary.local_tokens);
        assert_eq!(counts, (turn.known, new));
        assert_eq!(computed.prefilled(), new);
        // Now it has it, and needs nobody.
        fresh.idle().await;
        let mut events = fresh.generate(&request).await.unwrap();
        assert!(super::cluster::opened(&mut events).await.is_none());
        let again = finish(&mut events).await;
        assert_eq!(again.tokens, turn.expected);
        assert_eq!(again.summary.cached_tokens, turn.known);
        for node in [&prefill, &decode, &fresh] {
            node.clean().await;
        }
    }
}

/// A lender that is another machine than was named, that has nothing, or cannot be asked: all is computed, at once where the
/// coordinator tells so.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_loan_all_is_computed() {
    let config = FakeConfig::default();
    let (prefill, decode, turn) = had(&config).await;
    let empty = node(Role::Decode, &config).start().await;
    let fresh = async |loan: Duration| {
        let setup = Setup {
            limits: Limits { loan, ..limits() },
            ..node(Role::Prefill, &config)
        };
        setup.start().await
    };
    // Told.
    let other = fresh(PATIENCE * 10).await;
    let waiting = begin(&turn.second, &other, &decode, None).await;
    let refused = empty.lend(&waiting.lend).await.err().expect("refused");
    assert_eq!(refused.code, ErrorCode::Refused, "{refused}");
    other.lend_failed(&turn.second.id, &refused.message).await;
    let lend = waiting.lend.clone();
    let (answer, _) = waiting.end().await;
    assert_eq!(answer.tokens, turn.expected);
    assert_eq!(answer.summary.fallback, None);
    // Its ticket is of no use any more.
    let mut late = prefill.lend(&lend).await.unwrap();
    let end = prefill_end(&mut late).await;
    let PrefillEvent::Failed(error) = end else {
        panic!("{end:?}");
    };
    assert!(error.message.contains("`ticket`"), "{error}");
    other.clean().await;
    // Not told.
    let other = fresh(SHORT).await;
    let (answer, _) = begin(&turn.second, &other, &decode, None).await.end().await;
    assert_eq!(answer.tokens, turn.expected);
    other.clean().await;
    for node in [&prefill, &decode, &empty] {
        node.clean().await;
    }
}

/// A loan of two pages that the test itself sends, of which so many have been acknowledged.
async fn lent(
    config: &FakeConfig,
    turn: &Conversation,
    lend: &PrefillRequest,
    pages: u32,
) -> Handoff {
    let engine = FakeEngine::new(config.clone());
    let contract = Arc::new(engine.contract().clone());
    let namespace = Namespace::new(Arc::clone(&contract), b"", Origin::Exact);
    let offer = Offer {
        contract,
        handoff: lend.handoff,
        ticket: lend.ticket.clone(),
        tokens: turn.second.tokens.clone(),
        continuation: 0,
        kv_end: 128,
        pages: namespace.chain(&turn.second.tokens[..128]),
        step_bytes: 0,
        exact_end: 0,
    };
    let mut handoff = Handoff::offer(engine, offer, port(lend)).await.unwrap();
    for page in 1..=pages {
        let block = handoff.compute(page * 64);
        handoff.block(&block).await;
        assert_eq!(handoff.hear().await, Ok(Kind::Ack));
    }
    handoff
}

/// What has come of a loan that breaks off is used, and what contradicts itself is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_loan_that_breaks_off_is_worth_its_whole_pages() {
    let config = FakeConfig::default();
    let (prefill, decode, turn) = had(&config).await;
    type Commit = fn(&[u8]) -> Vec<u8>;
    let table: [(u32, Option<Commit>, u32); 3] = [
        (1, None, 64),
        (2, Some(<[u8]>::to_vec), 128),
        (2, Some(false_commit), 0),
    ];
    for (pages, commit, used) in table {
        let mut counted = config.clone();
        let computed = Calls::of(&mut counted);
        let other = Setup {
            limits: Limits {
                resume: SHORT,
                ..limits()
            },
            ..node(Role::Prefill, &counted)
        };
        let other = other.start().await;
        let waiting = begin(&turn.second, &other, &decode, None).await;
        let mut handoff = lent(&config, &turn, &waiting.lend, pages).await;
        if let Some(commit) = commit {
            let sent = handoff.sender.commit().unwrap();
            let bytes = handoff.outbound.control(&sent);
            handoff.write(&commit(&bytes)).await;
            let heard = handoff.hear().await;
            assert_eq!(heard.is_ok(), used > 0, "{heard:?}");
        }
        handoff.leave().await;
        let (answer, _) = waiting.end().await;
        assert_eq!(answer.tokens, turn.expected);
        assert_eq!(computed.prefilled(), turn.kv_end() - used, "{pages} {used}");
        other.clean().await;
    }
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loan_ends_with_its_prefill() {
    let config = FakeConfig::default();
    let (prefill, decode, turn) = had(&config).await;
    let other = node(Role::Both, &config).start().await;
    // The coordinator goes.
    drop(begin(&turn.second, &other, &decode, None).await);
    other.clean().await;
    // It leaves the prefill, and the request goes on.
    let waiting = begin(&turn.second, &other, &decode, None).await;
    let Waiting {
        mut answer,
        sending,
        ..
    } = waiting;
    drop(sending);
    other.clean().await;
    // The prefill node may not have said hello to it.
    decode.prefill_failed(&turn.second.id, "given up").await;
    let answer = finish(&mut answer).await;
    assert_eq!(answer.tokens, turn.expected);
    assert!(answer.summary.fallback.is_some());
    // The decode node dies.
    let fresh = mortal(Role::Decode, &config, limits()).start().await;
    let mut waiting = begin(&turn.second, &other, &fresh, None).await;
    fresh.kill();
    let end = prefill_end(&mut waiting.sending).await;
    assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
    other.clean().await;
    let mut request = turn.second.generate(PrefillMode::Local);
    request.lender = Some(Lender { peer: None });
    let mut events = other.generate(&request).await.unwrap();
    assert!(super::cluster::opened(&mut events).await.is_some());
    drop(events);
    other.clean().await;
    decode.clean().await;
    prefill.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lent_to_whom_is_checked() {
    let config = FakeConfig::default();
    let (prefill, decode, turn) = had(&config).await;
    let other = node(Role::Both, &config).start().await;
    let refused = async |request: &PrefillRequest| {
        let answer = other.prefill(request).await;
        answer.err().expect("refused").message
    };
    let (answer, ticket) = turn.second.open(&decode).await;
    let mut request = turn.second.prefill(&ticket);
    request.lender = Some(Lender {
        peer: Some("a".into()),
    });
    let told = refused(&request).await;
    assert!(told.contains("`lender.peer` cannot be checked"), "{told}");
    request.lender = Some(Lender { peer: None });
    request.terms.action = ParityAction::Redo;
    let told = refused(&request).await;
    assert!(told.contains("`terms.action`"), "{told}");
    let told = prefill.lend(&request).await.err().expect("refused").message;
    assert!(told.contains("`terms.action`"), "{told}");
    request.terms.action = ParityAction::Report;
    request.terms.reuse = Reuse::Exact;
    let told = refused(&request).await;
    assert!(told.contains("`terms.reuse`"), "{told}");
    let told = prefill.lend(&request).await.err().expect("refused").message;
    assert!(told.contains("`terms.reuse`"), "{told}");
    let mut generate = turn.second.generate(PrefillMode::Remote);
    generate.lender = Some(Lender { peer: None });
    let told = other.generate(&generate).await.err().expect("refused");
    assert!(told.message.contains("`lender`"), "{told}");
    drop(answer);
    // Another prompt than the permission is for, and another tenant's.
    let waiting = begin(&turn.second, &other, &decode, None).await;
    let mut wrong = waiting.lend.clone();
    wrong.tokens.push(41);
    let mut lending = prefill.lend(&wrong).await.unwrap();
    let end = prefill_end(&mut lending).await;
    let PrefillEvent::Failed(error) = end else {
        panic!("{end:?}");
    };
    assert!(error.message.contains("`token_digest`"), "{error}");
    let mut foreign = waiting.lend.clone();
    foreign.terms.salt = "another tenant".into();
    let nothing = prefill.lend(&foreign).await.err().expect("refused");
    assert_eq!(nothing.code, ErrorCode::Refused);
    // The permission is used up, nobody guesses one, and the prefill goes on without.
    let mut guessed = waiting.lend.clone();
    guessed.ticket = "0".repeat(guessed.ticket.len());
    for request in [&waiting.lend, &guessed] {
        let mut lending = prefill.lend(request).await.unwrap();
        let end = prefill_end(&mut lending).await;
        assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
    }
    let (answer, _) = waiting.end().await;
    assert_eq!(answer.tokens, turn.expected);
    for node in [&prefill, &decode, &other] {
        node.clean().await;
    }
}

/// Over TLS only the machine that was named may lend.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_machine_that_is_named_lends() {
    let authority = Authority::create().unwrap();
    let config = FakeConfig::default();
    let member = || Security::Tls(Arc::new(authority.issue().unwrap()));
    let start = async |role, security: &Security| {
        let setup = Setup {
            security: security.clone(),
            ..Setup::new(role, &config)
        };
        setup.start().await
    };
    let [a, b, c] = [member(), member(), member()];
    let id = |member: &Security| member.own_id().unwrap().to_string();
    let (prefill, decode) = (
        start(Role::Prefill, &a).await,
        start(Role::Decode, &b).await,
    );
    let mut first = first_turn();
    first.peers = Some((id(&a), id(&b)));
    let answer = first.run(&prefill, &decode).await.answer.tokens;
    let known = (first.tokens.len() + answer.len() - 1) as u64;
    for node in [&prefill, &decode] {
        node.until("kept", |s| s.pages == known / 64).await;
    }
    prefill.until("given back", |s| s.returns == 0).await;
    let mut second = next_turn(&first, &answer);
    second.terms.keep = false;
    second.peers = Some((id(&c), id(&b)));
    let expected = second.expected(&config).await;
    for (named, is_good) in [(&a, false), (&b, true)] {
        let other = start(Role::Prefill, &c).await;
        let waiting = begin(&second, &other, &decode, Some(id(named))).await;
        let mut lend = waiting.lend.clone();
        lend.target_peer = Some(id(&c));
        let mut lending = decode.lend(&lend).await.unwrap();
        let end = prefill_end(&mut lending).await;
        if is_good {
            assert!(bytes(&end) > 0);
        } else {
            let PrefillEvent::Failed(error) = end else {
                panic!("{end:?}");
            };
            assert!(error.message.contains("`ticket`"), "{error}");
            other.lend_failed(&second.id, "refused").await;
        }
        let (answer, _) = waiting.end().await;
        assert_eq!(answer.tokens, expected);
        other.clean().await;
    }
    prefill.clean().await;
    decode.clean().await;
}

/// A loan of some blocks, with a relay between the two nodes.
struct Rig {
    prefill: TestNode,
    /// It has had the turn before, and lends it.
    decode: TestNode,
    /// It had nothing of it.
    other: TestNode,
    computed: Calls,
    proxy: Proxy,
    turn: Conversation,
    waiting: Waiting,
    lending: Events<PrefillEvent>,
}

impl Rig {
    async fn begin(config: &FakeConfig, limits: Limits, faults: &[Fault]) -> Self {
        let prefill = node(Role::Prefill, config).start().await;
        let decode = mortal(Role::Decode, config, limits).start().await;
        let turn = had_on(config, &prefill, &decode).await;
        let mut counted = config.clone();
        let computed = Calls::of(&mut counted);
        let other = mortal(Role::Prefill, &counted, limits).start().await;
        let mut waiting = begin(&turn.second, &other, &decode, None).await;
        let port = port(&waiting.lend);
        let proxy = Proxy::to(port).await;
        proxy.next(faults);
        waiting.lend.target = format!("127.0.0.1:{}", proxy.port);
        let lending = decode.lend(&waiting.lend).await.unwrap();
        Self {
            prefill,
            decode,
            other,
            computed,
            proxy,
            turn,
            waiting,
            lending,
        }
    }

    async fn held(config: &FakeConfig, limits: Limits, fault: Fault) -> Self {
        let rig = Self::begin(config, limits, &[fault]).await;
        rig.proxy.held().await;
        rig
    }

    /// The answer is right, and was prefilled behind one of these numbers of tokens that had been lent. A coordinator that hears of a loan
    /// that has failed tells so.
    async fn over(mut self, lent: &[u32], connections: usize) {
        let telling = async {
            let end = prefill_end(&mut self.lending).await;
            let failed = !matches!(end, PrefillEvent::Done { .. });
            if failed {
                self.other
                    .lend_failed(&self.turn.second.id, "it failed")
                    .await;
            }
            failed
        };
        let (failed, (answer, _)) = tokio::join!(telling, self.waiting.end());
        let found = self.turn.kv_end() - self.computed.prefilled();
        assert!(lent.contains(&found), "{found} were lent");
        let known = self.turn.known;
        assert!(if failed {
            lent != [known]
        } else {
            found == known
        });
        assert_eq!(answer.tokens, self.turn.expected);
        assert_eq!(answer.summary.fallback, None, "{answer:?}");
        assert_eq!(self.proxy.connections(), connections);
        for node in [&self.prefill, &self.decode, &self.other] {
            node.settled().await;
        }
    }

    /// The middle of the first segment of the second block, and the number of its frame.
    async fn segment(config: &FakeConfig) -> (u64, usize) {
        let rig = Self::begin(config, limits(), &[]).await;
        eventually("two blocks", || rig.proxy.blocks(0).len() >= 2).await;
        let (number, segment) = rig.proxy.segment(0, 64);
        let known = rig.turn.known;
        rig.over(&[known], 1).await;
        (u64::midpoint(segment.start, segment.end), number)
    }
}

/// What a model can go on from, of what has come whole.
fn whole_pages(config: &FakeConfig, tokens: u32) -> u32 {
    let has_window = FakeEngine::new(config.clone()).contract().has_window();
    if has_window { 0 } else { tokens }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_damage_and_silence() {
    for config in paged() {
        let (at, _) = Rig::segment(&config).await;
        let known = |rig: &Rig| rig.turn.known;
        for fault in [Fault::Cut(at), Fault::Flip(at)] {
            let rig = Rig::begin(&config, endless(), &[fault]).await;
            let known = known(&rig);
            rig.over(&[known], 2).await;
        }
        let start = Instant::now();
        let rig = Rig::begin(&config, silence(), &[Fault::Hold(at)]).await;
        let known = known(&rig);
        rig.over(&[known], 2).await;
        assert!(start.elapsed() >= SILENCE);
        // Before the first answer there is nothing to go on with.
        for (fault, limits) in [
            (Fault::Hold(0), only(|l| l.handoff_silence = SILENCE)),
            (Fault::Cut(0), endless()),
            (Fault::FlipReply(80), endless()),
        ] {
            Rig::begin(&config, limits, &[fault])
                .await
                .over(&[0], 1)
                .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_frames() {
    // Beats would be frames, too.
    let quiet = only(|l| l.handoff_beat = PATIENCE * 10);
    for config in paged() {
        let (_, segment) = Rig::segment(&config).await;
        // What comes meanwhile is not certain where the lender is the one to notice.
        for (fault, lent) in [
            (Fault::Repeat(0), &[0][..]),
            (Fault::Repeat(segment), &[64]),
            (Fault::Swap(segment), &[64]),
            (Fault::RepeatReply(0), &[0, 64, 128]),
            (Fault::RepeatReply(1), &[64, 128]),
        ] {
            let rig = Rig::begin(&config, quiet, &[fault]).await;
            let mut lent: Vec<u32> = lent.iter().map(|n| whole_pages(&config, *n)).collect();
            if matches!(fault, Fault::RepeatReply(_)) {
                lent.push(rig.turn.known);
            }
            rig.over(&lent, 1).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_for_good_and_a_node_that_dies() {
    let short = only(|l| l.resume = SHORT);
    for config in paged() {
        let (at, _) = Rig::segment(&config).await;
        let lent = whole_pages(&config, 64);
        let rig = Rig::held(&config, short, Fault::Hold(at)).await;
        rig.proxy.down(true);
        rig.proxy.cut();
        rig.over(&[lent], 1).await;

        // A lender that does not decode the request.
        let lender = mortal(Role::Decode, &config, short).start().await;
        let turn = had_on(
            &config,
            &node(Role::Prefill, &config).start().await,
            &lender,
        )
        .await;
        let mut counted = config.clone();
        let computed = Calls::of(&mut counted);
        let other = mortal(Role::Prefill, &counted, short).start().await;
        let fresh = node(Role::Decode, &config).start().await;
        let waiting = begin(&turn.second, &other, &fresh, None).await;
        let mut lend = waiting.lend.clone();
        let proxy = Proxy::to(port(&lend)).await;
        proxy.next(&[Fault::Hold(at)]);
        lend.target = format!("127.0.0.1:{}", proxy.port);
        let _lending = lender.lend(&lend).await.unwrap();
        proxy.held().await;
        lender.kill();
        proxy.cut();
        let (answer, _) = waiting.end().await;
        assert_eq!(answer.tokens, turn.expected);
        assert_eq!(computed.prefilled(), turn.kv_end() - lent);
        fresh.settled().await;
        other.settled().await;

        // The node that was to prefill.
        let mut rig = Rig::held(&config, short, Fault::Hold(at)).await;
        rig.other.kill();
        rig.proxy.cut();
        let end = prefill_end(&mut rig.lending).await;
        assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
        rig.decode.prefill_failed(&rig.turn.second.id, "gone").await;
        let answer = finish(&mut rig.waiting.answer).await;
        assert_eq!(answer.tokens, rig.turn.expected);
        assert!(answer.summary.cached_tokens >= page_start(rig.turn.known));
        rig.decode.settled().await;
    }
}

/// Who beats and sends nothing holds a prefill up no longer than the loan may take.
#[tokio::test(flavor = "multi_thread")]
async fn a_lender_that_sends_nothing_is_given_up() {
    let config = FakeConfig::default();
    let (prefill, decode, turn) = had(&config).await;
    for has_come in [0, 1] {
        let mut counted = config.clone();
        let computed = Calls::of(&mut counted);
        let other = Setup {
            limits: Limits {
                loan: SILENCE,
                ..limits()
            },
            ..node(Role::Prefill, &counted)
        };
        let other = other.start().await;
        let waiting = begin(&turn.second, &other, &decode, None).await;
        let mut handoff = lent(&config, &turn, &waiting.lend, has_come).await;
        let (answer, _) = waiting.end().await;
        assert_eq!(answer.tokens, turn.expected);
        assert_eq!(computed.prefilled(), turn.kv_end() - has_come * 64);
        // It has been told.
        let told = handoff.hear().await;
        assert!(told.is_err() || told == Ok(Kind::Abort), "{told:?}");
        other.clean().await;
    }
    prefill.clean().await;
    decode.clean().await;
}

/// The same turn, asked for a second time.
fn again(turn: &Conversation) -> Deal {
    Deal {
        id: "req-3".into(),
        ..turn.second.clone()
    }
}

/// Which of two loans begins first.
#[derive(Clone, Copy)]
enum Order {
    First,
    Second,
    AtOnce,
}

/// What several are lent at once crosses the wire once, also where two nodes lend it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lent_to_several_at_once_comes_once() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let mut sent = Vec::new();
        for order in [Order::First, Order::Second, Order::AtOnce] {
            let (prefill, decode, turn) = had(&config).await;
            let mut counted = config.clone();
            let computed = Calls::of(&mut counted);
            let other = node(Role::Prefill, &counted).start().await;
            let first = begin(&turn.second, &other, &decode, None).await;
            // It asks as long as it has not been lent anything.
            let second = begin(&again(&turn), &other, &decode, None).await;
            let lend = async |lender: &TestNode, waiting: &Waiting| {
                let mut lending = lender.lend(&waiting.lend).await.unwrap();
                bytes(&prefill_end(&mut lending).await)
            };
            let (a, b) = match order {
                Order::First => {
                    let a = lend(&decode, &first).await;
                    (a, lend(&prefill, &second).await)
                }
                Order::Second => {
                    let b = lend(&prefill, &second).await;
                    (lend(&decode, &first).await, b)
                }
                Order::AtOnce => tokio::join!(lend(&decode, &first), lend(&prefill, &second)),
            };
            sent.push(a + b);
            let ((one, _), (two, _)) = tokio::join!(first.end(), second.end());
            for answer in [one, two] {
                assert_eq!(answer.tokens, turn.expected);
            }
            let new = turn.kv_end() - turn.known;
            // The second prefill may find what the first one has computed.
            assert!([new, 2 * new].contains(&computed.prefilled()));
            for node in [&prefill, &decode, &other] {
                node.clean().await;
            }
        }
        assert!(sent[..2].contains(&sent[2]), "{sent:?}");
    }
}

/// A loan that another one precedes waits for that one, until it is over, breaks, or nobody waits any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_loan_waits_for_another_that_brings_the_same() {
    let config = FakeConfig::default();
    let (prefill, decode, turn) = had(&config).await;
    // (how the first one ends, whether the second one brings all itself)
    for (commits, cuts, brings_all) in [(true, false, false), (false, true, true)] {
        let other = Setup {
            limits: Limits {
                resume: SHORT,
                ..limits()
            },
            ..node(Role::Prefill, &config)
        };
        let other = other.start().await;
        let first = begin(&turn.second, &other, &decode, None).await;
        let mut handoff = lent(&config, &turn, &first.lend, 2).await;
        let second = begin(&again(&turn), &other, &decode, None).await;
        let mut lending = decode.lend(&second.lend).await.unwrap();
        {
            let end = prefill_end(&mut lending);
            let early = tokio::time::timeout(SHORT, end).await;
            assert!(early.is_err(), "{early:?}");
        }
        if commits {
            let sent = handoff.sender.commit().unwrap();
            let commit = handoff.outbound.control(&sent);
            handoff.write(&commit).await;
            assert_eq!(handoff.hear().await, Ok(Kind::Committed));
        }
        if commits || cuts {
            handoff.leave().await;
        }
        let sent = bytes(&prefill_end(&mut lending).await);
        let engine = FakeEngine::new(config.clone());
        let token = step_bytes(engine.contract(), 1, 1);
        let missing = turn.known - if brings_all { 0 } else { 128 };
        let rows = u64::from(missing) * token;
        assert!((rows..=rows * 9 / 8).contains(&sent), "{sent}, not {rows}");
        for waiting in [first, second] {
            let (answer, _) = waiting.end().await;
            assert_eq!(answer.tokens, turn.expected);
        }
        other.clean().await;
    }
    // Nobody waits any more, and the lender hears it.
    let other = node(Role::Prefill, &config).start().await;
    let first = begin(&turn.second, &other, &decode, None).await;
    let mut handoff = lent(&config, &turn, &first.lend, 1).await;
    let second = begin(&again(&turn), &other, &decode, None).await;
    let mut lending = decode.lend(&second.lend).await.unwrap();
    drop(second);
    let end = prefill_end(&mut lending).await;
    assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
    drop(first);
    while handoff.hear().await.is_ok() {}
    for node in [&prefill, &decode, &other] {
        node.clean().await;
    }
}

/// One that cannot lend to any more says so, and lends again when others have ended.
#[tokio::test(flavor = "multi_thread")]
async fn loans_at_once_are_bounded() {
    let config = FakeConfig::default();
    let (prefill, decode, turn) = had(&config).await;
    let deaf = bind().await;
    let ticket = Ticket {
        secret: "00".into(),
        handoff: 1,
        ip: None,
        port: deaf.local_addr().unwrap().port(),
    };
    let lend = asked(turn.second.prefill(&ticket), &ticket);
    let mut going = Vec::new();
    for _ in 0..MAX_HAND_BACKS {
        going.push(decode.lend(&lend).await.unwrap());
    }
    let busy = decode.lend(&lend).await.err().expect("refused");
    assert_eq!(busy.code, ErrorCode::Busy, "{busy}");
    // Whoever asked has gone.
    going.clear();
    decode.settled().await;
    assert!(decode.lend(&lend).await.is_ok());
    decode.clean().await;
    prefill.clean().await;
}
