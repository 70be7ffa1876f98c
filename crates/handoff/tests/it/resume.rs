//! Handoffs over links that break, a connection after the other: every row is applied exactly once,
//! in order, and is the row that was sent; nothing that was acknowledged is sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;
use tandem_handoff::codec::{Codec, Decoder, Encoder, RunSpec};
use tandem_handoff::frame::Kind;
use tandem_handoff::message::parse;
use tandem_handoff::page::PAGE_TOKENS;
use tandem_handoff::sender::Sender;
use tandem_handoff::{Contract, KvBlock, LayerKind, PerSection, PlaneKind, Section};

use super::driver::{
    Taker, blocks, contract, credit_of, expectation, full, layer, mixed, offer, send, split, terms,
    windowed,
};
use super::link::{Case, End, Report, Traffic, hand_over};
use super::pipe::{Fault, Harm, Way};

/// KV of five tokens of `mixed()`, in two blocks of each section.
fn small() -> Case {
    case(&mixed(), 5, &[2, 3])
}

fn case(contract: &Contract, kv_end: u32, chunks: &[u32]) -> Case {
    let blocks = blocks(contract, kv_end, chunks);
    Case {
        contract: contract.clone(),
        kv_end,
        have: 0,
        credit_bytes: credit_of(&blocks, 3),
        codecs: vec![Codec::Raw, Codec::Plane],
        faults: Vec::new(),
        cancel: None,
        streamed: false,
        seed: 1,
        blocks,
    }
}

/// Rows of a plane by token: what was sent, and what was applied.
type Rows = BTreeMap<(u32, bool, u32), Vec<u8>>;

fn rows<'a>(blocks: impl IntoIterator<Item = &'a KvBlock>) -> Rows {
    let mut out = Rows::new();
    for block in blocks {
        for plane in &block.planes {
            let row = plane.data.len() / block.len() as usize;
            for (token, bytes) in block.tokens.clone().zip(plane.data.chunks(row)) {
                let key = (plane.layer, plane.kind == PlaneKind::Value, token);
                let before = out.insert(key, bytes.to_vec());
                assert!(before.is_none(), "{key:?} twice");
            }
        }
    }
    out
}

/// Once, contiguously, in order, bit for bit, and within the credit.
fn check(case: &Case, report: &Report) {
    let (mut at, mut window) = (case.have, false);
    for block in &report.applied {
        assert!(!window, "a block after the window");
        match block.section {
            Section::Full => {
                assert_eq!(block.tokens.start, at);
                at = block.tokens.end;
            }
            Section::Window => window = true,
        }
    }
    let largest = case.blocks.iter().map(KvBlock::bytes).max().unwrap_or(0);
    assert!(report.most_staged <= case.credit_bytes.max(largest));
    let mut sent = rows(&case.blocks);
    let is_full = |layer: u32| case.contract.layers[layer as usize].kind == LayerKind::Full;
    sent.retain(|(layer, _, token), _| *token >= case.have || !is_full(*layer));
    let applied = rows(&report.applied);
    if report.end == End::Committed {
        assert_eq!(applied.len(), sent.len());
    }
    for (key, row) in &applied {
        assert_eq!(sent.get(key), Some(row), "{key:?}");
    }
    if report.end == End::NotStarted {
        assert!(report.applied.is_empty());
    }
}

fn committed(case: &Case) -> Report {
    let report = hand_over(case);
    assert_eq!(report.end, End::Committed, "{:?}", case.faults);
    check(case, &report);
    report
}

#[test]
fn without_faults() {
    for seed in 0..50 {
        let report = committed(&Case { seed, ..small() });
        assert_eq!(report.opened.len(), 4);
    }
}

/// A small handoff with these harms, one at a time, at every byte of the connection.
fn at_every_byte(harms: impl Fn(usize) -> Vec<Harm>, mut judge: impl FnMut(&Fault, Report)) {
    for (seed, streamed) in [(3, false), (4, false), (5, false), (3, true), (5, true)] {
        let sound = Case {
            seed,
            streamed,
            ..small()
        };
        let first = committed(&sound);
        assert_eq!(first.traffic.len(), 2);
        for traffic in &first.traffic {
            assert!(traffic.arrived > 0);
            for at in 0..traffic.arrived {
                for harm in harms(at) {
                    let fault = fault(traffic, at, harm);
                    let case = with_fault(&sound, fault);
                    let report = hand_over(&case);
                    check(&case, &report);
                    judge(&fault, report);
                }
            }
        }
    }
}

