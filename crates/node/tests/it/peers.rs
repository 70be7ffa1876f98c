//! Who may hand KV over: tickets, sessions and certificates.

use std::sync::Arc;
use std::time::Duration;

use tandem_cluster::limits::MAX_HANDSHAKES;
use tandem_cluster::{Authority, Security};
use tandem_engine::fake::FakeConfig;
use tandem_handoff::frame::{HEADER_BYTES, Kind};
use tandem_handoff::limits::MAX_SESSIONS;
use tandem_handoff::message::{Hello, control_frame, parse};
use tandem_handoff::sender::Outgoing;
use tandem_node::handoffs::{Handoffs, Secrets};
use tandem_node::limits::MAX_UNGREETED;
use tandem_proto::{PrefillEvent, Role, Ticket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cluster::{Deal, PATIENCE, Reuse, Setup, TestNode, eventually, finish, limits, prompt};
use super::proxy::{Fault, Proxy};
use super::raw::Handoff;

fn member(authority: &Authority) -> Security {
    Security::Tls(Arc::new(authority.issue().unwrap()))
}

fn id(security: &Security) -> String {
    security.own_id().unwrap().to_string()
}

fn deal(config: &FakeConfig) -> Deal {
    let chunk = config.microbatch_tokens;
    let mut deal = Deal::new(&prompt(chunk * 4 + 3), chunk);
    Reuse::Off.set(&mut deal.terms);
    deal
}

async fn start(role: Role, config: &FakeConfig, security: &Security) -> TestNode {
    let setup = Setup {
        security: security.clone(),
        ..Setup::new(role, config)
    };
    setup.start().await
}

/// What a node answers to a stream of bytes before it closes.
pub async fn answer(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let mut heard = Vec::new();
    let reading = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard));
    let _ = reading.await.expect("the node keeps the connection open");
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_over_tls_gives_the_same_tokens_also_after_a_cut_and_a_flipped_bit() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let authority = Authority::create().unwrap();
        let (first, second) = (member(&authority), member(&authority));
        let prefill = start(Role::Prefill, &config, &first).await;
        let decode = start(Role::Decode, &config, &second).await;
        let proxy = Proxy::to(decode.port).await;
        let mut deal = deal(&config);
        deal.tokens = prompt(deal.chunk * 40 + 3);
        deal.peers = Some((id(&first), id(&second)));
        deal.via = Some(proxy.port);
        let expected = deal.expected(&config).await;
        proxy.next(&[]);
        deal.run(&prefill, &decode).await.whole(&expected, "tls");
        // Handshake, hello and commit are a small part of it.
        let half = proxy.written(0) / 2;
        assert!(half > 10_000);
        for (fault, reconnects) in [
            (Fault::None, 0),
            (Fault::Cut(half), 1),
            (Fault::Flip(half), 1),
        ] {
            proxy.next(&[fault]);
            let outcome = deal.run(&prefill, &decode).await;
            outcome.whole(&expected, &format!("{fault:?}"));
            assert_eq!(outcome.done().3, reconnects, "{fault:?}");
        }
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_of_no_use_to_another_machine_and_is_not_spoilt_by_it() {
    let config = FakeConfig::default();
    let authority = Authority::create().unwrap();
    let all = [(); 3].map(|()| member(&authority));
    let [first, second, thief] = &all;
    let prefill = start(Role::Prefill, &config, first).await;
    let decode = start(Role::Decode, &config, second).await;
    let other = start(Role::Prefill, &config, thief).await;
    let mut deal = deal(&config);
    deal.peers = Some((id(first), id(second)));
    let expected = deal.expected(&config).await;
    let (mut events, ticket) = deal.open(&decode).await;
    // The machine is of the cluster, and has the secret.
    let mut stolen = other.prefill(&deal.prefill(&ticket)).await.unwrap();
    let end = super::cluster::prefill_end(&mut stolen).await;
    assert!(
        matches!(&end, PrefillEvent::Failed(e) if e.message.contains("`ticket`")),
        "{end:?}"
    );
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    let (answer, end) = tokio::join!(
        finish(&mut events),
        super::cluster::prefill_end(&mut sending)
    );
    assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
    assert_eq!(answer.summary.fallback, None);
    assert_eq!(answer.tokens, expected);

    // KV goes to the machine that was named and to no other.
    deal.peers = Some((id(first), id(thief)));
    let outcome = deal.run(&prefill, &decode).await;
    let reason = outcome.made_good(&expected, "another receiver");
    assert!(reason.contains("is the machine"), "{reason}");
    for node in [prefill, decode, other] {
        node.clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_of_another_cluster_is_refused() {
    let config = FakeConfig::default();
    let (ours, theirs) = (Authority::create().unwrap(), Authority::create().unwrap());
    let (stranger, second) = (member(&theirs), member(&ours));
    let prefill = start(Role::Prefill, &config, &stranger).await;
    let decode = start(Role::Decode, &config, &second).await;
    let mut deal = deal(&config);
    deal.peers = Some((id(&stranger), id(&second)));
    let expected = deal.expected(&config).await;
    let outcome = deal.run(&prefill, &decode).await;
    let reason = outcome.made_good(&expected, "a stranger");
    assert!(reason.contains("refused"), "{reason}");
    assert_eq!(outcome.answer.summary.remote_tokens, 0);
    decode.clean().await;
    prefill.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_client_gets_nowhere_where_tls_is_spoken() {
    let config = FakeConfig::default();
    let authority = Authority::create().unwrap();
    let (first, second) = (member(&authority), member(&authority));
    let prefill = start(Role::Prefill, &config, &first).await;
    let decode = start(Role::Decode, &config, &second).await;
    let mut deal = deal(&config);
    deal.peers = Some((id(&first), id(&second)));
    let (mut events, ticket) = deal.open(&decode).await;
    // It has the ticket, and everything else is right.
    let refused = Handoff::dial(&config, &deal, &ticket).await.err();
    refused.expect("a plain connection was served");
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    let (answer, _) = tokio::join!(
        finish(&mut events),
        super::cluster::prefill_end(&mut sending)
    );
    assert_eq!(answer.summary.fallback, None, "the ticket was spoilt");
    assert_eq!(answer.tokens, deal.expected(&config).await);
    // Nor does a node without TLS get anywhere.
    let plain = Setup::new(Role::Prefill, &config).start().await;
    let (mut events, ticket) = deal.open(&decode).await;
    let mut told = deal.prefill(&ticket);
    told.target_peer = None;
    let mut sending = plain.prefill(&told).await.unwrap();
    let end = super::cluster::prefill_end(&mut sending).await;
    assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
    decode.prefill_failed(&deal.id, "plain").await;
    let answer = finish(&mut events).await;
    assert!(answer.done && answer.summary.fallback.is_some());
    assert_eq!(answer.tokens, deal.expected(&config).await);
    prefill.clean().await;
    decode.clean().await;
    plain.clean().await;
}

/// True if the node has closed a connection, without a word.
fn is_closed(link: &TcpStream) -> bool {
    match link.try_read(&mut [0]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_hold_nobody_up() {
    let config = FakeConfig::default();
    let authority = Authority::create().unwrap();
    let (first, second) = (member(&authority), member(&authority));
    for tls in [false, true] {
        let (one, two) = if tls {
            (first.clone(), second.clone())
        } else {
            (Security::Plaintext, Security::Plaintext)
        };
        let prefill = start(Role::Prefill, &config, &one).await;
        let decode = start(Role::Decode, &config, &two).await;
        let mut deal = deal(&config);
        deal.peers = tls.then(|| (id(&first), id(&second)));
        let expected = deal.expected(&config).await;
        let (mut events, ticket) = deal.open(&decode).await;
        let mut silent = Vec::new();
        for _ in 0..1000 {
            silent.push(
                TcpStream::connect(("127.0.0.1", ticket.port))
                    .await
                    .unwrap(),
            );
        }
        // They are not dropped for their silence, but for those that come later. In which order they are taken
        // that connect at the same time is not certain.
        let room = if tls { MAX_HANDSHAKES } else { MAX_UNGREETED };
        eventually("the end of the oldest", || {
            let closed = silent.iter().filter(|s| is_closed(s)).count();
            closed >= silent.len() - room && silent[..silent.len() / 2].iter().all(is_closed)
        })
        .await;
        let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
        let (answer, end) = tokio::join!(
            finish(&mut events),
            super::cluster::prefill_end(&mut sending)
        );
        assert!(matches!(end, PrefillEvent::Done { .. }), "{end:?}");
        assert_eq!(answer.summary.fallback, None);
        assert_eq!(answer.tokens, expected);
        drop(silent);
        decode.clean().await;
        prefill.clean().await;
    }
}

/// A hello like that of a handoff, with another secret.
fn hello(of: &Handoff, secret: &str, handoff: u64) -> Vec<u8> {
    let (_, payload) = of.hello().split_at(HEADER_BYTES);
    let mut hello: Hello = parse(Kind::Hello, payload).unwrap();
    secret.clone_into(&mut hello.ticket);
    control_frame(Kind::Hello, handoff, 0, &hello).unwrap()
}

/// That a node refuses this first frame of a connection for its secret.
async fn refused(port: u16, what: &str, frame: Vec<u8>) {
    let heard = answer(port, &frame).await;
    let heard = String::from_utf8_lossy(&heard);
    let no = "unknown, used, expired, or another machine's";
    assert!(heard.contains(no), "{what}: {heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn used_foreign_and_guessed_secrets_lead_nowhere() {
    let config = FakeConfig::default();
    let mut long = limits();
    long.resume = Duration::from_secs(10);
    let decode = Setup {
        limits: long,
        ..Setup::new(Role::Decode, &config)
    };
    let decode = decode.start().await;
    let deal = deal(&config);
    let (mut events, ticket) = deal.open(&decode).await;
    let (port, id) = (ticket.port, ticket.handoff);
    let mut handoff = Handoff::dial(&config, &deal, &ticket).await.unwrap();
    let accept = handoff.sender.accepted().clone();
    let block = handoff.compute(deal.chunk);
    handoff.block(&block).await;
    handoff.hear().await.unwrap();

    let guess = "0".repeat(32);
    let session = &accept.session;
    let used = hello(&handoff, &ticket.secret, id);
    refused(port, "the used ticket", used).await;
    refused(port, "a guess", hello(&handoff, &guess, id)).await;
    let other = hello(&handoff, session, id ^ 1);
    refused(port, "another handoff", other).await;

    // None of this has disturbed the handoff: its own session is still good, once.
    let own = Ticket {
        secret: session.clone(),
        ..ticket.clone()
    };
    let lost = Handoff::dial(&config, &deal, &own).await.unwrap();
    let unread = &lost.sender.accepted().session;
    // As long as nothing comes over the new connection, its answer may have been lost.
    let mut again = Handoff::dial(&config, &deal, &own).await.unwrap();
    assert_eq!(again.sender.accepted().have_tokens, deal.chunk);
    let beat = again.outbound.control(&Outgoing::beat());
    again.write(&beat).await;
    decode.until("sure of it", |s| s.secrets == 1).await;
    refused(port, "a used session", hello(&again, session, id)).await;
    refused(port, "one that was never read", hello(&again, unread, id)).await;
    // The old connection is not obeyed any more.
    let block = handoff.compute(deal.chunk * 2);
    handoff.block(&block).await;
    assert!(handoff.hear().await.is_err());
    again.blocks(deal.chunk).await;
    again.commit().await;
    again.leave().await;
    let answer = finish(&mut events).await;
    assert_eq!(answer.summary.fallback, None);
    assert_eq!(answer.tokens, deal.expected(&config).await);
    decode.clean().await;
}

/// Which sessions of a handoff are good, whatever was said and heard.
#[test]
fn a_session_is_good_until_the_next_one_was_heard() {
    let table = Arc::new(Handoffs::default());
    let (arrivals, _connections) = tokio::sync::mpsc::channel(1);
    let mut secrets = Secrets::new(Arc::clone(&table), 7, None, arrivals);
    let is_good = |secret: &str| table.find(secret, 7, None).is_some();
    let first = secrets.renew(None);
    assert!(is_good(&first) && is_good(&first));
    assert!(table.find(&first, 8, None).is_none());
    // The answer to it is lost, again and again.
    let mut last = first.clone();
    for _ in 0..100 {
        let session = secrets.renew(Some(&first));
        // Of two hellos with the first one, the earlier may come later.
        assert!(is_good(&first) && is_good(&last) && is_good(&session));
        assert!(table.count() <= MAX_SESSIONS);
        last = session;
    }
    // The sender has read the last answer, and says so with a hello.
    let next = secrets.renew(Some(&last));
    assert!(!is_good(&first) && is_good(&last) && is_good(&next));
    // Or with any frame.
    secrets.heard();
    assert!(!is_good(&last) && is_good(&next));
    assert_eq!(table.count(), 1);
    drop(secrets);
    assert_eq!(table.count(), 0);
}

#[tokio::test]
async fn an_expired_ticket_is_refused() {
    let config = FakeConfig::default();
    let mut short = limits();
    short.handoff_silence = Duration::from_millis(50);
    let decode = Setup {
        limits: short,
        ..Setup::new(Role::Decode, &config)
    };
    let decode = decode.start().await;
    let mut deal = deal(&config);
    deal.max_tokens = 12;
    let (mut events, ticket) = deal.open(&decode).await;
    decode.until("expired", |s| s.tickets == 0).await;
    let refused = Handoff::dial(&config, &deal, &ticket).await.err();
    assert!(refused.expect("refused").contains("`ticket`"));
    let answer = finish(&mut events).await;
    assert!(answer.summary.fallback.is_some());
    assert_eq!(answer.tokens, deal.expected(&config).await);
    decode.clean().await;
    // So is that of a request that has ended.
    let decode = Setup::new(Role::Decode, &config).start().await;
    let (events, ticket) = deal.open(&decode).await;
    drop(events);
    decode.until("revoked", |s| s.tickets == 0).await;
    let refused = Handoff::dial(&config, &deal, &ticket).await.err();
    assert!(refused.expect("refused").contains("`ticket`"));
    decode.clean().await;
}
