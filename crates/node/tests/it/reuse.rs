//! The have-list: KV that the decode node has is not sent, and what it has is right.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tandem_engine::fake::{Call, FakeConfig};
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind};
use tandem_handoff::limits::{CREDIT_BYTES, TARGET_BLOCK_BYTES};
use tandem_handoff::message::{Accept, control_frame};
use tandem_handoff::page::PAGE_TOKENS;
use tandem_node::{DiskConfig, Limits, PagesConfig};
use tandem_proto::{GenerateEvent, PrefillEvent, PrefillMode, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cluster::{
    Calls, Deal, Outcome, Reuse, Setup, TestNode, bind, eventually, heavy, limits, prompt,
};
use super::proxy::Proxy;
#[cfg(target_os = "linux")]
use tandem_testkit::disk::SmallDisk;
use tandem_testkit::disk::{full_folder, without_room_on_disk};

pub const CHUNK: u32 = 32;
/// Tokens that all prompts here begin with: two pages, inside complete chunks.
pub const SHARED: u32 = 128;

/// A prompt with the shared beginning and an end of its own.
pub fn ending(seed: u32, count: u32) -> Vec<u32> {
    let mut tokens = prompt(SHARED);
    tokens.extend((0..count).map(|i| 33 + (i * 13 + seed * 17) % 80));
    tokens
}

/// Bytes of a token's rows of the full layers.
pub fn token_bytes(config: &FakeConfig) -> u64 {
    let full = |l: &&tandem_handoff::LayerSpec| l.kind == tandem_handoff::LayerKind::Full;
    let bytes = |l: &tandem_handoff::LayerSpec| l.kv_heads * (l.key_dim + l.value_dim) * 2;
    u64::from(config.layers.iter().filter(full).map(bytes).sum::<u32>())
}

pub fn window_bytes(config: &FakeConfig) -> u64 {
    let window = |l: &&tandem_handoff::LayerSpec| l.kind == tandem_handoff::LayerKind::Window;
    let bytes = |l: &tandem_handoff::LayerSpec| l.kv_heads * (l.key_dim + l.value_dim) * 2;
    let all: u32 = config.layers.iter().filter(window).map(bytes).sum();
    u64::from(all * config.window)
}

pub async fn pair(config: &FakeConfig) -> (TestNode, TestNode) {
    let prefill = Setup::new(Role::Prefill, config).start().await;
    let decode = Setup::new(Role::Decode, config).start().await;
    (prefill, decode)
}

async fn check(outcome: &Outcome, deal: &Deal, config: &FakeConfig, have: u32) {
    outcome.whole(&deal.expected(config).await, "tokens");
    let kv_end = deal.tokens.len() as u32 - 1;
    let summary = &outcome.answer.summary;
    assert_eq!(summary.cached_tokens, have);
    assert_eq!(summary.remote_tokens, kv_end - have);
    let (raw, wire, told, _) = outcome.done();
    assert_eq!(told, have);
    let rows = u64::from(kv_end - have) * token_bytes(config) + window_bytes(config);
    assert_eq!(raw, rows, "bytes of rows");
    assert_eq!(summary.handoff_bytes, rows);
    assert_eq!(summary.wire_bytes, wire);
    // Nothing but the rows and some headers.
    assert!(wire >= rows && wire < rows + 64 * HEADER_BYTES as u64);
}

#[tokio::test]
async fn a_shared_beginning_crosses_the_wire_once() {
    for mut config in [FakeConfig::default(), FakeConfig::windowed()] {
        let computed = Calls::of(&mut config);
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        config.gate = None;
        let decode = Setup::new(Role::Decode, &config).start().await;
        for (i, count) in [20, 33, 70].into_iter().enumerate() {
            let deal = Deal::new(&ending(i as u32, count), CHUNK);
            let outcome = deal.run(&prefill, &decode).await;
            let have = if i == 0 { 0 } else { SHARED };
            check(&outcome, &deal, &config, have).await;
            // The prefill node has them, too; a model with windows cannot continue from pages alone.
            let known = if config.window > 0 { 0 } else { have };
            assert_eq!(computed.prefilled(), SHARED + count - 1 - known);
        }
        decode.clean().await;
        prefill.clean().await;
    }
}

#[tokio::test]
async fn the_same_prompt_again_sends_the_incomplete_page_only() {
    let config = FakeConfig::default();
    let (prefill, decode) = pair(&config).await;
    let deal = Deal::new(&ending(1, 1), CHUNK);
    deal.run(&prefill, &decode).await;
    // All of it is there: nothing but hello and commit goes over the wire.
    let outcome = deal.run(&prefill, &decode).await;
    outcome.whole(&deal.expected(&config).await, "tokens");
    assert_eq!(outcome.done(), (0, 0, SHARED, 0));
    assert_eq!(outcome.answer.summary.cached_tokens, SHARED);
    assert_eq!(outcome.answer.summary.remote_tokens, 0);
    assert!(outcome.answer.parity.expect("parity").holds);
    decode.clean().await;
    prefill.clean().await;
}

#[tokio::test]
async fn another_tenant_and_a_request_without_reuse_share_nothing() {
    let config = FakeConfig::default();
    let (prefill, decode) = pair(&config).await;
    let mut deal = Deal::new(&ending(1, 20), CHUNK);
    deal.terms.salt = "one".into();
    check(&deal.run(&prefill, &decode).await, &deal, &config, 0).await;
    deal.terms.salt = "two".into();
    check(&deal.run(&prefill, &decode).await, &deal, &config, 0).await;
    check(&deal.run(&prefill, &decode).await, &deal, &config, SHARED).await;
    Reuse::Off.set(&mut deal.terms);
    check(&deal.run(&prefill, &decode).await, &deal, &config, 0).await;
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test]
async fn tokens_of_an_incomplete_chunk_are_shared_in_complete_steps_and_else_only_on_demand() {
    let config = FakeConfig::default();
    let (prefill, decode) = pair(&config).await;
    // The second page ends inside the third chunk of 48, which the first prompt does not complete.
    let mut deal = Deal::new(&ending(1, 10), 48);
    deal.run(&prefill, &decode).await;
    deal.tokens = ending(2, 40);
    check(&deal.run(&prefill, &decode).await, &deal, &config, 64).await;
    // It is the eighth of its steps.
    let in_steps = FakeConfig {
        tail_tokens: 16,
        ..config.clone()
    };
    for (own, have) in [(10, SHARED), (0, 64)] {
        let (prefill, decode) = pair(&in_steps).await;
        let mut deal = Deal::new(&ending(1, own), 48);
        deal.run(&prefill, &decode).await;
        deal.tokens = ending(2, 40);
        check(&deal.run(&prefill, &decode).await, &deal, &in_steps, have).await;
        prefill.clean().await;
        decode.clean().await;
    }
    // What is shared is complete in the steps of both ends.
    for configs in [[&config, &in_steps], [&in_steps, &config]] {
        let prefill = Setup::new(Role::Prefill, configs[0]).start().await;
        let decode = Setup::new(Role::Decode, configs[1]).start().await;
        let mut deal = Deal::new(&ending(1, 10), 48);
        deal.run(&prefill, &decode).await;
        deal.tokens = ending(2, 40);
        check(&deal.run(&prefill, &decode).await, &deal, &config, 64).await;
        prefill.clean().await;
        decode.clean().await;
    }
    let mut deal = Deal::new(&ending(3, 10), 48);
    deal.terms.salt = "all".into();
    Reuse::All.set(&mut deal.terms);
    deal.run(&prefill, &decode).await;
    deal.tokens = ending(4, 40);
    check(&deal.run(&prefill, &decode).await, &deal, &config, SHARED).await;
    prefill.clean().await;
    decode.clean().await;
}

/// Pages that end behind the last complete chunk are used as far as a prefill without pages begins a step there, or
/// a batch is left that gives the same bits.
#[tokio::test]
async fn a_prefill_goes_on_from_pages_where_no_bit_changes() {
    let chunk = 256;
    for (tail, shared, kv_end, begins, ends) in [
        (128, 64 * 5, 356, 256, &[356][..]),
        (128, 64 * 7, 460, 384, &[460]),
        (128, 64 * 6, 500, 384, &[500]),
        (128, 64 * 6, 400, 384, &[400]),
        (64, 64 * 5, 390, 320, &[384, 390]),
        (u32::MAX, 64 * 7, 500, 384, &[500]),
        (u32::MAX, 64 * 6, 440, 320, &[440]),
        // Complete chunks are shared as far as they go, also the last one, which is computed in steps, and a
        // prompt of which everything is there computes nothing.
        (128, 64 * 3, 300, 192, &[256, 300]),
        (128, 64 * 5, 600, 320, &[384, 512, 600]),
        (u32::MAX, 64 * 5, 600, 320, &[512, 600]),
        (128, 64 * 6, 384, 384, &[]),
    ] {
        let mut config = FakeConfig {
            prefill_tokens: chunk,
            tail_tokens: tail,
            ..FakeConfig::default()
        };
        let computed = Calls::of(&mut config);
        let (prefill, decode) = pair(&config).await;
        let first = Deal::new(&prompt(2 * chunk + 1), chunk);
        first.run(&prefill, &decode).await;
        let mut tokens = prompt(shared);
        tokens.extend((shared..=kv_end).map(|i| 33 + i * 13 % 80));
        let deal = Deal::new(&tokens, chunk);
        let expected = deal.expected(&config).await;
        let steps = || -> Vec<(u32, u32)> {
            let calls = computed.take();
            let steps = calls.iter().filter_map(|call| match call {
                Call::Prefill { tokens, .. } => Some((tokens.start, tokens.end)),
                _ => None,
            });
            steps.collect()
        };
        let starts = std::iter::once(begins).chain(ends.iter().copied());
        let wanted: Vec<(u32, u32)> = starts.zip(ends.iter().copied()).collect();
        let what = format!("{tail} {shared} {kv_end}");
        steps();
        let local = deal.local(&decode).await;
        assert_eq!(local.tokens, expected, "{what}");
        assert_eq!(local.summary.cached_tokens, begins, "{what}");
        assert_eq!(steps(), wanted, "{what}, local");
        let remote = deal.run(&prefill, &decode).await;
        remote.whole(&expected, &what);
        assert_eq!(steps(), wanted, "{what}, remote");
        decode.settled().await;
        prefill.clean().await;
    }
}

#[tokio::test]
async fn pages_that_have_gone_are_sent_again() {
    let config = FakeConfig::default();
    let prefill = Setup::new(Role::Prefill, &config).start().await;
    // Room for three pages.
    let page = 64 * (token_bytes(&config) + 4) + tandem_prefix_cache::limits::ENTRY_OVERHEAD;
    let decode = Setup {
        pages: PagesConfig {
            ram_bytes: 3 * page,
            disk: None,
        },
        ..Setup::new(Role::Decode, &config)
    };
    let decode = decode.start().await;
    let deal = Deal::new(&ending(1, 20), CHUNK);
    check(&deal.run(&prefill, &decode).await, &deal, &config, 0).await;
    check(&deal.run(&prefill, &decode).await, &deal, &config, SHARED).await;
    // Two other pages, and one of the first two is left.
    let mut other = deal.clone();
    other.tokens = prompt(200)[50..].to_vec();
    other.run(&prefill, &decode).await;
    check(&deal.run(&prefill, &decode).await, &deal, &config, 64).await;
    other.tokens = prompt(300)[50..].to_vec();
    other.run(&prefill, &decode).await;
    check(&deal.run(&prefill, &decode).await, &deal, &config, 0).await;
    decode.clean().await;
    prefill.clean().await;
}

#[tokio::test]
async fn pages_outlive_a_restart_on_disk() {
    let mut one_of_two = Vec::new();
    for damaged in [&[][..], &[0, 1], &[0], &[1]] {
        // Pages that are read one by one; small ones are read at once, and of no use if one of them is damaged.
        let config = match damaged.len() {
            1 => super::cluster::heavy(),
            _ => FakeConfig::default(),
        };
        let dir = tempfile::tempdir().unwrap();
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = || Setup {
            pages: PagesConfig {
                ram_bytes: 256 << 20,
                disk: Some(DiskConfig {
                    dir: dir.path().join("pages"),
                    bytes: 256 << 20,
                }),
            },
            mortal: true,
            ..Setup::new(Role::Decode, &config)
        };
        let first = decode().start().await;
        let mut deal = Deal::new(&ending(1, 20), CHUNK);
        deal.run(&prefill, &first).await;
        first.end().await;
        // Another process would find them at once; here tasks of the first node may still end.
        let config_of = decode().pages;
        while let Err(error) = tandem_prefix_cache::PageStore::open(&config_of) {
            assert!(error.to_string().contains("another node"), "{error}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        damage(&dir.path().join("pages"), damaged);
        let second = decode().start().await;
        assert_eq!(second.handoffs().await.pages, 2);
        deal.tokens = ending(2, 20);
        let outcome = deal.run(&prefill, &second).await;
        let (_, _, have, _) = outcome.done();
        match damaged.len() {
            0 => assert_eq!(have, SHARED),
            1 => one_of_two.push(have),
            _ => assert_eq!(have, 0),
        }
        check(&outcome, &deal, &config, have).await;
        prefill.clean().await;
        second.clean().await;
    }
    // Those before the one that is damaged.
    one_of_two.sort_unstable();
    assert_eq!(one_of_two, [0, 64]);
}

/// The files of pages in a folder.
fn page_files(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    files.filter(|p| p.extension().is_some_and(|e| e == "page"))
}

/// A bit of the rows of these pages changes, in the order of their names.
fn damage(dir: &Path, which: &[usize]) {
    let mut pages: Vec<_> = page_files(dir).collect();
    pages.sort();
    for at in which {
        let page = &pages[*at];
        let mut bytes = std::fs::read(page).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(page, bytes).unwrap();
    }
}

/// What a receiver says that it has.
pub struct Claim {
    pub tokens: u32,
    pub page: Option<String>,
    pub window: u32,
}

/// A receiver that answers the first hello with a claim and then listens.
async fn liar(claim: Claim) -> u16 {
    let listener = bind().await;
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        accept(&mut stream, claim).await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    port
}

/// Answers the hello on a connection with a claim; gives the number of the handoff.
pub async fn accept(stream: &mut TcpStream, claim: Claim) -> u64 {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await.unwrap();
    let header = Header::parse(&header).unwrap();
    let mut payload = vec![0; header.payload_len as usize];
    stream.read_exact(&mut payload).await.unwrap();
    let accept = Accept {
        session: "s".into(),
        credit_bytes: CREDIT_BYTES,
        have_tokens: claim.tokens,
        have_page: claim.page,
        have_window: claim.window,
    };
    let accept = control_frame(Kind::Accept, header.handoff, 0, &accept).unwrap();
    stream.write_all(&accept).await.unwrap();
    header.handoff
}

#[tokio::test]
async fn a_receiver_that_claims_what_it_cannot_have_is_not_believed() {
    let config = FakeConfig::windowed();
    let (prefill, decode) = pair(&config).await;
    let mut deal = Deal::new(&ending(1, 20), CHUNK);
    let expected = deal.expected(&config).await;
    let claim = |tokens, page: Option<&str>, window| Claim {
        tokens,
        page: page.map(str::to_owned),
        window,
    };
    let other = "ab".repeat(32);
    for (claim, field) in [
        (claim(64, Some(&other), 0), "`have_page`"),
        (claim(64, None, 0), "`have_page`"),
        (claim(0, Some(&other), 0), "`have_page`"),
        (claim(1000, None, 0), "`have_tokens`"),
        (claim(0, None, 1), "`have_window`"),
        (claim(0, None, 1000), "`have_window`"),
    ] {
        deal.via = Some(liar(claim).await);
        let outcome = deal.run(&prefill, &decode).await;
        let PrefillEvent::Failed(error) = &outcome.end else {
            panic!("{field} was believed: {outcome:?}");
        };
        assert!(error.message.contains(field), "{error}");
        outcome.made_good(&expected, field);
    }
    prefill.clean().await;
    decode.clean().await;
}

#[tokio::test]
async fn a_disk_that_takes_no_more_costs_no_token() {
    for config in [FakeConfig::default(), FakeConfig::windowed()] {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("pages");
        let small = || PagesConfig {
            // One page, so that all others go to the disk.
            ram_bytes: 9000,
            disk: Some(DiskConfig {
                dir: dir.clone(),
                bytes: 1 << 20,
            }),
        };
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let decode = Setup {
            pages: small(),
            ..Setup::new(Role::Decode, &config)
        };
        let decode = decode.start().await;
        let mut deal = Deal::new(&ending(1, 20), CHUNK);
        Reuse::All.set(&mut deal.terms);
        deal.terms.keep = true;
        deal.run(&prefill, &decode).await;
        decode.until("on disk", |s| s.disk_bytes > 0).await;
        // Every write and read fails from here on.
        eventually("the end of the folder", || {
            // A page may be written just then.
            let _ = std::fs::remove_dir_all(&dir);
            !dir.exists()
        })
        .await;
        for seed in 0..4 {
            deal.tokens = ending(seed, 100 + seed);
            let outcome = deal.run(&prefill, &decode).await;
            outcome.whole(&deal.expected(&config).await, "without a disk");
        }
        decode.until("failing", |s| s.disk_errors > 0).await;
        decode.clean().await;
        prefill.clean().await;
    }
}

/// Pages on a disk that does not answer: in the place of their files a pipe, whose opening waits for
/// a writer. Gives another name of it.
fn stop_answering(dir: &Path) -> PathBuf {
    let pipe = dir.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for page in page_files(dir) {
        std::fs::remove_file(&page).unwrap();
        std::fs::hard_link(&pipe, &page).unwrap();
    }
    pipe
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_does_not_answer_costs_a_limited_time() {
    let config = FakeConfig::default();
    for remote in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let prefill = Setup::new(Role::Prefill, &config).start().await;
        let setup = || Setup {
            pages: PagesConfig {
                ram_bytes: 1 << 20,
                ..spilling(dir.path())
            },
            limits: Limits {
                page_read: Duration::from_millis(300),
                ..limits()
            },
            mortal: true,
            ..Setup::new(Role::Both, &config)
        };
        let first = setup().start().await;
        let mut deal = Deal::new(&ending(1, 20), CHUNK);
        deal.run(&prefill, &first).await;
        first.end().await;
        let is_closed = || tandem_prefix_cache::PageStore::open(&setup().pages).is_ok();
        eventually("the end of the first node", is_closed).await;
        // This one has them on disk only.
        let second = setup().start().await;
        assert_eq!(second.handoffs().await.pages, 2);
        let pipe = stop_answering(&dir.path().join("pages"));
        for seed in 2..4 {
            deal.tokens = ending(seed, 20);
            let expected = deal.expected(&config).await;
            if remote {
                check(&deal.run(&prefill, &second).await, &deal, &config, 0).await;
            } else {
                let answer = deal.local(&second).await;
                assert_eq!((answer.tokens, answer.summary.cached_tokens), (expected, 0));
            }
        }
        // The second request has not waited: the first one's read is still going on.
        second.until("failing", |s| s.disk_errors == 1).await;
        // What a read holds is free when it ends: who waits for the pipe goes on.
        let _writer = std::fs::File::options().read(true).write(true).open(pipe);
        second.clean().await;
        prefill.clean().await;
        second.end().await;
    }
}

/// A place for pages in this folder, with room for one in memory.
fn spilling(dir: &Path) -> PagesConfig {
    PagesConfig {
        ram_bytes: 9000,
        disk: Some(DiskConfig {
            dir: dir.join("pages"),
            bytes: 1 << 20,
        }),
    }
}

/// What an answer leaves beside pages: after the prompt and at its end.
const SNAPSHOTS: u64 = 2;

/// A model and a folder of its own.
fn models_on_disk(dir: &Path) -> [(FakeConfig, PathBuf); 2] {
    [
        (FakeConfig::default(), dir.join("full")),
        (FakeConfig::windowed(), dir.join("windowed")),
    ]
}

/// Places for pages of the prefill node and of the decode node.
fn places(dir: &Path) -> [PagesConfig; 2] {
    ["prefill", "decode"].map(|node| spilling(&dir.join(node)))
}

async fn pair_on_disk(config: &FakeConfig, dir: &Path) -> [TestNode; 2] {
    let [prefill, decode] = places(dir);
    let start = |role, pages| {
        let setup = Setup {
            pages,
            mortal: true,
            ..Setup::new(role, config)
        };
        setup.start()
    };
    [
        start(Role::Prefill, prefill).await,
        start(Role::Decode, decode).await,
    ]
}

/// A request whose KV is kept on both nodes, with snapshots and the answer.
fn kept(tokens: &[u32]) -> Deal {
    let mut deal = Deal::new(tokens, CHUNK);
    Reuse::All.set(&mut deal.terms);
    deal.terms.keep = true;
    deal
}

#[tokio::test]
async fn a_disk_that_is_full_costs_no_token() {
    let dir = tempfile::tempdir().unwrap();
    keep_one(dir.path()).await;
    without_room_on_disk("reuse::child_whose_files_may_not_grow", dir.path());
}

/// The same with a real file system that is full; elsewhere `a_disk_that_is_full_costs_no_token` stands for it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_system_that_is_full_costs_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), 4 << 10) else {
        return;
    };
    keep_one(dir.path()).await;
    disk.fill();
    answer_with_full_disks(dir.path()).await;
}

/// One request for each model, whose KV is kept on disk.
async fn keep_one(dir: &Path) {
    for (config, dir) in models_on_disk(dir) {
        let nodes = pair_on_disk(&config, &dir).await;
        let deal = kept(&ending(1, 20));
        check(&deal.run(&nodes[0], &nodes[1]).await, &deal, &config, 0).await;
        for node in nodes {
            node.until("kept", |s| (s.pages, s.snapshots) == (2, SNAPSHOTS))
                .await;
            node.end().await;
        }
        // Tasks of the nodes may still end.
        for place in places(&dir) {
            while let Err(error) = tandem_prefix_cache::PageStore::open(&place) {
                assert!(error.to_string().contains("another node"), "{error}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

#[tokio::test]
#[ignore = "a part of a_disk_that_is_full_costs_no_token, which starts it in a process of its own"]
async fn child_whose_files_may_not_grow() {
    answer_with_full_disks(&full_folder()).await;
}

/// Goes on where [`keep_one`] ended, and can write nothing.
async fn answer_with_full_disks(dir: &Path) {
    /// Snapshots that the memory of a node has room for.
    const IN_MEMORY: u64 = 5;
    for (mut config, dir) in models_on_disk(dir) {
        let calls = Calls::of(&mut config);
        let nodes = pair_on_disk(&config, &dir).await;
        let [prefill, decode] = &nodes;
        for node in &nodes {
            let found = node.handoffs().await;
            assert_eq!((found.pages, found.snapshots), (2, SNAPSHOTS));
        }
        for seed in 0..6 {
            let mut deal = kept(&ending(seed, 200));
            deal.terms.salt = seed.to_string();
            let outcome = deal.run(prefill, decode).await;
            outcome.whole(&deal.expected(&config).await, "with full disks");
        }
        for node in &nodes {
            // Each deal brought snapshots, too.
            node.until("failing", |s| {
                s.disk_errors > 0 && s.snapshots <= SNAPSHOTS + IN_MEMORY
            })
            .await;
        }
        // What was written before is still good.
        let mut next = kept(&ending(1, 20));
        let known = next.tokens.len() as u32 - 1;
        next.tokens.extend_from_slice(&prompt(20));
        calls.take();
        check(&next.run(prefill, decode).await, &next, &config, SHARED).await;
        assert_eq!(calls.prefilled(), next.tokens.len() as u32 - 1 - known);
        for node in nodes {
            node.clean().await;
            node.end().await;
        }
    }
}

/// A page of a model with large rows, here 32 and 12 MiB, is more than a block; of one with smaller rows, many are.
#[tokio::test(flavor = "multi_thread")]
async fn pages_larger_than_a_block_are_handed_over() {
    for (kib, shared) in [(512, SHARED), (192, SHARED), (64, 6 * PAGE_TOKENS)] {
        let mut config = heavy();
        config.layers[0].kv_heads = kib / 2;
        large_pages_are_handed_over(config, shared).await;
    }
}

async fn large_pages_are_handed_over(config: FakeConfig, shared: u32) {
    let mut counted = config.clone();
    let computed = Calls::of(&mut counted);
    let setup = |role, config: &FakeConfig| Setup {
        pages: PagesConfig {
            ram_bytes: 256 << 20,
            disk: None,
        },
        ..Setup::new(role, config)
    };
    let prefill = setup(Role::Prefill, &counted).start().await;
    let mut deal = Deal::new(&prompt(shared + 10), 64);
    let expected = deal.expected(&config).await;
    let row = token_bytes(&config);
    // The second decode node has none of the pages that the prefill node has.
    for tokens in [shared + 9, 9] {
        let decode = setup(Role::Decode, &config).start().await;
        let proxy = Proxy::to(decode.port).await;
        deal.via = Some(proxy.port);
        let outcome = deal.run(&prefill, &decode).await;
        outcome.whole(&expected, "large pages");
        for (_, tokens) in proxy.blocks(0) {
            assert!(
                tokens.len() as u64 * row <= TARGET_BLOCK_BYTES,
                "{tokens:?}"
            );
        }
        assert_eq!(outcome.answer.summary.cached_tokens, 0);
        assert_eq!(computed.prefilled(), tokens);
        prefill.idle().await;
        // And from them, if it has them.
        let again = deal.run(&prefill, &decode).await;
        again.whole(&expected, "large pages, held");
        assert_eq!(again.answer.summary.cached_tokens, shared);
        computed.take();
        decode.clean().await;
    }
    prefill.clean().await;
}

/// A handoff in which the decode engine stands still while pages are put into place, for twice as long as the
/// other end may be silent; what it gives, and the tokens that it should give.
async fn while_pages_take_long(beat: Duration) -> (super::cluster::Outcome, Vec<u32>) {
    let mut config = FakeConfig::default();
    // The first handoff imports four chunks and a rest.
    let brake = super::kills::Brake::on(&mut config, tandem_engine::fake::CallKind::Import, 5);
    let plain = FakeConfig::default();
    let (mut sending, mut receiving) = (limits(), limits());
    sending.handoff_silence = Duration::from_secs(1);
    receiving.handoff_beat = beat;
    let setup = |role, config, limits| Setup {
        limits,
        ..Setup::new(role, config)
    };
    let prefill = setup(Role::Prefill, &plain, sending).start().await;
    let decode = setup(Role::Decode, &config, receiving).start().await;
    let mut deal = Deal::new(&ending(1, 20), CHUNK);
    check(&deal.run(&prefill, &decode).await, &deal, &plain, 0).await;
    deal.tokens = ending(2, 20);
    let later = async {
        brake.reached().await;
        tokio::time::sleep(sending.handoff_silence * 2).await;
        brake.release();
    };
    let (outcome, ()) = tokio::join!(deal.run(&prefill, &decode), later);
    decode.clean().await;
    prefill.clean().await;
    (outcome, deal.expected(&plain).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_take_long_to_get_into_place_are_waited_for() {
    let (outcome, expected) = while_pages_take_long(Duration::from_millis(50)).await;
    outcome.whole(&expected, "pages");
    assert_eq!(outcome.answer.summary.cached_tokens, SHARED);
    assert_eq!(outcome.done().3, 0, "no connection broke");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_node_that_is_silent_while_pages_get_into_place_is_given_up() {
    let (outcome, expected) = while_pages_take_long(super::cluster::PATIENCE).await;
    let reason = outcome.made_good(&expected, "pages");
    assert!(reason.contains("silent"), "{reason}");
    // The pages are kept, and count as such.
    let summary = &outcome.answer.summary;
    assert_eq!((summary.cached_tokens, summary.remote_tokens), (SHARED, 0));
    assert_eq!((summary.local_tokens, summary.handoff_bytes), (19, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_cancelled_while_pages_get_into_place_frees_them() {
    let mut config = FakeConfig::default();
    let brake = super::kills::Brake::on(&mut config, tandem_engine::fake::CallKind::Import, 5);
    let prefill = Setup::new(Role::Prefill, &FakeConfig::default());
    let prefill = prefill.start().await;
    let decode = Setup::new(Role::Decode, &config).start().await;
    let mut deal = Deal::new(&ending(1, 20), CHUNK);
    deal.run(&prefill, &decode).await;
    // What the first handoff leaves is no part of the time that the cancel takes.
    decode.clean().await;
    deal.tokens = ending(2, 20);
    let (events, ticket) = deal.open(&decode).await;
    let mut sending = prefill.prefill(&deal.prefill(&ticket)).await.unwrap();
    decode.until("promised", |s| s.pins == 1).await;
    let start = std::time::Instant::now();
    drop(events);
    decode.until("freed", super::cluster::is_clean).await;
    let end = super::cluster::prefill_end(&mut sending).await;
    assert!(matches!(end, PrefillEvent::Failed(_)), "{end:?}");
    assert!(start.elapsed() < Duration::from_secs(1));
    brake.release();
    decode.clean().await;
    prefill.clean().await;
    // The pages stay.
    deal.id = "req-2".into();
    let next = deal.local(&decode).await;
    assert_eq!(next.tokens, deal.expected(&FakeConfig::default()).await);
    assert_eq!(next.summary.cached_tokens, SHARED);
}

/// Grading on one machine: nothing goes on from an answer, and all prompts begin with the rubric. The next one comes as
/// soon as the last one has its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_alone_computes_a_shared_beginning_once_though_no_answer_is_kept() {
    for windowed in [false, true] {
        let mut config = match windowed {
            true => FakeConfig::windowed(),
            false => FakeConfig::default(),
        };
        let computed = Calls::of(&mut config);
        let both = Setup::new(Role::Both, &config).start().await;
        let mut pages = 0;
        for (i, own) in [20, 33, 70, 70, 200].into_iter().enumerate() {
            let mut deal = Deal::new(&ending(i as u32, own), CHUNK);
            deal.terms.keep = false;
            let expected = deal.expected(&config).await;
            computed.take();
            let answer = deal.local(&both).await;
            assert_eq!(answer.tokens, expected);
            // Pages alone are of no use to a model with windows, and are not made.
            let cached = if i == 0 || windowed { 0 } else { SHARED };
            assert_eq!(answer.summary.cached_tokens, cached, "{i}");
            assert_eq!(computed.prefilled(), SHARED + own - 1 - cached);
            // Those of the prompt are there, in complete chunks, and none of the answer.
            let complete = (SHARED + own - 1) / CHUNK * CHUNK;
            let own_pages = (complete - SHARED) / PAGE_TOKENS;
            pages += u64::from(if windowed {
                0
            } else {
                own_pages + (SHARED - cached) / PAGE_TOKENS
            });
            assert_eq!(both.handoffs().await.pages, pages, "{i}");
        }
        both.clean().await;
    }
}

/// A client that leaves at the last token costs nobody the pages of its prompt.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_prompt_do_not_wait_for_who_asked() {
    let config = FakeConfig::default();
    let both = Setup::new(Role::Both, &config).start().await;
    let mut deal = Deal::new(&ending(1, 20), CHUNK);
    deal.terms.keep = false;
    let mut left = deal.expected(&config).await.len();
    let request = deal.generate(PrefillMode::Local);
    let mut events = both.generate(&request).await.unwrap();
    while left > 0 {
        let event = events.next().await.expect("the answer");
        left -= usize::from(matches!(event, GenerateEvent::Token { .. }));
    }
    drop(events);
    both.until("made", |s| s.pages == u64::from(SHARED / PAGE_TOKENS))
        .await;
    both.clean().await;
}
