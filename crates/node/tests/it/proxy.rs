//! What lies between two nodes: a relay that can cut, hold, damage, repeat and reorder.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tandem_handoff::Section;
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::cluster::{PATIENCE, bind};

/// What happens to one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Both directions close after this many bytes to the receiver.
    Cut(u64),
    /// Both directions close after this many bytes to the sender.
    CutReply(u64),
    /// One bit of this byte to the receiver changes.
    Flip(u64),
    /// One bit of this byte to the sender changes.
    FlipReply(u64),
    /// After this many bytes nothing passes to the receiver any more, and nothing closes.
    Hold(u64),
    /// From the first frame of this kind on nothing passes to the receiver any more, and nothing closes.
    HoldBefore(Kind),
    /// After this many bytes to the receiver nothing passes either way, and nothing closes.
    Vanish(u64),
    /// This many bytes pass to the receiver each second.
    Pace(u64),
    /// After this many bytes one byte passes to the receiver now and then.
    Drip(u64),
    /// This frame to the receiver comes twice.
    Repeat(usize),
    /// This frame to the receiver comes after the next one.
    Swap(usize),
    /// After this many bytes nothing passes to the sender any more, and nothing closes.
    HoldReply(u64),
    /// This frame to the sender comes twice.
    RepeatReply(usize),
    /// This frame to the sender comes after the next one.
    SwapReply(usize),
}

/// Time for each byte of [`Fault::Drip`].
const DRIP: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Shared {
    faults: Mutex<VecDeque<Fault>>,
    /// What the sender and the receiver wrote, for each connection.
    seen: Mutex<Vec<[Vec<u8>; 2]>>,
    forwarded: AtomicU64,
    connections: AtomicUsize,
    is_down: AtomicBool,
    refused: AtomicUsize,
    /// Connections that were held since the last [`Proxy::next`].
    held: watch::Sender<usize>,
    /// How often all connections were cut, and held ones let go.
    cut: watch::Sender<usize>,
    released: watch::Sender<usize>,
    /// How often nothing passed any more over all connections.
    hushed: watch::Sender<usize>,
}

impl Shared {
    /// Bytes of one way of a connection have come.
    fn saw(&self, index: usize, way: usize, bytes: &[u8]) {
        if let Some(seen) = self.seen.lock().unwrap().get_mut(index) {
            seen[way].extend_from_slice(bytes);
        }
    }

