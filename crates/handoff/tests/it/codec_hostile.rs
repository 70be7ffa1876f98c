//! Decoders that are given anything: an error or rows, never a panic, never a read beyond the bytes.

use proptest::prelude::*;
use tandem_handoff::codec::{Codec, CodecError, Decoder, RunSpec};

use super::codec::{decode, encode, spec};

/// Bytes of an 8-bit block.
const BLOCK: usize = 34;

/// A run of every encoding, with rows that suit it.
fn samples() -> Vec<(Codec, RunSpec, Vec<u8>)> {
    let shapes = [
        (Codec::Raw, spec(1, 8, 2)),
        (Codec::Plane, spec(1, 8, 2)),
        (Codec::Plane, spec(2, 64, 2)),
        (Codec::Q8, spec(1, 64, 2)),
    ];
    let samples = shapes.map(|(codec, run)| {
        let rows = u16::try_from(run.raw_bytes() / 2).unwrap();
        let raw: Vec<u8> = (0..rows)
            .flat_map(|i| (0x3800 | i.wrapping_mul(7919) & 0x81FF).to_le_bytes())
            .collect();
        let bytes = encode(codec, &run, &raw).unwrap();
        (codec, run, bytes)
    });
    samples.into()
}

#[test]
fn samples_have_both_modes_of_plane() {
    let modes: Vec<u8> = samples()
        .into_iter()
        .filter(|(codec, ..)| *codec == Codec::Plane)
        .map(|(_, _, bytes)| bytes[0])
        .collect();
    assert_eq!(modes, [0, 1]);
}

/// zstd itself would take several frames for one, and those that hold nothing.
#[test]
fn high_bytes_are_one_frame() {
    let run = spec(2, 64, 2);
    let raw = vec![0x38; usize::try_from(run.raw_bytes()).unwrap()];
    let bytes = encode(Codec::Plane, &run, &raw).unwrap();
    assert_eq!(bytes[0], 1);
    let elements = raw.len() / 2;
    let with = |high: &[u8]| {
        let len = u32::try_from(high.len()).unwrap().to_le_bytes();
        [&bytes[..1], &len, &bytes[5..5 + elements], high].concat()
    };
    let frame = |elements| zstd::bulk::compress(&vec![0x38; elements], 1).unwrap();
    assert_eq!(
        decode(Codec::Plane, &run, &with(&frame(elements)))
            .unwrap()
            .0,
        raw
    );
    let halves = [frame(elements / 2), frame(elements / 2)].concat();
    let skippable = [
        &0x184D_2A50_u32.to_le_bytes()[..],
        &[3, 0, 0, 0, 1, 2, 3],
        &frame(elements),
    ]
    .concat();
    for high in [halves, skippable] {
        let refused = decode(Codec::Plane, &run, &with(&high)).unwrap_err();
        assert!(
            matches!(
                refused,
                CodecError::Field {
                    field: "zstd: frame",
                    ..
                }
            ),
            "{refused}"
        );
    }
}

#[test]
fn every_truncation_is_refused() {
    for (codec, run, bytes) in samples() {
        for len in 0..bytes.len() {
            let error = decode(codec, &run, &bytes[..len]).unwrap_err();
            assert!(
                matches!(error, CodecError::Truncated { found, needed, .. } if found < needed),
                "{codec} cut at {len}: {error}"
            );
        }
    }
}

/// Every byte of every sample, with each of its bits flipped: refused, or rows of the right size that
/// took no more than there is, and finite ones where the codec says so.
#[test]
fn every_flipped_bit_is_refused_or_decodes() {
    let mut decoder = Decoder::new().unwrap();
    for (codec, run, bytes) in samples() {
        let mut out = vec![0; usize::try_from(run.raw_bytes()).unwrap()];
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                match decoder.decode(codec, &run, &damaged, &mut out) {
                    Ok(taken) => check_rows(codec, taken, damaged.len(), &out),
                    Err(e) => assert_ne!(e.to_string(), ""),
                }
            }
        }
        // And it still works.
        assert_eq!(
            decoder.decode(codec, &run, &bytes, &mut out),
            Ok(bytes.len())
        );
    }
}

fn check_rows(codec: Codec, taken: usize, given: usize, rows: &[u8]) {
    assert!(taken <= given, "{codec} took {taken} of {given}");
    let finite = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]) & 0x7C00 != 0x7C00;
    assert!(codec.is_lossless() || rows.chunks(2).all(finite), "{codec}");
}

#[test]
fn scales_that_are_no_numbers_are_refused_by_name() {
    let run = spec(1, 64, 1);
    let refused = |scale: u16, at: usize| {
        let mut bytes = vec![0x11; 2 * BLOCK];
        bytes[at * BLOCK..][..2].copy_from_slice(&scale.to_le_bytes());
        decode(Codec::Q8, &run, &bytes).err()
    };
    for at in [0, 1] {
        for scale in [0x7C00, 0xFC00, 0x7C01, 0x7FFF, 0xFFFF, 0xBC00] {
            let error = refused(scale, at).unwrap();
            let is_named =
                matches!(&error, CodecError::Field { field, .. } if *field == "q8 scale");
            assert!(is_named, "{error}");
        }
        assert_eq!(refused(0x7BFF, at), None);
    }
}