fn fault(traffic: &Traffic, at: usize, harm: Harm) -> Fault {
    Fault {
        generation: traffic.generation,
        way: traffic.way,
        at,
        harm,
    }
}

fn with_fault(sound: &Case, fault: Fault) -> Case {
    Case {
        faults: vec![fault],
        ..sound.clone()
    }
}

/// True if a byte of the hello or of the first accept is harmed: without those nothing starts.
fn before_the_start(fault: &Fault, report: &Report) -> bool {
    let first = &report.first(fault.way).frames[0].1;
    fault.at < first.end
}

/// Every byte of every connection of a small handoff: all that one direction or both bring ends
/// there, or is another byte, is lost, comes twice, or after the next one. It is fixed, or nothing has
/// started.
#[test]
fn harm_at_every_byte() {
    let (mut resumed, mut in_window, mut not_started) = (0, 0, 0);
    let harms = |at: usize| {
        vec![
            Harm::Cut,
            Harm::HalfClose,
            Harm::Flip(1 << (at % 8)),
            Harm::Lose(1),
            Harm::Repeat(1),
            Harm::Exchange,
        ]
    };
    at_every_byte(harms, |fault, report| match report.end {
        End::Committed => {
            resumed += 1;
            // Of the window of tokens 1 to 4 the block of token 1 is there.
            let windows = report.resumed.iter().filter(|r| r.window == 2);
            in_window += windows.count();
        }
        End::NotStarted => {
            assert!(before_the_start(fault, &report), "{fault:?}");
            not_started += 1;
        }
        other => panic!("{fault:?}: {other:?}"),
    });
    assert!(
        resumed > 25_000 && in_window > 5000 && not_started > 15_000,
        "{resumed} {in_window} {not_started}"
    );
}

/// From any byte on nothing comes until nothing else can happen: all that costs is time.
#[test]
fn delay_at_every_byte() {
    let (mut released, mut unneeded) = (0, 0);
    at_every_byte(
        |_| vec![Harm::Delay],
        |fault, report| {
            assert_eq!(report.end, End::Committed, "{fault:?}");
            assert!(report.resumed.is_empty(), "{fault:?}");
            assert_eq!(report.opened.len(), 4, "{fault:?}");
            released += report.released;
            unneeded += 1 - report.released;
        },
    );
    // Nobody waits for a beat or a receipt.
    assert!(released > 7000, "{released}");
    assert!(unneeded < released / 5, "{unneeded}");
}

/// What becomes of a handoff in which a whole frame is lost, comes twice or after the next one: both
/// ends count, so the first frame with another number ends the handoff.
fn judge_frame(case: &Case, frame: &Range<usize>, count: &mut [u32; 4]) {
    let report = hand_over(case);
    check(case, &report);
    let fault = &case.faults[0];
    let traffic = report.first(fault.way);
    // Where the first wrong number would be read.
    let twice = matches!(fault.harm, Harm::Repeat(_));
    let wrong = if twice { frame.end } else { frame.start };
    match &report.end {
        End::Refused(reason) if fault.way == Way::Forward => {
            let named = reason.starts_with("receiver: frame field `sequence`: ");
            assert!(named, "{fault:?}: {reason}");
            count[0] += 1;
        }
        End::Refused(reason) => {
            let named = reason.starts_with("sender: ") && reason.ends_with(": out of sequence");
            assert!(named, "{fault:?}: {reason}");
            count[1] += 1;
        }
        // It was complete before, or the silence in the place of the last frame was fixed.
        End::Committed => {
            assert!(traffic.read <= wrong, "{fault:?}");
            count[2] += 1;
        }
        End::NotStarted => {
            assert!(before_the_start(fault, &report) && !twice, "{fault:?}");
            count[3] += 1;
        }
        End::Cancelled => panic!("{fault:?}"),
    }
}

/// The harms to a whole frame.
const fn frame_harms(length: usize) -> [Harm; 3] {
    [Harm::Lose(length), Harm::Repeat(length), Harm::Overtake]
}

