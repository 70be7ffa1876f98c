//! Codecs: names, sizes, which rows take which encoding, golden bytes, and what comes back.

use std::ops::RangeInclusive;

use proptest::prelude::*;
use tandem_handoff::PlaneKind::{Key, Value};
use tandem_handoff::codec::{Codec, CodecError, Decoder, Encoder, RunSpec};
use tandem_handoff::limits::MAX_HEAD_DIM;

use super::driver::{contract, full};

pub fn spec(heads: u32, dim: u32, tokens: u32) -> RunSpec {
    RunSpec { heads, dim, tokens }
}

pub fn encode(codec: Codec, run: &RunSpec, raw: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::new();
    Encoder::new().unwrap().encode(codec, run, raw, &mut out)?;
    assert!(
        codec.encoded_bytes(run).contains(&(out.len() as u64)),
        "{codec} of {run:?}: {} bytes",
        out.len()
    );
    Ok(out)
}

pub fn decode(codec: Codec, run: &RunSpec, bytes: &[u8]) -> Result<(Vec<u8>, usize), CodecError> {
    let mut out = vec![0xA5; usize::try_from(run.raw_bytes()).unwrap()];
    let taken = Decoder::new()
        .unwrap()
        .decode(codec, run, bytes, &mut out)?;
    Ok((out, taken))
}