    /// Where the first frame of this kind began.
    fn start(&self, index: usize, way: usize, kind: Kind) -> Option<u64> {
        let seen = self.seen.lock().unwrap();
        let mut frames = frames(&seen.get(index)?[way]).into_iter();
        Some(frames.find(|(k, _)| *k == kind)?.1.start)
    }
}

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Proxy {
    /// A relay to a port of this machine.
    pub async fn to(port: u16) -> Self {
        let listener = bind().await;
        let own = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let state = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                if state.is_down.load(Ordering::Relaxed) {
                    state.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let fault = state.faults.lock().unwrap().pop_front();
                let fault = fault.unwrap_or(Fault::None);
                let index = state.connections.fetch_add(1, Ordering::Relaxed);
                state.seen.lock().unwrap().push(Default::default());
                let state = Arc::clone(&state);
                tokio::spawn(async move {
                    let (mut cut, mut hushed) = (state.cut.subscribe(), state.hushed.subscribe());
                    if let Ok(to) = TcpStream::connect(("127.0.0.1", port)).await {
                        let relaying = relay(from, to, fault, index, &state);
                        tokio::pin!(relaying);
                        tokio::select! {
                            () = &mut relaying => {}
                            _ = cut.changed() => {}
                            _ = hushed.changed() => { let _ = cut.changed().await; }
                        }
                    }
                });
            }
        });
        Self {
            port: own,
            shared,
            accepting: accepting.abort_handle(),
        }
    }

    /// What happens to the next connections, in this order.
    pub fn next(&self, faults: &[Fault]) {
        *self.shared.faults.lock().unwrap() = faults.iter().copied().collect();
        self.shared.seen.lock().unwrap().clear();
        self.shared.connections.store(0, Ordering::Relaxed);
        self.shared.forwarded.store(0, Ordering::Relaxed);
        self.shared.held.send_replace(0);
    }

    /// Waits until a connection is held.
    pub async fn held(&self) {
        let mut held = self.shared.held.subscribe();
        let waiting = tokio::time::timeout(PATIENCE, held.wait_for(|n| *n > 0));
        waiting.await.expect("nothing is held").unwrap();
    }

    /// Held connections go on with what was held back.
    pub fn release(&self) {
        self.shared.released.send_modify(|n| *n += 1);
    }

    /// Over connections that are open nothing passes any more, either way, and none closes.
    pub fn hush(&self) {
        self.shared.hushed.send_modify(|n| *n += 1);
    }

    /// Both directions of all connections close.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|n| *n += 1);
    }

    /// From here on connections are closed at once, or taken again.
    pub fn down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Connections that were closed at once.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Connections since the last [`Proxy::next`].
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Bytes to the receiver since then.
    pub fn forwarded(&self) -> u64 {
        self.shared.forwarded.load(Ordering::Relaxed)
    }

    /// Bytes that the sender wrote to a connection.
    pub fn written(&self, connection: usize) -> u64 {
        let seen = self.shared.seen.lock().unwrap();
        seen.get(connection).map_or(0, |ways| ways[0].len() as u64)
    }

    /// Kinds and places of the frames of a connection: to the receiver, and to the sender; none before there is one.
    pub fn frames(&self, connection: usize) -> [Vec<(Kind, Range<u64>)>; 2] {
        let seen = self.shared.seen.lock().unwrap();
        [0, 1].map(|way| {
            seen.get(connection)
                .map_or_else(Vec::new, |ways| frames(&ways[way]))
        })
    }

    /// The first segment to the receiver of the block that begins with this token: its number among the frames,
    /// and its place.
    pub fn segment(&self, connection: usize, token: u32) -> (usize, Range<u64>) {
        let [sent, _] = self.frames(connection);
        let seen = self.shared.seen.lock().unwrap();
        let is_it = |(kind, place): &(Kind, Range<u64>)| {
            let header = &seen[connection][0][place.start as usize..][..HEADER_BYTES];
            let header = Header::parse(header.try_into().unwrap()).unwrap();
            *kind == Kind::Segment && header.block_start == token
        };
        let number = sent.iter().position(is_it).expect("segment");
        (number, sent[number].1.clone())
    }

    /// The blocks that were sent over a connection, each by its first segment.
    pub fn blocks(&self, connection: usize) -> Vec<(Section, Range<u32>)> {
        let segments = self.segments(connection).into_iter();
        let mut blocks: Vec<_> = segments.map(|(s, tokens, _)| (s, tokens)).collect();
        blocks.dedup();
        blocks
    }

    /// The segments that were sent over a connection: section and tokens of the block, and layers.
    pub fn segments(&self, connection: usize) -> Vec<(Section, Range<u32>, Range<u16>)> {
        let [sent, _] = self.frames(connection);
        let seen = self.shared.seen.lock().unwrap();
        let segments = sent.iter().filter(|(kind, _)| *kind == Kind::Segment);
        let segments = segments.map(|(_, place)| {
            let header = &seen[connection][0][place.start as usize..][..HEADER_BYTES];
            let header = Header::parse(header.try_into().unwrap()).unwrap();
            let section = Section::from_wire(header.section).unwrap();
            let tokens = header.block_start..header.block_end;
            (section, tokens, header.layer_start..header.layer_end)
        });
        segments.collect()
    }

    /// The payload of the first frame of a kind to the receiver.
    pub fn payload(&self, connection: usize, kind: Kind) -> Vec<u8> {
        self.first(connection, 0, kind)
    }

    /// The payload of the first frame of a kind to the sender.
    pub fn answer(&self, connection: usize, kind: Kind) -> Vec<u8> {
        self.first(connection, 1, kind)
    }

    fn first(&self, connection: usize, way: usize, kind: Kind) -> Vec<u8> {
        let mut frames = self.frames(connection)[way].clone().into_iter();
        let (_, range) = frames.find(|(k, _)| *k == kind).expect("frame");
        let seen = self.shared.seen.lock().unwrap();
        seen[connection][way][range.start as usize + HEADER_BYTES..range.end as usize].to_vec()
    }
}