#[test]
fn every_frame_lost_repeated_or_overtaken() {
    // For each harm: refused by the receiver, by the sender, complete, not started.
    let mut counts = [[0; 4]; 3];
    let mut kinds = BTreeSet::new();
    for seed in 0..40 {
        let mut large = case(&mixed(), 12, &[1, 2, 3, 1, 2, 3]);
        large.seed = seed;
        let small = Case { seed, ..small() };
        for sound in [small, large] {
            for traffic in &committed(&sound).traffic {
                let arrived = |range: &Range<usize>| range.start < traffic.arrived;
                for (kind, range) in traffic.frames.iter().filter(|(_, r)| arrived(r)) {
                    kinds.insert(format!("{:?} {kind:?}", traffic.way));
                    for (harm, count) in frame_harms(range.len()).into_iter().zip(&mut counts) {
                        let fault = fault(traffic, range.start, harm);
                        judge_frame(&with_fault(&sound, fault), range, count);
                    }
                }
            }
        }
    }
    // Hello, segment, commit, receipt, beat; accept, ack, committed, beat.
    assert_eq!(kinds.len(), 5 + 4, "{kinds:?}");
    let [lost, twice, overtaken] = counts;
    for count in [lost, overtaken] {
        assert!(count.iter().all(|n| *n >= 160), "{counts:?}");
    }
    assert!(twice[0] > 500 && twice[1] > 500, "{counts:?}");
    assert!(twice[2] > 100 && twice[3] == 0, "{counts:?}");
}

/// Either end gives up, after everything that can happen before the end: the other one hears of it or
/// comes too late, and nothing is applied that was not sent.
#[test]
fn either_end_gives_up_at_any_time() {
    let (mut heard, mut unheard) = ([0, 0], 0);
    for seed in [3, 5, 6] {
        let sound = Case { seed, ..small() };
        let cut = Fault {
            generation: 0,
            way: Way::Forward,
            at: hello_length(&sound) + 300,
            harm: Harm::Cut,
        };
        for faults in [vec![], vec![cut]] {
            let case = Case {
                faults,
                ..sound.clone()
            };
            for at in 0..committed(&case).actions {
                for (i, end) in [Way::Forward, Way::Backward].into_iter().enumerate() {
                    let report = hand_over(&Case {
                        cancel: Some((end, at)),
                        ..case.clone()
                    });
                    check(&case, &report);
                    match report.end {
                        End::Refused(reason) => {
                            assert!(reason.ends_with(": cancelled"), "{reason}");
                            heard[i] += 1;
                        }
                        // A sender that has gone may leave a receiver without a word, for which that
                        // has a limit; a sender is never left so.
                        End::Cancelled if end == Way::Forward => unheard += 1,
                        // It had confirmed before.
                        End::Committed if end == Way::Backward => {}
                        other => panic!("{other:?} though {end:?} gave up after {at}"),
                    }
                }
            }
        }
    }
    assert!(heard[0] > 100 && heard[1] > 100, "{heard:?}");
    assert!(unheard < heard[0] / 4, "{unheard} of {heard:?}");
}

/// Only what comes before the first accept has been read keeps a handoff from starting.
#[test]
fn after_the_first_accept_every_break_is_mended() {
    let sound = small();
    let first = committed(&sound);
    let hand_over_cut = |way, at| {
        let faults = vec![Fault {
            generation: 0,
            way,
            at,
            harm: Harm::Cut,
        }];
        hand_over(&Case {
            faults,
            ..sound.clone()
        })
    };
    for way in [Way::Forward, Way::Backward] {
        let length = first.first(way).arrived;
        let ends: Vec<bool> = (0..length)
            .map(|at| hand_over_cut(way, at).end == End::Committed)
            .collect();
        let start = ends.iter().position(|c| *c).unwrap();
        assert!(ends[start..].iter().all(|c| *c), "{way:?}");
    }
}

/// A break at the boundary of every segment of blocks of several segments, and in the middle of each.
#[test]
fn a_cut_at_every_segment() {
    // Four layers of 768 KiB in a block of 48 tokens: two segments each.
    let large = contract(0, vec![full(16, 256, 256); 4]);
    let mut case = case(&large, 144, &[48, 48]);
    case.codecs = vec![Codec::Raw];
    let blocks = u64::try_from(case.blocks.len()).unwrap();
    let segment = case.blocks[0].bytes() / 2 + 64;
    let hello = hello_length(&case) as u64;
    for boundary in 0..2 * blocks {
        for inside in [0, 1, 63, 64, 65, segment / 2] {
            let at = usize::try_from(hello + boundary * segment + inside).unwrap();
            case.seed = boundary * 7 + inside;
            case.faults = vec![Fault {
                generation: 0,
                way: Way::Forward,
                at,
                harm: Harm::Cut,
            }];
            let report = hand_over(&case);
            check(&case, &report);
            // Before the end of the hello nothing has begun.
            if boundary + inside > 0 {
                assert_eq!(report.end, End::Committed, "{at}: {report:?}");
                assert_eq!(report.resumed.len(), 1, "{at}: {report:?}");
            }
        }
    }
}

