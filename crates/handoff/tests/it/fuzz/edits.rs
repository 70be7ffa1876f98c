//! Edits of recorded handoffs. Most are made good again afterwards, with lengths, checksums and
//! numbers as they should be, or nothing would get past the checksum.

use bolero::TypeGenerator;
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind};

/// Values at which things turn.
const TURNS: [u64; 24] = [
    0,
    1,
    2,
    3,
    4,
    5,
    31,
    32,
    63,
    64,
    65,
    255,
    256,
    4096,
    16384,
    16385,
    65535,
    (1 << 22) + 1,
    (1 << 26) + 1,
    (1 << 30) + 1,
    i32::MAX as u64,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX,
];

/// Where the fields of a header lie, and how long they are.
const FIELDS: [(usize, usize); 17] = [
    (6, 1),
    (7, 1),
    (8, 8),
    (16, 4),
    (20, 4),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 4),
    (40, 4),
    (44, 2),
    (46, 2),
    (48, 8),
    (56, 1),
    (57, 1),
    (58, 1),
    (59, 1),
];

/// One edit of a list of frames. Indices count modulo what there is.
#[derive(Debug, Clone, TypeGenerator)]
pub enum Edit {
    Flip {
        frame: u8,
        at: u16,
        mask: u8,
    },
    Insert {
        frame: u8,
        at: u16,
        byte: u8,
    },
    Remove {
        frame: u8,
        at: u16,
        count: u8,
    },
    Copy {
        frame: u8,
        from: u16,
        to: u16,
        count: u8,
    },
    /// A field of a header gets a value at which things turn.
    Turn {
        frame: u8,
        field: u8,
        value: u8,
    },
    /// A field of a header moves a little.
    Nudge {
        frame: u8,
        field: u8,
        by: i8,
    },
    /// A number inside JSON gets another value, or becomes no number.
    Number {
        frame: u8,
        which: u8,
        value: u8,
    },
    DropFrame {
        frame: u8,
    },
    SwapFrames {
        a: u8,
        b: u8,
    },
    RepeatFrame {
        frame: u8,
        before: u8,
    },
    /// The payload of one frame in another.
    Transplant {
        from: u8,
        to: u8,
    },
}

/// What is put right after the edits.
#[derive(Debug, Clone, Copy, TypeGenerator)]
pub struct Repair {
    pub checksums: bool,
    pub lengths: bool,
    pub sequence: bool,
    /// Of all cases: one in four stays as it is.
    dice: u8,
}

impl Repair {
    /// True if the frames stay as the edits left them.
    pub const fn none(self) -> bool {
        self.dice < 64
    }

    const fn all(self) -> bool {
        self.dice >= 160
    }
}

fn index(n: usize, count: usize) -> Option<usize> {
    n.checked_rem(count)
}

/// Applies one edit.
pub fn edit(frames: &mut Vec<Vec<u8>>, edit: &Edit) {
    let count = frames.len();
    let at = |frame: u8| index(frame.into(), count);
    match *edit {
        Edit::DropFrame { frame } => {
            if let Some(i) = at(frame) {
                frames.remove(i);
            }
        }
        Edit::SwapFrames { a, b } => {
            if let (Some(a), Some(b)) = (at(a), at(b)) {
                frames.swap(a, b);
            }
        }
        Edit::RepeatFrame { frame, before } => {
            if let (Some(i), Some(to)) = (at(frame), at(before)) {
                frames.insert(to, frames[i].clone());
            }
        }
        Edit::Transplant { from, to } => {
            if let (Some(from), Some(to)) = (at(from), at(to)) {
                let payload = frames[from]
                    .get(HEADER_BYTES..)
                    .unwrap_or_default()
                    .to_vec();
                frames[to].truncate(HEADER_BYTES);
                frames[to].extend(payload);
            }
        }
        Edit::Flip { frame, .. }
        | Edit::Insert { frame, .. }
        | Edit::Remove { frame, .. }
        | Edit::Copy { frame, .. }
        | Edit::Turn { frame, .. }
        | Edit::Nudge { frame, .. }
        | Edit::Number { frame, .. } => {
            if let Some(i) = at(frame) {
                edit_bytes(&mut frames[i], edit);
            }
        }
    }
}

