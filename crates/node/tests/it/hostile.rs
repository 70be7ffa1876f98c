//! A peer that sends what it should not: refused, nothing applied that was not sent, the answer
//! still right, the node still serving.

use std::sync::Arc;

use tandem_engine::fake::{FakeConfig, FakeEngine};
use tandem_engine::{Compute, KvCache};
use tandem_handoff::Section;
use tandem_handoff::codec::{Codec, Encoder};
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind};
use tandem_handoff::limits::CREDIT_BYTES;
use tandem_handoff::message::{Accept, control_frame};
use tandem_handoff::sender::{Offer, Sender};
use tandem_node::Limits;
use tandem_proto::{PrefillMode, Role, Ticket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cluster::{
    Deal, PATIENCE, SHORT, Setup, endless, finish, local_tokens, node, opened, prompt, request,
};
use super::raw::false_commit;

/// The frames of a correct handoff: hello, a segment per chunk, then three of the window if there is one,
/// commit.
fn frames(config: &FakeConfig, tokens: &[u32], ticket: &Ticket, chunk: u32) -> Vec<Vec<u8>> {
    let mut engine = FakeEngine::new(config.clone());
    let sequence = engine.open().unwrap();
    let kv_end = u32::try_from(tokens.len()).unwrap() - 1;
    let offer = Offer {
        contract: Arc::new(engine.contract().clone()),
        handoff: ticket.handoff,
        ticket: ticket.secret.clone(),
        tokens: tokens.to_vec(),
        continuation: 0,
        kv_end,
        pages: Vec::new(),
        step_bytes: 0,
        exact_end: kv_end,
    };
    let (mut sender, hello) = Sender::new(offer).unwrap();
    let mut frames = vec![hello];
    let accept = Accept {
        session: "s".into(),
        credit_bytes: CREDIT_BYTES,
        have_tokens: 0,
        have_page: None,
        have_window: 0,
    };
    let accept = control_frame(Kind::Accept, ticket.handoff, 0, &accept).unwrap();
    let header = Header::parse(accept[..HEADER_BYTES].try_into().unwrap()).unwrap();
    sender.receive(&header, &accept[HEADER_BYTES..]).unwrap();
    let (mut outbound, mut encoder) = (sender.outbound(), Encoder::new().unwrap());
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < kv_end {
        let end = (at + chunk).min(kv_end);
        engine
            .prefill(sequence, at, &tokens[at as usize..end as usize])
            .unwrap();
        blocks.push(engine.export(sequence, Section::Full, at..end).unwrap());
        at = end;
    }
    if config.window > 0 {
        let window = engine.contract().window_start(kv_end)..kv_end;
        let window = engine.export(sequence, Section::Window, window).unwrap();
        let starts = window.tokens.clone().step_by(window.len() as usize / 3);
        blocks.extend(starts.map(|start| window.part(start..start + window.len() / 3)));
    }
    for block in blocks {
        let mut cutter = sender.open(&block).unwrap();
        while let Some(segment) = cutter
            .next(&block.planes, Codec::Raw, &mut encoder)
            .unwrap()
        {
            let mut frame = outbound.segment(&segment.header).to_vec();
            frame.extend(segment.parts().concat());
            frames.push(frame);
        }
        sender.close(block.bytes());
    }
    frames.push(outbound.control(&sender.commit().unwrap()));
    frames
}

/// Ways to spoil a stream of frames, at the first segments of a section. The result is what goes on the wire
/// before it closes.
fn spoilt(kind: &str, frames: &[Vec<u8>], section: Section) -> Vec<u8> {
    let mut frames = frames.to_vec();
    let header =
        |frame: &Vec<u8>| Header::parse(frame[..HEADER_BYTES].try_into().unwrap()).unwrap();
    let is_first = |frame: &Vec<u8>| {
        let header = header(frame);
        header.kind == Kind::Segment && header.section == section.wire()
    };
    let first = frames.iter().position(is_first).expect("segment");
    let second = first + 1;
    match kind {
        "correct" => {}
        "payload byte flipped" => *frames[second].last_mut().unwrap() ^= 1,
        "header byte flipped" => frames[second][20] ^= 1,
        "magic gone" => frames[first][0] = 0,
        "hello damaged" => frames[0][HEADER_BYTES + 3] ^= 0xff,
        "truncated in a payload" => {
            frames.truncate(second + 1);
            let half = frames[second].len() / 2;
            frames[second].truncate(half);
        }
        "truncated in a header" => {
            frames.truncate(second + 1);
            frames[second].truncate(HEADER_BYTES / 2);
        }
        "closed before commit" => drop(frames.pop()),
        "repeated" => {
            let again = frames[first].clone();
            frames.insert(second, again);
        }
        "out of order" => frames.swap(first, second),
        "skipped" => drop(frames.remove(first)),
        "oversized length" => {
            let mut header = header(&frames[first]);
            header.payload_len = u32::MAX;
            frames[first][..HEADER_BYTES].copy_from_slice(&header.encode());
        }
        "overlapping tokens" => {
            let mut header = header(&frames[second]);
            header.token_start -= 1;
            header.block_start -= 1;
            frames[second][..HEADER_BYTES].copy_from_slice(&header.encode());
        }
        "another manifest" => {
            let commit = frames.last_mut().unwrap();
            *commit = false_commit(commit);
        }
        "second hello" => {
            let again = frames[0].clone();
            frames.insert(1, again);
        }
        "no hello" => drop(frames.remove(0)),
        "garbage" => frames = vec![vec![0xa5; 4096]],
        "nothing" => frames.clear(),
        other => panic!("{other}"),
    }
    frames.concat()
}

/// Writes this to the port of a ticket, closes, and waits until the node does, too.
async fn send(ticket: &Ticket, bytes: &[u8]) {
    let address = ("127.0.0.1", ticket.port);
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The node may close first; that is its right.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut rest = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest));
    let _ = read.await.expect("the node keeps a spoilt connection open");
}