pub fn bytes_of(bits: &[u16]) -> Vec<u8> {
    bits.iter().flat_map(|b| b.to_le_bytes()).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn names_and_wire_numbers() {
    let expected = [(0, "raw", true), (1, "plane", true), (2, "q8", false)];
    for (codec, (wire, name, lossless)) in Codec::ALL.into_iter().zip(expected) {
        assert_eq!(
            (codec.wire(), codec.name(), codec.is_lossless()),
            (wire, name, lossless)
        );
        assert_eq!(Codec::from_wire(wire), Some(codec));
        assert_eq!(name.parse(), Ok(codec));
        assert_eq!(codec.to_string(), name);
    }
    for n in 3..=u8::MAX {
        assert_eq!(Codec::from_wire(n), None);
    }
    for name in ["", "RAW", "q4", "raw "] {
        assert_eq!(name.parse::<Codec>().unwrap_err().name, name);
    }
    let long = "x".repeat(1000).parse::<Codec>().unwrap_err();
    assert_eq!(long.name.len(), 40);
}

fn size(codec: Codec, run: &RunSpec) -> u64 {
    let sizes = codec.encoded_bytes(run);
    assert_eq!(sizes.start(), sizes.end());
    *sizes.start()
}

#[test]
fn rows_that_are_no_whole_blocks_stay_as_they_are() {
    // heads, dim, and how many bits `q8` takes.
    for (heads, dim, q8) in [
        (1, 32, 8),
        (2, 16, 8),
        (32, 1, 8),
        (1, MAX_HEAD_DIM, 8),
        (1, 96, 8),
        (2, 80, 8),
        (1, 2 * MAX_HEAD_DIM, 8),
        (1, 16, 16),
        (1, 80, 16),
        (3, 8, 16),
        (1, 33, 16),
    ] {
        let run = spec(heads, dim, 5);
        let elements = u64::from(5 * heads * dim);
        let bytes = |bits: u64| match bits {
            16 => elements * 2,
            _ => elements / 32 * 34,
        };
        assert_eq!(size(Codec::Q8, &run), bytes(q8), "{heads} x {dim}");
        let raw = vec![0x3C; usize::try_from(run.raw_bytes()).unwrap()];
        for codec in Codec::ALL {
            let bytes = encode(codec, &run, &raw).unwrap();
            let (back, taken) = decode(codec, &run, &bytes).unwrap();
            assert_eq!(taken, bytes.len());
            if codec.is_lossless() || size(codec, &run) == run.raw_bytes() {
                assert_eq!(back, raw);
            }
        }
    }
}

#[test]
fn runs_of_a_contract() {
    let contract = contract(0, vec![full(2, 64, 32), full(3, 16, 8)]);
    let key = RunSpec::of(&contract, 1, Key, 7).unwrap();
    let expected = RunSpec {
        heads: 3,
        dim: 16,
        tokens: 7,
    };
    assert_eq!(key, expected);
    assert_eq!(key.raw_bytes(), 3 * 16 * 7 * 2);
    assert_eq!(RunSpec::of(&contract, 0, Value, 7).unwrap().dim, 32);
    assert_eq!(RunSpec::of(&contract, 2, Key, 7), None);
}

#[test]
fn sizes_of_impossible_runs_do_not_overflow() {
    let run = RunSpec {
        heads: u32::MAX,
        dim: u32::MAX,
        tokens: u32::MAX,
    };
    assert_eq!(run.raw_bytes(), u64::MAX);
    for codec in Codec::ALL {
        assert!(!codec.encoded_bytes(&run).is_empty(), "{codec}");
        let error = encode(codec, &run, &[0; 64]).unwrap_err();
        assert!(matches!(error, CodecError::RawLength { found: 64, .. }));
        let error = Decoder::new().unwrap().decode(codec, &run, &[], &mut []);
        assert!(matches!(error, Err(CodecError::RawLength { found: 0, .. })));
    }
}

#[test]
fn runs_follow_each_other_in_one_payload() {
    let runs = [
        (Codec::Q8, spec(1, 32, 2)),
        (Codec::Plane, spec(1, 500, 1)),
        (Codec::Raw, spec(1, 3, 1)),
        (Codec::Plane, spec(1, 1, 1)),
        (Codec::Plane, spec(1, 64, 0)),
        (Codec::Q8, spec(1, 32, 1)),
    ];
    let mut encoder = Encoder::new().unwrap();
    let mut payload = b"before".to_vec();
    let rows = |run: &RunSpec| vec![0; usize::try_from(run.raw_bytes()).unwrap()];
    for (codec, run) in &runs {
        encoder
            .encode(*codec, run, &rows(run), &mut payload)
            .unwrap();
    }
    let mut decoder = Decoder::new().unwrap();
    let mut at = "before".len();
    for (codec, run) in &runs {
        let mut out = vec![1; rows(run).len()];
        at += decoder
            .decode(*codec, run, &payload[at..], &mut out)
            .unwrap();
        let zero = |h: &[u8]| u16::from_le_bytes([h[0], h[1]]) & 0x7FFF == 0;
        assert!(out.chunks(2).all(zero), "{codec} {run:?}");
    }
    assert_eq!(at, payload.len());
}

/// 64 half floats between -6.2 and 6.2, in hex.
const ROWS: &str = "45c12841e7bcf943dc313dc35e3e6cc000426cba6944d83865c2074028bfd84216b62fc41d3c8dc1e04077bdb143692985c3ce3db4c0b8418dbb45447037adc27e3fb8bf90422bb8b144193bd5c1974007be69434faecec33d3dfcc0704157bc20442f35f5c2ee3e24c048424cb98d44f9391dc24f4097be2043a9b30bc4ad3c";
/// [`ROWS`] as two blocks of 8 bits.
const ROWS_Q8: &str = "7228b44add7305982ec056e97f11a43acc63f5881eb046d96f01942abc52e57b0da0ba2833cc59f27f18b13ed764fd9623bd4ae37009a22fc855ee7b14ad3ad360fa9320";
/// 96 elements with two different high bytes, compressed by the `zstd` program.
const PLANE: &str = "0112000000079e35cc63fa9128bf56ed841bb249e0770ea53cd36a01982fc65df48b22b950e77e15ac43da71089f36cd64fb9229c057ee851cb34ae1780fa63dd46b029930c75ef58c23ba51e87f16ad44db7209a037ce65fc932ac158ef861db44be2791028b52ffd00684d000018bc3c3c0100eae486";

/// The constants were computed with a separate implementation of the page `docs/codecs.md` in another
/// language; a change of them is a change of the wire format.
#[test]
fn golden_bytes() {
    let raw = unhex(ROWS);
    let run = spec(1, 64, 1);
    for (codec, expected) in [
        (Codec::Raw, ROWS.to_owned()),
        // 64 elements whose high bytes hardly repeat are stored.
        (Codec::Plane, format!("0000000000{ROWS}")),
        (Codec::Q8, ROWS_Q8.to_owned()),
    ] {
        let bytes = encode(codec, &run, &raw).unwrap();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, expected, "{codec}");
    }
}