/// Applies an edit to the bytes of one frame, or to bytes that are no frame.
pub fn edit_bytes(bytes: &mut Vec<u8>, edit: &Edit) {
    let length = bytes.len();
    let place = |at: u16| index(at.into(), length);
    match *edit {
        Edit::Flip { at, mask, .. } => {
            if let Some(i) = place(at) {
                bytes[i] ^= mask;
            }
        }
        Edit::Insert { at, byte, .. } => bytes.insert(place(at).unwrap_or(0), byte),
        Edit::Remove { at, count, .. } => {
            if let Some(i) = place(at) {
                bytes.drain(i..length.min(i + usize::from(count)));
            }
        }
        Edit::Copy {
            from, to, count, ..
        } => {
            if let (Some(from), Some(to)) = (place(from), place(to)) {
                let end = length.min(from + usize::from(count));
                let part = bytes[from..end].to_vec();
                bytes.splice(to..to, part);
            }
        }
        Edit::Turn { field, value, .. } => {
            let turn = TURNS[usize::from(value) % TURNS.len()];
            set_field(bytes, field, |_| turn);
        }
        Edit::Nudge { field, by, .. } => {
            set_field(bytes, field, |v| v.wrapping_add_signed(by.into()));
        }
        Edit::Number { which, value, .. } => set_number(bytes, which, value),
        _ => {}
    }
}

fn set_field(bytes: &mut [u8], field: u8, change: impl FnOnce(u64) -> u64) {
    let (at, size) = FIELDS[usize::from(field) % FIELDS.len()];
    if let Some(field) = bytes.get_mut(at..at + size) {
        let mut value = [0; 8];
        value[..size].copy_from_slice(field);
        let value = change(u64::from_le_bytes(value));
        field.copy_from_slice(&value.to_le_bytes()[..size]);
    }
}

/// Replaces a run of digits outside of the header.
fn set_number(bytes: &mut Vec<u8>, which: u8, value: u8) {
    let start = HEADER_BYTES.min(bytes.len());
    let is_digit = |i: &usize| bytes[*i].is_ascii_digit();
    let starts: Vec<usize> = (start..bytes.len())
        .filter(|i| is_digit(i) && (*i == start || !is_digit(&(i - 1))))
        .collect();
    let Some(i) = index(which.into(), starts.len()) else {
        return;
    };
    let from = starts[i];
    let to = (from..bytes.len())
        .find(|i| !is_digit(i))
        .unwrap_or(bytes.len());
    let odd = [
        "-1", "1e3", "0.5", "null", "\"1\"", "1e999", "[1]", "{}", "true",
    ];
    let value = usize::from(value);
    let text = match odd.get(value.wrapping_sub(TURNS.len())) {
        Some(odd) => (*odd).to_owned(),
        None => TURNS[value % TURNS.len()].to_string(),
    };
    bytes.splice(from..to, text.into_bytes());
}

/// Puts right what `repair` says, frame by frame.
pub fn put_right(frames: &mut [Vec<u8>], repair: Repair) {
    if repair.none() {
        return;
    }
    for (number, frame) in (0u32..).zip(frames) {
        let Some((head, payload)) = frame.split_first_chunk_mut::<HEADER_BYTES>() else {
            continue;
        };
        let all = repair.all();
        if all || repair.lengths {
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            head[20..24].copy_from_slice(&length.to_le_bytes());
        }
        if all || repair.sequence {
            head[16..20].copy_from_slice(&number.to_le_bytes());
        }
        if all || repair.checksums {
            let sum = xxhash_rust::xxh3::xxh3_64(payload);
            head[48..56].copy_from_slice(&sum.to_le_bytes());
        }
        seal(head);
    }
}

/// Computes the checksum of a header.
pub fn seal(head: &mut [u8; HEADER_BYTES]) {
    let sum = xxhash_rust::xxh3::xxh3_64(&head[..60]);
    head[60..].copy_from_slice(&sum.to_le_bytes()[..4]);
}

/// A control frame around a payload, as it should be.
pub fn control(kind: Kind, handoff: u64, sequence: u32, payload: &[u8]) -> (Header, Vec<u8>) {
    let header = Header::control(kind, handoff, sequence).with_parts([payload]);
    (header, payload.to_vec())
}