/// Where the frames of a stream are.
fn frames(bytes: &[u8]) -> Vec<(Kind, Range<u64>)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(header) = bytes.get(at..at + HEADER_BYTES) {
        let header = Header::parse(header.try_into().unwrap()).unwrap();
        let end = at + HEADER_BYTES + header.payload_len as usize;
        if end > bytes.len() {
            break;
        }
        found.push((header.kind, at as u64..end as u64));
        at = end;
    }
    found
}

async fn relay(from: TcpStream, to: TcpStream, fault: Fault, index: usize, state: &Shared) {
    let (from_read, from_write) = from.into_split();
    let (to_read, to_write) = to.into_split();
    let there = match fault {
        Fault::Cut(after) => Way::cut(after),
        Fault::Flip(at) => Way::flip(at),
        Fault::Hold(after) | Fault::Vanish(after) => Way::hold(after),
        Fault::HoldBefore(kind) => Way::hold_before(kind),
        Fault::Pace(rate) => Way::pace(rate),
        Fault::Drip(after) => Way::drip(after),
        Fault::Repeat(frame) => Way::order(frame, true),
        Fault::Swap(frame) => Way::order(frame, false),
        _ => Way::default(),
    };
    let back = match fault {
        Fault::CutReply(after) => Way::cut(after),
        Fault::FlipReply(at) => Way::flip(at),
        Fault::HoldReply(after) => Way::hold(after),
        Fault::RepeatReply(frame) => Way::order(frame, true),
        Fault::SwapReply(frame) => Way::order(frame, false),
        _ => Way::default(),
    };
    let held = Arc::clone(&there.held);
    let there = there.copy(from_read, to_write, state, index, 0);
    let back = back.copy(to_read, from_write, state, index, 1);
    tokio::pin!(back);
    let back = async {
        tokio::select! {
            biased;
            // The socket stays open, and what comes goes no further.
            () = held.notified(), if matches!(fault, Fault::Vanish(_)) => std::future::pending().await,
            is_cut = &mut back => is_cut,
        }
    };
    tokio::pin!(there, back);
    // A direction that ends in order leaves the other one open; a cut ends both.
    tokio::select! {
        is_cut = &mut there => if !is_cut { back.await; },
        is_cut = &mut back => if !is_cut { there.await; },
    }
}

/// What happens to one direction of a connection.
#[derive(Default)]
struct Way {
    cut: Option<u64>,
    flip: Option<u64>,
    hold: Option<u64>,
    hold_before: Option<Kind>,
    drip: Option<u64>,
    pace: Option<u64>,
    /// Told when nothing passes any more.
    held: Arc<Notify>,
    /// A frame, and whether it is repeated (or else comes later).
    order: Option<(usize, bool)>,
}

impl Way {
    fn cut(after: u64) -> Self {
        Self {
            cut: Some(after),
            ..Self::default()
        }
    }

    fn flip(at: u64) -> Self {
        Self {
            flip: Some(at),
            ..Self::default()
        }
    }

    fn hold(after: u64) -> Self {
        Self {
            hold: Some(after),
            ..Self::default()
        }
    }

    fn hold_before(kind: Kind) -> Self {
        Self {
            hold_before: Some(kind),
            ..Self::default()
        }
    }

    fn pace(rate: u64) -> Self {
        Self {
            pace: Some(rate),
            ..Self::default()
        }
    }

    fn drip(after: u64) -> Self {
        Self {
            drip: Some(after),
            ..Self::default()
        }
    }

    fn order(frame: usize, repeats: bool) -> Self {
        Self {
            order: Some((frame, repeats)),
            ..Self::default()
        }
    }

    /// Where to hold, once the frame has come.
    fn find_hold(&mut self, state: &Shared, index: usize, way: usize) {
        if let Some(kind) = self.hold_before
            && let Some(start) = state.start(index, way, kind)
        {
            (self.hold, self.hold_before) = (Some(start), None);
        }
    }