/// How well zstd compresses may change with its version; what the bytes mean may not.
#[test]
fn golden_bytes_of_compressed_rows() {
    let rows: Vec<u16> = (0..96)
        .map(|i| (if i % 3 == 0 { 0xBC00 } else { 0x3C00 }) | ((i * 151 + 7) & 0xFF))
        .collect();
    let run = spec(1, 96, 1);
    let bytes = unhex(PLANE);
    let (back, taken) = decode(Codec::Plane, &run, &bytes).unwrap();
    assert_eq!((back, taken), (bytes_of(&rows), bytes.len()));
    let encoded = encode(Codec::Plane, &run, &bytes_of(&rows)).unwrap();
    assert_eq!((encoded[0], &encoded[5..101]), (1, &bytes[5..101]));
}

/// Rows whose high bytes are skewed as those of trained KV are, so that both modes occur.
fn skewed() -> impl Strategy<Value = Vec<u8>> {
    (1usize..3000, 0u8..8, any::<u64>()).prop_map(|(elements, spread, seed)| {
        let mut state = seed | 1;
        let element = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let [low, high, sign, ..] = state.to_le_bytes();
            let mask = (1u16 << spread) - 1;
            let high = (0x38 + (u16::from(high) & mask)) | u16::from(sign & 0x80);
            [low, high.to_le_bytes()[0]]
        };
        std::iter::repeat_with(element)
            .take(elements)
            .flatten()
            .collect()
    })
}

proptest! {
    #[test]
    fn lossless_codecs_give_back_every_bit(raw in prop_oneof![
        proptest::collection::vec(any::<[u8; 2]>(), 0..400).prop_map(|v| v.concat()),
        skewed(),
    ]) {
        let elements = u32::try_from(raw.len() / 2).unwrap();
        let run = spec(1, elements, 1);
        for codec in [Codec::Raw, Codec::Plane] {
            let mut bytes = encode(codec, &run, &raw).unwrap();
            let len = bytes.len();
            bytes.extend([0xEE; 3]);
            prop_assert_eq!(decode(codec, &run, &bytes).unwrap(), (raw.clone(), len));
        }
    }
}

fn ratio_of_skewed(spread: u32) -> (u8, f64) {
    let elements = 40_000u32;
    let mut state = 0x9E37_79B9u32;
    let rows: Vec<u16> = (0..elements)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = u16::try_from(state >> 16).unwrap();
            0x3800 ^ (noise & (u16::MAX >> (8 - spread)))
        })
        .collect();
    let raw = bytes_of(&rows);
    let run = spec(1, elements, 1);
    let bytes = encode(Codec::Plane, &run, &raw).unwrap();
    assert_eq!(decode(Codec::Plane, &run, &bytes).unwrap().0, raw);
    (
        bytes[0],
        f64::from(u32::try_from(raw.len()).unwrap())
            / f64::from(u32::try_from(bytes.len()).unwrap()),
    )
}

/// High bytes that carry `spread` of 8 bits can shrink to `spread / 8`, and below a gain of 5 % are
/// left alone.
#[test]
fn high_bytes_are_compressed_where_it_pays() {
    for spread in [1, 3, 5, 7] {
        let (mode, ratio) = ratio_of_skewed(spread);
        let best = 16.0 / f64::from(8 + spread);
        let allowed: RangeInclusive<f64> = best * 0.93..=best;
        assert_eq!(mode, 1, "{spread}");
        assert!(allowed.contains(&ratio), "{spread}: {ratio}, best {best}");
    }
    let (mode, ratio) = ratio_of_skewed(8);
    assert_eq!(mode, 0);
    assert!(ratio > 0.999);
}

/// `docs/codecs.md` names every codec with its number, and states the bounds of the code.
#[test]
fn the_page_about_codecs_says_what_the_code_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/codecs.md");
    let page = std::fs::read_to_string(path).unwrap();
    for codec in Codec::ALL {
        let row = format!("| {} | `{codec}` |", codec.wire());
        assert!(page.contains(&row), "{row}");
    }
    let exp2 = |e: i32| f64::from(e).exp2();
    let stated = "A * (1/254 + 2^-10 + 2^-20) + 2^-18";
    assert!(page.contains(stated));
    let bound = 3.0 * (1.0 / 254.0 + exp2(-10) + exp2(-20)) + exp2(-18);
    assert!((tandem_handoff::codec::q8_error_bound(3.0) - bound).abs() < 1e-12);
}