/// What was applied before the break is not sent again, even if its acknowledgement was lost.
#[test]
fn nothing_that_was_applied_is_sent_again() {
    let mut twice = PerSection::<usize>::default();
    let mut spared = PerSection::<u32>::default();
    for seed in 0..200 {
        let mut case = case(&mixed(), 40, &[1; 40]);
        case.credit_bytes = u64::MAX;
        case.seed = seed;
        case.faults = vec![Fault {
            generation: 0,
            way: Way::Forward,
            at: hello_length(&case) + 15 * usize::try_from(seed).unwrap(),
            harm: Harm::Cut,
        }];
        let report = committed(&case);
        let starts = |generation, section| {
            let opened = report.opened.iter();
            let these = opened.filter(move |o| (o.0, o.1) == (generation, section));
            these.map(|o| o.2).collect::<Vec<u32>>()
        };
        let [missing] = report.resumed[..] else {
            panic!("resumed {} times", report.resumed.len());
        };
        // The second connection starts where the receiver is, and goes to the end.
        for section in Section::ALL {
            let missing = missing[section];
            assert_eq!(starts(1, section), (missing..40).collect::<Vec<_>>());
            let again = starts(0, section);
            twice[section] += again.iter().filter(|s| **s >= missing).count();
            spared[section] += missing - case.contract.section_start(section, 40);
        }
    }
    // Some blocks are under way when the connection breaks, so some are sent twice.
    assert!(twice.full > 0 && twice.window > 0, "{twice:?}");
    assert!(spared.full > 1000 && spared.window > 50, "{spared:?}");
}

fn hello_length(case: &Case) -> usize {
    let offer = super::driver::offer(&case.contract, case.kv_end);
    tandem_handoff::sender::Sender::new(offer).unwrap().1.len()
}

/// A second break, and a third, also while the handoff is being resumed.
#[test]
fn breaks_that_follow_each_other() {
    for seed in 0..400u64 {
        let mut case = case(&mixed(), 12, &[1, 2, 3, 1, 2, 3]);
        case.seed = seed;
        let hello = hello_length(&case);
        let at = |n: u64| usize::try_from(seed * n % 900).unwrap();
        case.faults = (0..4)
            .flat_map(|generation| {
                let is_first = generation == 0;
                let fault = |way, at| Fault {
                    generation,
                    way,
                    at,
                    harm: Harm::Cut,
                };
                [
                    fault(Way::Forward, if is_first { hello } else { 0 } + 64 + at(7)),
                    fault(Way::Backward, if is_first { 300 } else { 0 } + at(5)),
                ]
            })
            .collect();
        let report = hand_over(&case);
        check(&case, &report);
        assert_eq!(report.end, End::Committed, "seed {seed}");
    }
}

/// A connection of the past that still has frames when the handoff has gone on.
#[test]
fn stale_connections_are_refused_without_harm() {
    let mut stale = 0;
    for seed in 0..3600 {
        let mut case = case(&mixed(), 12, &[1; 12]);
        case.seed = seed;
        case.faults = vec![Fault {
            generation: 0,
            way: Way::Backward,
            at: 300 + usize::try_from(seed % 900).unwrap(),
            harm: Harm::Cut,
        }];
        stale += committed(&case).stale_frames;
    }
    assert!(stale > 30, "{stale} frames were stale");
}

/// Blocks of both sections that grow at the same time, in all codecs that lose nothing.
#[test]
fn blocks_grow_at_the_same_time() {
    let layers = vec![
        full(1, 8, 4),
        windowed(2, 3, 3),
        full(2, 2, 2),
        windowed(1, 1, 5),
        full(1, 4, 4),
        full(3, 1, 1),
    ];
    let contract = contract(6, layers);
    let mut mixed = 0;
    for seed in 0..40 {
        let order = Case {
            streamed: true,
            seed,
            ..case(&contract, 12, &[3, 4, 2])
        };
        let report = committed(&order);
        assert_eq!(report.opened.len(), 7);
        mixed += report.mixed;
    }
    assert!(mixed > 200, "{mixed} segments were mixed");
}