const KINDS: [&str; 18] = [
    "correct",
    "payload byte flipped",
    "header byte flipped",
    "magic gone",
    "hello damaged",
    "truncated in a payload",
    "truncated in a header",
    "closed before commit",
    "repeated",
    "out of order",
    "skipped",
    "oversized length",
    "overlapping tokens",
    "another manifest",
    "second hello",
    "no hello",
    "garbage",
    "nothing",
];

#[tokio::test]
async fn whatever_a_peer_sends_the_answer_is_right_and_the_node_serves_on() {
    spoilt_ones_are_made_good(&FakeConfig::default(), Section::Full).await;
    let windowed = FakeConfig::windowed();
    for section in Section::ALL {
        spoilt_ones_are_made_good(&windowed, section).await;
    }
}

async fn spoilt_ones_are_made_good(config: &FakeConfig, section: Section) {
    let chunk = config.microbatch_tokens;
    // More than a page.
    let tokens = prompt(chunk * 5 + 2);
    let expected = local_tokens(config, &tokens, chunk).await;
    for kind in KINDS {
        let decode = node(Role::Decode, config.clone(), limits_of(kind)).await;
        let request = request(&tokens, PrefillMode::Remote, chunk);
        let mut events = decode.generate(&request).await.unwrap();
        let ticket = opened(&mut events).await.expect("ticket");
        let bytes = spoilt(kind, &frames(config, &tokens, &ticket, chunk), section);
        send(&ticket, &bytes).await;
        let answer = finish(&mut events).await;
        assert!(answer.done, "{kind}: {answer:?}");
        assert_eq!(
            answer.summary.fallback.is_none(),
            kind == "correct",
            "{kind}: {answer:?}"
        );
        assert_eq!(answer.tokens, expected, "{kind}");
        let summary = &answer.summary;
        let all = chunk * 5 + 1;
        assert_eq!(summary.remote_tokens + summary.local_tokens, all, "{kind}");
        decode.settled().await;
        // All rows came; but where the commit is not one of these, nobody uses them.
        if kind == "another manifest" || kind == "closed before commit" {
            let is_used = kind == "closed before commit";
            let remote = if is_used { all } else { 0 };
            assert_eq!(summary.remote_tokens, remote, "{kind}");
            let pages = decode.handoffs().await.pages;
            assert_eq!(pages, u64::from(is_used), "{kind}");
        }
    }
}

/// What ends a handoff like this: a broken rule ends it at once; damage, and the want of a receipt, when no
/// other connection comes; and one that has not begun when nobody uses the ticket.
fn limits_of(kind: &str) -> Limits {
    let mut limits = endless();
    match kind {
        "correct"
        | "payload byte flipped"
        | "header byte flipped"
        | "magic gone"
        | "oversized length"
        | "truncated in a payload"
        | "truncated in a header"
        | "closed before commit" => limits.resume = SHORT,
        "hello damaged" | "no hello" | "garbage" | "nothing" => limits.handoff_silence = SHORT,
        _ => {}
    }
    limits
}

#[tokio::test]
async fn who_does_not_know_a_ticket_does_not_use_it_up() {
    let config = FakeConfig::default();
    let chunk = config.microbatch_tokens;
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    for kind in ["garbage", "nothing", "hello damaged", "no hello"] {
        let deal = Deal::new(&prompt(chunk * 3 + 2), chunk);
        let expected = deal.expected(&config).await;
        let (mut events, ticket) = deal.open(&decode).await;
        let frames = frames(&config, &deal.tokens, &ticket, chunk);
        let bytes = spoilt(kind, &frames, Section::Full);
        send(&ticket, &bytes).await;
        let sending = async {
            let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
            super::cluster::prefill_end(&mut sending).await
        };
        let (answer, _) = tokio::join!(finish(&mut events), sending);
        assert_eq!(answer.summary.fallback, None, "{kind}");
        assert_eq!(answer.tokens, expected, "{kind}");
    }
    decode.clean().await;
    prefill.clean().await;
}