    /// Copies; true if it ended by a cut.
    async fn copy(
        mut self,
        mut read: OwnedReadHalf,
        mut write: OwnedWriteHalf,
        state: &Shared,
        index: usize,
        way: usize,
    ) -> bool {
        let mut at = 0u64;
        let mut buffer = vec![0; 64 << 10];
        let mut disorder = self.order.map(|(frame, repeats)| Disorder {
            frame,
            repeats,
            waiting: Vec::new(),
            number: 0,
            late: Vec::new(),
        });
        loop {
            if self.cut == Some(0) {
                return true;
            }
            let n = match read.read(&mut buffer).await {
                Ok(0) | Err(_) => {
                    let _ = write.shutdown().await;
                    return false;
                }
                Ok(n) => n,
            };
            let mut bytes = buffer[..n].to_vec();
            state.saw(index, way, &bytes);
            if let Some(flip) = self.flip
                && let Some(place) = flip.checked_sub(at)
                && let Some(byte) = bytes.get_mut(place as usize)
            {
                *byte ^= 1;
            }
            self.find_hold(state, index, way);
            let end = at + n as u64;
            if let Some(cut) = self.cut.filter(|cut| *cut <= end) {
                let _ = write.write_all(&bytes[..(cut - at) as usize]).await;
                let _ = write.flush().await;
                return true;
            }
            if let Some(hold) = self.hold.filter(|hold| *hold <= end) {
                let late = bytes.split_off(hold.saturating_sub(at) as usize);
                self.held.notify_one();
                let _ = write.write_all(&bytes).await;
                self.hold = None;
                bytes = held_back(&mut read, late, state, [index, way]).await;
                at = hold;
            }
            let end = at + bytes.len() as u64;
            if let Some(drip) = self.drip.filter(|drip| *drip < end) {
                let fast = drip.saturating_sub(at) as usize;
                if trickle(&mut write, &bytes, fast).await.is_err() {
                    return true;
                }
                at = end;
                continue;
            }
            if let Some(rate) = self.pace {
                let time = Duration::from_secs(n as u64) / u32::try_from(rate).unwrap();
                tokio::time::sleep(time).await;
            }
            if let Some(disorder) = &mut disorder {
                bytes = disorder.pass(&bytes);
            }
            at = end;
            if write.write_all(&bytes).await.is_err() {
                return false;
            }
            if way == 0 {
                state.forwarded.fetch_add(n as u64, Ordering::Relaxed);
            }
        }
    }
}

/// What comes is looked at, and goes no further until the relay is told so. Gives what was held back.
async fn held_back(
    read: &mut OwnedReadHalf,
    mut late: Vec<u8>,
    state: &Shared,
    [index, way]: [usize; 2],
) -> Vec<u8> {
    let mut released = state.released.subscribe();
    state.held.send_modify(|n| *n += 1);
    let mut buffer = vec![0; 64 << 10];
    loop {
        tokio::select! {
            read = read.read(&mut buffer) => match read {
                Ok(n @ 1..) => {
                    state.saw(index, way, &buffer[..n]);
                    late.extend_from_slice(&buffer[..n]);
                }
                // That it has closed is held back, too.
                Ok(0) | Err(_) => {
                    let _ = released.changed().await;
                    return late;
                }
            },
            _ = released.changed() => return late,
        }
    }
}

/// Writes some bytes at once and the others one by one.
async fn trickle(write: &mut OwnedWriteHalf, bytes: &[u8], fast: usize) -> std::io::Result<()> {
    write.write_all(&bytes[..fast]).await?;
    for byte in &bytes[fast..] {
        tokio::time::sleep(DRIP).await;
        write.write_all(&[*byte]).await?;
    }
    Ok(())
}

/// Passes frames on, one of them twice or late.
struct Disorder {
    frame: usize,
    repeats: bool,
    /// Bytes that are no whole frame yet.
    waiting: Vec<u8>,
    number: usize,
    late: Vec<u8>,
}

impl Disorder {
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.waiting.extend_from_slice(bytes);
        let mut out = Vec::new();
        let whole = frames(&self.waiting);
        for (_, range) in &whole {
            let frame = &self.waiting[range.start as usize..range.end as usize];
            if self.number == self.frame && self.repeats {
                out.extend_from_slice(frame);
                out.extend_from_slice(frame);
            } else if self.number == self.frame {
                self.late = frame.to_vec();
            } else {
                out.extend_from_slice(frame);
                out.append(&mut self.late);
            }
            self.number += 1;
        }
        let used = whole.last().map_or(0, |(_, range)| range.end as usize);
        self.waiting.drain(..used);
        out
    }
}