/// Lossy codecs: what is applied is what an encoder and a decoder make of the same rows by themselves.
#[test]
fn lossy_rows_are_those_that_were_encoded() {
    let layers = vec![
        full(1, 64, 32),
        full(2, 32, 32),
        windowed(1, 64, 64),
        full(3, 5, 7),
        full(1, 32, 64),
        full(1, 32, 32),
    ];
    let contract = contract(4, layers);
    for codec in Codec::ALL {
        for seed in 0..16 {
            let mut case = case(&contract, 9, &[4, 3, 2]);
            case.streamed = seed >= 8;
            case.codecs = vec![codec];
            case.seed = seed;
            case.blocks.iter_mut().for_each(make_finite);
            let report = hand_over(&case);
            assert_eq!(report.end, End::Committed);
            case.blocks
                .iter_mut()
                .for_each(|b| pass_through(&contract, codec, b));
            check(&case, &report);
        }
    }
}

/// Half floats of magnitudes below 4.
fn make_finite(block: &mut KvBlock) {
    for plane in &mut block.planes {
        plane
            .data
            .iter_mut()
            .skip(1)
            .step_by(2)
            .for_each(|b| *b &= 0xC3);
    }
}

fn pass_through(contract: &Contract, codec: Codec, block: &mut KvBlock) {
    let tokens = block.len();
    for plane in &mut block.planes {
        let run = RunSpec::of(contract, plane.layer, plane.kind, tokens).unwrap();
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new().unwrap();
        encoder
            .encode(codec, &run, &plane.data, &mut bytes)
            .unwrap();
        let mut decoder = Decoder::new().unwrap();
        decoder
            .decode(codec, &run, &bytes, &mut plane.data)
            .unwrap();
    }
}

/// Rows that a lossy codec has no code for arrive all the same, bit for bit.
#[test]
fn infinities_travel_raw() {
    let contract = contract(0, vec![full(1, 32, 32), full(1, 32, 32)]);
    let mut case = case(&contract, 6, &[3, 3]);
    case.codecs = vec![Codec::Q8];
    case.blocks.iter_mut().for_each(make_finite);
    for block in &mut case.blocks {
        block.planes[1].data[7] = 0x7C;
    }
    committed(&case);
}