/// The largest scale a peer can send still gives finite rows.
#[test]
fn huge_scales_are_held_to_the_finite_range() {
    let run = spec(1, 1024, 1);
    for fill in [0x7F, 0x80, 0xFF, 0x00] {
        let mut bytes = vec![fill; 32 * BLOCK];
        for block in bytes.chunks_mut(BLOCK) {
            block[..2].copy_from_slice(&0x7BFFu16.to_le_bytes());
        }
        let (rows, taken) = decode(Codec::Q8, &run, &bytes).unwrap();
        check_rows(Codec::Q8, taken, bytes.len(), &rows);
    }
}

/// Prefix and low bytes of a compressed run of 100 elements, with this length and these high bytes.
fn plane(mode: u8, len: u32, high: &[u8]) -> Vec<u8> {
    let mut bytes = vec![mode];
    bytes.extend(len.to_le_bytes());
    bytes.extend([0; 100]);
    bytes.extend(high);
    bytes
}

#[test]
fn every_field_of_a_plane_run() {
    let run = spec(1, 100, 1);
    let zeros = encode(Codec::Plane, &run, &[0; 200]).unwrap();
    let len = u32::try_from(zeros.len() - 105).unwrap();
    let high = &zeros[105..];
    assert_eq!(zeros, plane(1, len, high));
    // A frame of the same rows, but one element less and one more.
    let other = |elements: u32| {
        let run = spec(1, elements, 1);
        let raw = vec![0; usize::try_from(run.raw_bytes()).unwrap()];
        let bytes = encode(Codec::Plane, &run, &raw).unwrap();
        bytes[5 + usize::try_from(elements).unwrap()..].to_vec()
    };
    let (short, long) = (other(99), other(101));
    let padded = [high, &[0; 200]].concat();
    let short_len = u32::try_from(short.len()).unwrap();
    let long_len = u32::try_from(long.len()).unwrap();
    for (bytes, message) in [
        (plane(2, len, high), "`plane mode` is 2"),
        (plane(255, len, high), "`plane mode` is 255"),
        (plane(0, 1, &padded), "`plane length` is 1"),
        (plane(1, 0, high), "`plane length` is 0"),
        (
            plane(1, 91, &padded),
            "`plane length` is 91, allowed 1..=90",
        ),
        (plane(1, u32::MAX, &padded), "`plane length`"),
        (plane(1, len + 1, high), "`high bytes` needs"),
        (plane(1, len - 1, high), "zstd: "),
        (plane(1, 90, &padded), "zstd: "),
        (
            plane(1, short_len, &short),
            "`high bytes` is 99, allowed 100",
        ),
        (plane(1, long_len, &long), "zstd: "),
        (plane(1, 20, &[0xFF; 20]), "zstd: "),
    ] {
        let error = decode(Codec::Plane, &run, &bytes).unwrap_err().to_string();
        assert!(error.contains(message), "`{error}` should have {message}");
    }
}

/// A frame that says it holds a gigabyte writes no further than the rows, and asks for no memory.
#[test]
fn a_frame_of_another_size_does_not_grow_the_decoder() {
    // Magic; single segment with a content size of 4 bytes; 1 GiB; one run-length block, the last.
    let mut bomb = vec![0x28, 0xB5, 0x2F, 0xFD, 0xA0];
    bomb.extend((1u32 << 30).to_le_bytes());
    let block = (1u32 << 17) << 3 | 1 << 1 | 1;
    bomb.extend(&block.to_le_bytes()[..3]);
    bomb.push(0);
    let len = u32::try_from(bomb.len()).unwrap();
    let run = spec(1, 100, 1);
    let error = decode(Codec::Plane, &run, &plane(1, len, &bomb)).unwrap_err();
    assert!(matches!(error, CodecError::Zstd { .. }), "{error}");
}

proptest! {
    #[test]
    fn anything_is_refused_or_decodes(
        bytes in proptest::collection::vec(any::<u8>(), 0..700),
        which in 0..4usize,
        mode in proptest::option::of(0u8..3),
        len in proptest::option::of(0u32..200),
    ) {
        let (codec, run, _) = samples().swap_remove(which);
        let mut bytes = bytes;
        if let (Some(mode), Some(first)) = (mode, bytes.first_mut()) {
            *first = mode;
        }
        if let (Some(len), Some(field)) = (len, bytes.get_mut(1..5)) {
            field.copy_from_slice(&len.to_le_bytes());
        }
        if let Ok((rows, taken)) = decode(codec, &run, &bytes) {
            check_rows(codec, taken, bytes.len(), &rows);
        }
    }

    /// Several bytes of a good run replaced: gets past the prefix and into zstd.
    #[test]
    fn mutated_runs_are_refused_or_decode(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        which in 0..4usize,
    ) {
        let (codec, run, mut bytes) = samples().swap_remove(which);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok((rows, taken)) = decode(codec, &run, &bytes) {
            check_rows(codec, taken, bytes.len(), &rows);
        }
    }
}
