//! Bytes on their way in memory, and what may happen to them.

use std::collections::VecDeque;
use std::ops::Range;

use tandem_handoff::frame::{HEADER_BYTES, Header, Kind};

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Forward,
    Backward,
}

/// What the link does to the bytes of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// Both directions end; what is under way is lost.
    Cut,
    /// This direction ends.
    HalfClose,
    /// One byte is changed.
    Flip(u8),
    /// So many bytes are left out.
    Lose(usize),
    /// So many bytes come twice.
    Repeat(usize),
    /// The byte and the one behind it change places, if there is one under way.
    Exchange,
    /// The frame that starts here comes after the next one of this direction.
    Overtake,
    /// Nothing comes in this direction until nothing else can happen.
    Delay,
}

/// A fault of the link, when byte `at` of one direction of a connection arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// How often both ends have connected before.
    pub generation: usize,
    pub way: Way,
    pub at: usize,
    pub harm: Harm,
}

/// One direction of a connection.
#[derive(Default)]
pub struct Pipe {
    under_way: VecDeque<u8>,
    pub arrived: Vec<u8>,
    pub read: usize,
    /// No more bytes will arrive.
    pub ended: bool,
    faults: Vec<(usize, Harm)>,
    /// Every frame that was written, and where.
    pub frames: Vec<(Kind, Range<usize>)>,
    /// A frame that the next one is to overtake.
    late: Vec<u8>,
    pub delayed: bool,
}

impl Pipe {
    /// With harms to the bytes at these places.
    pub fn with(faults: Vec<(usize, Harm)>) -> Self {
        Self {
            faults,
            ..Self::default()
        }
    }

    pub fn write(&mut self, frame: &[u8]) {
        if self.ended {
            return;
        }
        let start = self.frames.last().map_or(0, |(_, range)| range.end);
        let kind = Kind::from_wire(frame[6]).unwrap();
        self.frames.push((kind, start..start + frame.len()));
        self.under_way.extend(frame);
        self.under_way.extend(self.late.drain(..));
    }

    pub fn can_deliver(&self) -> bool {
        !self.delayed && !self.under_way.is_empty()
    }

    /// Takes back the frame that comes next.
    fn take_frame(&mut self) -> Vec<u8> {
        let head: Vec<u8> = self.under_way.iter().take(HEADER_BYTES).copied().collect();
        let header = Header::parse(head.as_slice().try_into().unwrap()).unwrap();
        let length = HEADER_BYTES + header.payload_len as usize;
        self.under_way.drain(..length).collect()
    }

    /// These bytes come next.
    fn put_front(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().rev() {
            self.under_way.push_front(*byte);
        }
    }

    /// Lets at most `n` bytes arrive; true if the whole connection is cut by that.
    pub fn deliver(&mut self, n: usize) -> bool {
        for _ in 0..n {
            if self.under_way.is_empty() {
                return false;
            }
            let at = self.arrived.len();
            let harm = self.faults.iter().position(|(a, _)| *a == at);
            match harm.map(|i| self.faults.swap_remove(i).1) {
                Some(Harm::Cut) => return true,
                Some(Harm::HalfClose) => {
                    self.end();
                    return false;
                }
                Some(Harm::Flip(mask)) => {
                    if let Some(byte) = self.under_way.front_mut() {
                        *byte ^= mask;
                    }
                }
                Some(Harm::Lose(n)) => {
                    self.under_way.drain(..n.min(self.under_way.len()));
                }
                Some(Harm::Repeat(n)) => {
                    let again: Vec<u8> = self.under_way.iter().take(n).copied().collect();
                    self.put_front(&again);
                }
                Some(Harm::Exchange) => {
                    let last = self.under_way.len() - 1;
                    self.under_way.swap(0, last.min(1));
                }
                Some(Harm::Overtake) => {
                    self.late = self.take_frame();
                    if !self.under_way.is_empty() {
                        let next = self.take_frame();
                        let late = std::mem::take(&mut self.late);
                        self.put_front(&late);
                        self.put_front(&next);
                    }
                }
                Some(Harm::Delay) => {
                    self.delayed = true;
                    return false;
                }
                None => {}
            }
            match self.under_way.pop_front() {
                Some(byte) => self.arrived.push(byte),
                None => return false,
            }
        }
        false
    }

    pub fn end(&mut self) {
        self.under_way.clear();
        self.late.clear();
        self.delayed = false;
        self.ended = true;
    }

    pub fn unread(&self) -> &[u8] {
        &self.arrived[self.read..]
    }
}