/// What is said of a window that came in several codecs, also over two connections, is the lossiest.
#[test]
fn the_codec_of_a_window_is_that_of_its_lossiest_block() {
    let contract = contract(4, vec![full(1, 32, 32), windowed(1, 32, 32)]);
    let mut sent = blocks(&contract, 6, &[3, 3]);
    sent.iter_mut().for_each(make_finite);
    for (codecs, expected) in [
        ([Codec::Raw, Codec::Raw], Codec::Raw),
        ([Codec::Plane, Codec::Raw], Codec::Plane),
        ([Codec::Raw, Codec::Q8], Codec::Q8),
        ([Codec::Q8, Codec::Plane], Codec::Q8),
    ] {
        for breaks in [false, true] {
            let (mut sender, hello) = Sender::new(offer(&contract, 6)).unwrap();
            let hello = parse(Kind::Hello, split(&hello).1).unwrap();
            let expectation = expectation(&contract, 6);
            let (mut taker, accept) = Taker::accept(&hello, &expectation, 0, &terms()).unwrap();
            let (header, payload) = split(&accept);
            sender.receive(&header, payload).unwrap();
            let mut out = sender.outbound();
            let (mut windows, mut given) = (codecs.into_iter(), Vec::new());
            for block in &sent {
                let codec = match block.section {
                    Section::Full => Codec::Raw,
                    Section::Window => windows.next().unwrap(),
                };
                for frame in send(&mut sender, &mut out, block, codec).unwrap() {
                    taker.take(&frame).unwrap();
                }
                while let Some(arrived) = taker.receiver.next_block() {
                    let _ = taker.receiver.applied();
                    given.push((arrived.block.section, arrived.codec));
                }
                if breaks && block.tokens.end == 3 && block.section == Section::Window {
                    sender.reconnect().unwrap();
                    let accept = taker.receiver.resume(&terms()).unwrap();
                    let (header, payload) = split(&accept);
                    sender.receive(&header, payload).unwrap();
                    (out, taker.inbound) = (sender.outbound(), taker.receiver.inbound());
                }
            }
            let full = (Section::Full, Codec::Raw);
            assert_eq!(given, [full, full, (Section::Window, expected)]);
        }
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let kind = prop_oneof![Just(LayerKind::Full), Just(LayerKind::Window)];
    let spec = (kind, 1..=3u32, 1..=9u32, 1..=9u32)
        .prop_map(|(kind, heads, key, value)| layer(kind, heads, key, value));
    let contract =
        (proptest::collection::vec(spec, 1..6), 1u32..80).prop_map(|(layers, window)| {
            let has_window = layers.iter().any(|l| l.kind == LayerKind::Window);
            contract(if has_window { window } else { 0 }, layers)
        });
    let codec = prop_oneof![Just(Codec::Raw), Just(Codec::Plane)];
    (
        contract,
        0u32..200,
        proptest::collection::vec(1u32..90, 0..9),
        (1u64..5, 0u32..4),
        proptest::collection::vec(codec, 1..4),
        any::<u64>(),
    )
        .prop_map(
            |(contract, kv_end, chunks, (credit, pages), codecs, seed)| {
                let mut case = case(&contract, kv_end, &chunks);
                // Only layers that attend to everything are held by pages.
                if !contract.section_layers(Section::Full).is_empty() {
                    case.have = (pages * PAGE_TOKENS).min(kv_end / PAGE_TOKENS * PAGE_TOKENS);
                }
                case.credit_bytes = credit_of(&case.blocks, credit) / 2 + 1;
                case.codecs = codecs;
                case.seed = seed;
                case
            },
        )
}

fn any_fault() -> impl Strategy<Value = Fault> {
    let harm = prop_oneof![
        Just(Harm::Cut),
        Just(Harm::HalfClose),
        (1u8..=255).prop_map(Harm::Flip),
        Just(Harm::Exchange),
        Just(Harm::Delay),
    ];
    let way = prop_oneof![3 => Just(Way::Forward), 1 => Just(Way::Backward)];
    (0..3usize, way, 0..6000usize, harm).prop_map(|(generation, way, at, harm)| Fault {
        generation,
        way,
        at,
        harm,
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_handoff_over_any_link(
        case in any_case(),
        faults in proptest::collection::vec(any_fault(), 0..5),
    ) {
        let case = Case { faults, ..case };
        let report = hand_over(&case);
        check(&case, &report);
        prop_assert!(!matches!(report.end, End::Refused(_)), "{:?}", report.end);
        if case.faults.is_empty() {
            prop_assert_eq!(report.end, End::Committed);
        }
    }

    /// Blocks that grow at the same time, over any link; after a break whole ones.
    #[test]
    fn blocks_that_grow_over_any_link(
        case in any_case(),
        faults in proptest::collection::vec(any_fault(), 0..3),
    ) {
        let case = Case { faults, streamed: true, ..case };
        let report = hand_over(&case);
        check(&case, &report);
        prop_assert!(!matches!(report.end, End::Refused(_)), "{:?}", report.end);
        if case.faults.is_empty() {
            prop_assert_eq!(report.end, End::Committed);
        }
    }

    /// Bytes that are lost or come twice: a stream that is out of step is never applied. Damage is
    /// fixed over a new connection; whole frames that are lost or come twice break a rule.
    #[test]
    fn lost_and_repeated_bytes(
        case in any_case(),
        at in 0..6000usize,
        forward in any::<bool>(),
        count in 1..200usize,
        lose in any::<bool>(),
    ) {
        let fault = Fault {
            generation: 0,
            way: if forward { Way::Forward } else { Way::Backward },
            at,
            harm: if lose { Harm::Lose(count) } else { Harm::Repeat(count) },
        };
        let case = with_fault(&case, fault);
        let report = hand_over(&case);
        check(&case, &report);
        if let End::Refused(reason) = report.end {
            prop_assert!(reason.contains("sequence"), "{}", reason);
        }
    }

    #[test]
    fn any_frame_lost_repeated_or_overtaken(
        case in any_case(),
        direction in any::<Index>(),
        frame in any::<Index>(),
        harm in 0..3usize,
    ) {
        let first = committed(&case);
        let traffic = direction.get(&first.traffic);
        let mut frames = traffic.frames.clone();
        frames.retain(|(_, range)| range.start < traffic.arrived);
        if !frames.is_empty() {
            let (_, range) = frame.get(&frames);
            let harm = frame_harms(range.len())[harm];
            let fault = fault(traffic, range.start, harm);
            judge_frame(&with_fault(&case, fault), range, &mut [0; 4]);
        }
    }

    /// However many delays there are.
    #[test]
    fn any_delays(
        case in any_case(),
        faults in proptest::collection::vec(any_fault(), 1..5),
    ) {
        let delay = |fault| Fault { generation: 0, harm: Harm::Delay, ..fault };
        let faults = faults.into_iter().map(delay).collect();
        let report = committed(&Case { faults, ..case });
        prop_assert!(report.resumed.is_empty());
    }
}
