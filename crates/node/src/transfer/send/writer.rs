//! The writer of the connection of a handoff: the next segment is encoded while the last is written, be it of the
//! same block or of the next one. Of streamed blocks, what there is is written when nothing more has come.

use std::sync::Arc;
use std::time::Duration;

use tandem_cluster::WriteHalf;
use tandem_handoff::KvBlock;
use tandem_handoff::codec::{Codec, Encoder};
use tandem_handoff::frame::HEADER_BYTES;
use tandem_handoff::segment::{Cutter, Segment};
use tandem_handoff::sender::{Outbound, Outgoing};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::streamed::{Cut, Done, Place, StreamOrder, StreamedBlocks, cannot_encode};
use super::{Fault, ended_early};
use crate::limits::{SEGMENTS_AHEAD, WRITE_BYTES};
use crate::link_estimate::LinkEstimates;
use crate::transfer::wire::{flush, write_frame, write_parts};

/// What the writer is told to do.
pub(super) enum Order {
    /// Encode and write a block.
    Block {
        block: Arc<KvBlock>,
        cutter: Box<Cutter>,
        codec: Codec,
    },
    /// Encode and write a block while it is computed.
    Stream(Box<StreamOrder>),
    /// Write a control frame.
    Control(Outgoing),
    /// Write this and close.
    Last(Vec<u8>),
}

/// What the writer has done, or seen.
pub(super) enum What {
    /// A control frame has been written.
    Control,
    /// The first bytes of the block at this place, which is streamed, go out.
    Begun(Place),
    /// A block has been written.
    Block(Box<Done>),
}

/// What the writer has done, or why it ended.
pub(super) type Written = Result<What, Fault>;

/// Segments that are ready and not written.
#[derive(Default)]
pub(super) struct Batch {
    segments: Vec<Segment>,
    bytes: u64,
}

/// An order that has been taken: segments of a block are being made from then on.
enum Taken {
    Block(Making),
    StreamedBlocks(StreamedBlocks),
    Control(Outgoing),
    Last(Vec<u8>),
}

/// A block whose segments are made.
struct Making {
    block: Arc<KvBlock>,
    codec: Codec,
    /// Segments that have not been taken.
    left: usize,
    by: Maker,
}

/// Who makes segments.
enum Maker {
    /// The writer, where there are only checksums: they take as long as going to another thread, and the rows that
    /// one has just read are in the processor's cache when they are written.
    Writer {
        cutter: Box<Cutter>,
        encoder: Encoder,
    },
    /// Another thread, which encodes ahead.
    Thread {
        segments: mpsc::Receiver<Segment>,
        encoding: JoinHandle<Result<Encoder, Fault>>,
    },
}

pub(super) struct Writer<W = WriteHalf> {
    pub(super) write: W,
    pub(super) outbound: Outbound,
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) report: mpsc::Sender<Written>,
    pub(super) silence: Duration,
    /// What is left of a block goes with the next one, if that is there: no small write between them.
    pub(super) batch: Batch,
    /// Those that encode nothing now: there are two while one block is encoded and the one before is written, or streamed.
    pub(super) encoders: Vec<Encoder>,
    /// They may be slower than this machine.
    pub(super) links: Arc<LinkEstimates>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) async fn run(mut self) {
        if let Err(fault) = self.serve().await {
            let _ = self.report.send(Err(fault)).await;
        }
    }

    async fn serve(&mut self) -> Result<(), Fault> {
        // All of them is written, or in the batch.
        let mut done = Vec::new();
        let mut next = self.order().await?;
        while let Some(order) = next {
            let mut told = Vec::new();
            match order {
                Taken::Block(making) => {
                    let (block, following) = self.block(making).await?;
                    done.push(block);
                    next = match following {
                        Some(order) => Some(order),
                        None => self.waiting_order()?,
                    };
                    let is_carried = self.batch.bytes > 0 && matches!(next, Some(Taken::Block(_)));
                    if !is_carried {
                        self.write_batch().await?;
                        flush(&mut self.write, self.silence).await?;
                        told.extend(done.drain(..).map(|done| What::Block(Box::new(done))));
                    }
                }
                Taken::StreamedBlocks(streamed) => {
                    let Some(following) = self.stream(streamed).await? else {
                        return Ok(());
                    };
                    next = match following {
                        Following::Order(order) => Some(order),
                        Following::Nothing => self.waiting_order()?,
                    };
                }
                Taken::Control(frame) => {
                    self.control(&frame).await?;
                    next = self.waiting_order()?;
                    told.push(What::Control);
                }
                Taken::Last(frame) => return self.last(&frame).await,
            }
            for what in told {
                if !self.tell(what).await {
                    return Ok(());
                }
            }
            if next.is_none() {
                next = self.order().await?;
            }
        }
        Ok(())
    }

    async fn control(&mut self, frame: &Outgoing) -> Result<(), Fault> {
        let frame = self.outbound.control(frame);
        Ok(write_frame(&mut self.write, &frame, self.silence).await?)
    }

    async fn last(&mut self, frame: &[u8]) -> Result<(), Fault> {
        let _ = write_frame(&mut self.write, frame, self.silence).await;
        let _ = self.write.shutdown().await;
        Ok(())
    }

    /// The prefill has ended in the middle of a block, which nobody can finish: says so, and what is left to write is why.
    async fn last_word<T>(&mut self) -> Result<Option<T>, Fault> {
        let _ = self.report.send(Err(Fault::Over(ended_early()))).await;
        while let Some(order) = self.orders.recv().await {
            if let Order::Last(frame) = order {
                self.last(&frame).await?;
                break;
            }
        }
        Ok(None)
    }

    /// The next order, if it is there.
    fn waiting_order(&mut self) -> Result<Option<Taken>, Fault> {
        let order = self.orders.try_recv().ok();
        order.map(|order| self.begin(order)).transpose()
    }

    fn begin(&mut self, order: Order) -> Result<Taken, Fault> {
        let (block, cutter, codec) = match order {
            Order::Block {
                block,
                cutter,
                codec,
            } => (block, cutter, codec),
            Order::Stream(block) => {
                let mut streamed = StreamedBlocks::new(self.encoder()?);
                streamed.add(*block);
                return Ok(Taken::StreamedBlocks(streamed));
            }
            Order::Control(frame) => return Ok(Taken::Control(frame)),
            Order::Last(frame) => return Ok(Taken::Last(frame)),
        };
        let encoder = self.encoder()?;
        let left = cutter.left();
        let by = if codec == Codec::Raw {
            Maker::Writer { cutter, encoder }
        } else {
            let (ready, segments) = mpsc::channel(SEGMENTS_AHEAD);
            let source = Arc::clone(&block);
            let encoding = tokio::task::spawn_blocking(move || {
                encode(&source, *cutter, codec, encoder, &ready)
            });
            Maker::Thread { segments, encoding }
        };
        Ok(Taken::Block(Making {
            block,
            codec,
            left,
            by,
        }))
    }

    fn encoder(&mut self) -> Result<Encoder, Fault> {
        match self.encoders.pop() {
            Some(encoder) => Ok(encoder),
            None => Encoder::new().map_err(cannot_encode),
        }
    }

    /// False if nobody listens any more.
    async fn tell(&self, what: What) -> bool {
        self.report.send(Ok(what)).await.is_ok()
    }

    /// The next order.
    async fn order(&mut self) -> Result<Option<Taken>, Fault> {
        let order = self.idle(None).await?;
        let Happened::Order(order) = order else {
            return Ok(None);
        };
        order.map(|order| self.begin(order)).transpose()
    }

    /// Waits, with nothing to write, for the next order, or for more of streamed blocks.
    async fn idle(&mut self, streamed: Option<&mut StreamedBlocks>) -> Result<Happened, Fault> {
        flush(&mut self.write, self.silence).await?;
        Ok(happens(&mut self.orders, streamed).await)
    }

    /// Writes blocks while they are computed, and those that are begun meanwhile. Gives what comes behind them, if it is
    /// there by then; `None` if nobody listens any more.
    async fn stream(&mut self, mut streamed: StreamedBlocks) -> Result<Option<Following>, Fault> {
        let mut next = None;
        loop {
            while let Some(cut) = streamed.cut()? {
                let (place, segment) = match cut {
                    Cut::Made(place, segment) => {
                        self.write_much().await?;
                        (place, segment)
                    }
                    Cut::Encoding(place, encoding) => {
                        // Meanwhile.
                        self.write_much().await?;
                        let encoded = encoding.await.map_err(cannot_encode)?;
                        (place, streamed.encoded(place, encoded)?)
                    }
                };
                let is_first = streamed.goes_out(place, self.push(segment));
                if is_first && !self.tell(What::Begun(place)).await {
                    return Ok(None);
                }
            }
            self.write_batch().await?;
            let done = streamed.done();
            let is_over = streamed.is_empty();
            if !done.is_empty() {
                flush(&mut self.write, self.silence).await?;
            }
            for done in done {
                if !self.tell(What::Block(Box::new(done))).await {
                    return Ok(None);
                }
            }
            if is_over {
                self.encoders.extend(streamed.end());
                return Ok(Some(next.map_or(Following::Nothing, Following::Order)));
            }
            if next.is_some() {
                if !streamed.more().await {
                    return self.last_word().await;
                }
                continue;
            }
            match self.idle(Some(&mut streamed)).await? {
                Happened::Planes => {}
                Happened::Ended => return self.last_word().await,
                Happened::Order(None) => return Ok(None),
                Happened::Order(Some(Order::Stream(block))) => {
                    streamed.add(*block);
                }
                Happened::Order(Some(Order::Control(frame))) => {
                    self.control(&frame).await?;
                    if !self.tell(What::Control).await {
                        return Ok(None);
                    }
                }
                Happened::Order(Some(Order::Last(frame))) => {
                    self.last(&frame).await?;
                    return Ok(None);
                }
                // Blocks that are whole come behind: what is streamed now is complete soon.
                Happened::Order(Some(order)) => next = Some(self.begin(order)?),
            }
        }
    }

    /// Writes the segments of a block but for what is left in the batch. Gives what comes next, too, if it is there
    /// when the last segment is: a block is encoded while that one is written.
    async fn block(&mut self, mut making: Making) -> Result<(Done, Option<Taken>), Fault> {
        let (mut wire_bytes, mut next) = (0, None);
        while let Some(segment) = self.segment(&mut making).await? {
            making.left = making.left.saturating_sub(1);
            if making.left == 0 {
                next = self.waiting_order()?;
            }
            wire_bytes += self.add(segment).await?;
        }
        self.encoders.push(match making.by {
            Maker::Writer { encoder, .. } => encoder,
            Maker::Thread { encoding, .. } => encoding.await.map_err(cannot_encode)??,
        });
        let done = Done {
            raw_bytes: making.block.bytes(),
            wire_bytes,
            was_streamed: false,
        };
        Ok((done, next))
    }

    /// The next segment of a block; `None` after the last.
    async fn segment(&mut self, making: &mut Making) -> Result<Option<Segment>, Fault> {
        let (block, codec) = (&making.block, making.codec);
        match &mut making.by {
            Maker::Writer { cutter, encoder } => {
                let segment = cutter.next(&block.planes, codec, encoder);
                segment.map_err(cannot_encode)
            }
            Maker::Thread { segments, .. } => Ok(segments.recv().await),
        }
    }

    /// Gives the bytes that the segment has on the wire. It is written with those before it once they are
    /// enough.
    async fn add(&mut self, segment: Segment) -> Result<u64, Fault> {
        let bytes = self.push(segment);
        self.write_much().await?;
        Ok(bytes)
    }

    fn push(&mut self, segment: Segment) -> u64 {
        let bytes = HEADER_BYTES as u64 + u64::from(segment.header.payload_len);
        self.batch.segments.push(segment);
        self.batch.bytes += bytes;
        bytes
    }

    /// Writes what is ready, if it is enough.
    async fn write_much(&mut self) -> Result<(), Fault> {
        if self.batch.bytes < WRITE_BYTES {
            return Ok(());
        }
        self.write_batch().await
    }

    /// Writes what is ready with one call, if the stream takes it.
    async fn write_batch(&mut self) -> Result<(), Fault> {
        let Batch { segments, bytes } = std::mem::take(&mut self.batch);
        self.links.carry(bytes).await;
        let headers: Vec<_> = segments
            .iter()
            .map(|segment| self.outbound.segment(&segment.header))
            .collect();
        let mut parts = Vec::new();
        for (header, segment) in headers.iter().zip(&segments) {
            parts.push(header.as_slice());
            parts.extend(segment.parts());
        }
        Ok(write_parts(&mut self.write, &parts, self.silence).await?)
    }
}

/// What comes behind streamed blocks.
enum Following {
    Order(Taken),
    /// Nothing that is known of.
    Nothing,
}

/// What a writer with nothing to write has waited for.
enum Happened {
    /// An order has come; `None` if none will.
    Order(Option<Order>),
    /// More of a block has been computed.
    Planes,
    /// A block has ended before it was whole.
    Ended,
}

async fn happens(
    orders: &mut mpsc::Receiver<Order>,
    streamed: Option<&mut StreamedBlocks>,
) -> Happened {
    let Some(streamed) = streamed else {
        return Happened::Order(orders.recv().await);
    };
    tokio::select! {
        has_more = streamed.more() => if has_more {
            Happened::Planes
        } else {
            Happened::Ended
        },
        order = orders.recv() => Happened::Order(order),
    }
}

/// Cuts and encodes a block; waits while enough segments are ready.
fn encode(
    block: &KvBlock,
    mut cutter: Cutter,
    codec: Codec,
    mut encoder: Encoder,
    ready: &mpsc::Sender<Segment>,
) -> Result<Encoder, Fault> {
    while let Some(segment) = cutter
        .next(&block.planes, codec, &mut encoder)
        .map_err(cannot_encode)?
    {
        if ready.blocking_send(segment).is_err() {
            // The writer has given up and says why.
            break;
        }
    }
    Ok(encoder)
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    use tandem_engine::KvCache;
    use tandem_engine::fake::{FakeConfig, FakeEngine};
    use tandem_handoff::frame::Header;
    use tandem_handoff::policy::Quality;
    use tandem_handoff::receiver::{Covers, Expectation, Receiver, Terms};
    use tandem_handoff::sender::{Offer, Sender};
    use tandem_handoff::{LayerKind, LayerSpec, Plane, PlaneKind, Section};

    use super::*;
    use crate::sequence::StreamedBlock;

    /// Records writes, or takes none until it is opened.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        /// Bytes of each write.
        writes: Vec<u64>,
        is_held: bool,
        /// Parts of the write that waits.
        waiting: Option<(usize, Waker)>,
    }

    impl Recorder {
        fn held() -> Self {
            let state = State {
                is_held: true,
                ..State::default()
            };
            Self(Arc::new(Mutex::new(state)))
        }

        fn writes(&self) -> Vec<u64> {
            self.0.lock().unwrap().writes.clone()
        }

        fn waiting_parts(&self) -> Option<usize> {
            self.0.lock().unwrap().waiting.as_ref().map(|w| w.0)
        }

        fn open(&self) {
            let mut state = self.0.lock().unwrap();
            state.is_held = false;
            if let Some((_, waker)) = state.waiting.take() {
                waker.wake();
            }
        }
    }

    impl AsyncWrite for Recorder {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<std::io::Result<usize>> {
            let mut state = self.0.lock().unwrap();
            if state.is_held {
                state.waiting = Some((parts.len(), cx.waker().clone()));
                return Poll::Pending;
            }
            let bytes = parts.iter().map(|p| p.len()).sum();
            state.writes.push(bytes as u64);
            Poll::Ready(Ok(bytes))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    const LAYERS: u32 = 48;
    const LAYER: LayerSpec = LayerSpec {
        kind: LayerKind::Full,
        kv_heads: 4,
        key_dim: 128,
        value_dim: 128,
    };

    /// A sender that may send all of `tokens` tokens, 96 KiB each.
    fn sender(tokens: u32) -> Sender {
        let config = FakeConfig {
            layers: vec![LAYER; LAYERS as usize],
            ..FakeConfig::default()
        };
        let contract = Arc::new(FakeEngine::new(config).contract().clone());
        let prompt: Vec<u32> = (0..=tokens).map(|t| t % 50).collect();
        let offer = Offer {
            contract: Arc::clone(&contract),
            handoff: 1,
            ticket: "00".repeat(16),
            tokens: prompt.clone(),
            continuation: 0,
            kv_end: tokens,
            pages: Vec::new(),
            step_bytes: 0,
            exact_end: 0,
        };
        let expected = Expectation {
            contract,
            handoff: 1,
            tokens: prompt,
            kv_end: tokens,
            covers: Covers::All,
            quality: Quality::Q8,
            mixed_quantisation: false,
        };
        let terms = Terms {
            session: "11".repeat(16),
            credit_bytes: 1 << 30,
            have_page: None,
        };
        let (_, accept) = Receiver::accept(&expected, tokens, 0, &terms).unwrap();
        let (mut sender, _) = Sender::new(offer).unwrap();
        let (header, payload) = accept.split_at(HEADER_BYTES);
        let header = Header::parse(header.try_into().unwrap()).unwrap();
        sender.receive(&header, payload).unwrap();
        sender
    }

    /// Finite f16 numbers that do not compress well.
    fn block(start: u32, tokens: u32) -> Arc<KvBlock> {
        let mut state = start + 1;
        let mut row = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [.., a, b] = state.to_le_bytes();
            [a, b & 0x83 | 0x38]
        };
        let planes =
            (0..LAYERS).flat_map(|layer| [(layer, PlaneKind::Key), (layer, PlaneKind::Value)]);
        Arc::new(KvBlock {
            section: Section::Full,
            tokens: start..start + tokens,
            planes: planes
                .map(|(layer, kind)| Plane {
                    layer,
                    kind,
                    data: (0..tokens * 512)
                        .flat_map(|_| row())
                        .collect::<Vec<u8>>()
                        .into(),
                })
                .collect(),
        })
    }

    fn writer<W>(
        write: W,
        sender: &Sender,
        orders: mpsc::Receiver<Order>,
        report: mpsc::Sender<Written>,
    ) -> Writer<W> {
        Writer {
            write,
            outbound: sender.outbound(),
            orders,
            report,
            silence: Duration::from_secs(60),
            batch: Batch::default(),
            encoders: Vec::new(),
            links: Arc::default(),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_write_is_small_while_there_is_more() {
        const BLOCKS: u32 = 3;
        for tokens in [4, 10, 64, 70] {
            for codec in Codec::ALL {
                let mut sender = sender(BLOCKS * tokens);
                let (orders, taken) = mpsc::channel(BLOCKS as usize);
                let (report, mut reported) = mpsc::channel(BLOCKS as usize);
                let recorder = Recorder::default();
                for number in 0..BLOCKS {
                    let block = block(number * tokens, tokens);
                    let cutter = sender.open(&block).unwrap();
                    let cutter = Box::new(cutter);
                    let order = Order::Block {
                        block,
                        cutter,
                        codec,
                    };
                    orders.try_send(order).ok().unwrap();
                }
                drop(orders);
                writer(recorder.clone(), &sender, taken, report).run().await;
                let mut wire_bytes = 0;
                for _ in 0..BLOCKS {
                    let Some(Ok(What::Block(done))) = reported.recv().await else {
                        panic!("a block is not reported");
                    };
                    wire_bytes += done.wire_bytes;
                }
                assert!(reported.recv().await.is_none());
                let writes = recorder.writes();
                assert_eq!(writes.iter().sum::<u64>(), wire_bytes, "{codec}");
                let (_, but_last) = writes.split_last().unwrap();
                let is_large = |bytes: &u64| *bytes >= WRITE_BYTES;
                assert!(
                    but_last.iter().all(is_large),
                    "{codec}, {tokens}: {writes:?}"
                );
            }
        }
    }

    /// Planes of a later block may be seen before those of an earlier one: its last segment waits all the same.
    #[tokio::test]
    async fn streamed_blocks_become_whole_in_order() {
        let mut sender = sender(128);
        let blocks = [block(0, 64), block(64, 64)];
        let mut streamed = StreamedBlocks::new(Encoder::new().unwrap());
        let given = blocks.each_ref().map(|block| {
            let cutter = sender.open_streamed(Section::Full, block.tokens.clone());
            let (given, planes) = mpsc::channel(block.planes.len());
            streamed.add(StreamOrder {
                streamed: StreamedBlock {
                    section: Section::Full,
                    tokens: block.tokens.clone(),
                    planes,
                },
                cutter: Box::new(cutter.unwrap()),
                codec: Codec::Raw,
                raw_bytes: block.bytes(),
                planes: block.planes.len(),
            });
            given
        });
        let mut starts = Vec::new();
        let mut cut_all = async |streamed: &mut StreamedBlocks| {
            assert!(streamed.more().await);
            while let Some(Cut::Made((_, start), _)) = streamed.cut().ok().unwrap() {
                starts.push(start);
            }
            starts.clone()
        };
        let (half, rest) = blocks[0].planes.split_at(blocks[0].planes.len() / 2);
        for (given, planes) in given.iter().zip([half, &blocks[1].planes]) {
            for plane in planes {
                given.try_send(plane.clone()).unwrap();
            }
        }
        let before = cut_all(&mut streamed).await;
        assert!(before.contains(&0) && before.contains(&64), "{before:?}");
        for plane in rest {
            given[0].try_send(plane.clone()).unwrap();
        }
        let all = cut_all(&mut streamed).await;
        let of_first = all.iter().filter(|start| **start == 0).count();
        assert_eq!(of_first * 2, all.len(), "as many of each: {all:?}");
        assert_eq!(all.last(), Some(&64), "{all:?}");
        assert_eq!(streamed.done().len(), 2);
    }

    /// A streamed block leaves as it comes. Where the link is slower, what waits for it leaves in large writes.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_has_come_meanwhile_leaves_in_large_writes() {
        const TOKENS: u32 = 64;
        for codec in Codec::ALL {
            let mut sender = sender(TOKENS);
            let block = block(0, TOKENS);
            let (orders, taken) = mpsc::channel(1);
            let (report, mut reported) = mpsc::channel(4);
            let cutter = sender.open_streamed(Section::Full, 0..TOKENS).unwrap();
            let (planes, incoming) = mpsc::channel(block.planes.len());
            let streamed = StreamedBlock {
                section: Section::Full,
                tokens: 0..TOKENS,
                planes: incoming,
            };
            let order = StreamOrder {
                streamed,
                cutter: Box::new(cutter),
                codec,
                raw_bytes: block.bytes(),
                planes: block.planes.len(),
            };
            assert!(orders.try_send(Order::Stream(Box::new(order))).is_ok());
            for plane in &block.planes {
                planes.try_send(plane.clone()).unwrap();
            }
            let recorder = Recorder::default();
            let writing = tokio::spawn(writer(recorder.clone(), &sender, taken, report).run());
            let wire_bytes = loop {
                match reported.recv().await {
                    Some(Ok(What::Block(done))) => break done.wire_bytes,
                    Some(Ok(_)) => {}
                    _ => panic!("the block is not reported"),
                }
            };
            drop(orders);
            writing.await.unwrap();
            let writes = recorder.writes();
            assert_eq!(writes.iter().sum::<u64>(), wire_bytes, "{codec}");
            let (_, but_last) = writes.split_last().unwrap();
            let is_large = |bytes: &u64| *bytes >= WRITE_BYTES;
            assert!(
                !but_last.is_empty() && but_last.iter().all(is_large),
                "{codec}: {writes:?}"
            );
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn segments_are_encoded_while_one_is_written() {
        // Few segments are all encoded before the first has gone out. Of many, the encoder holds the
        // block, too.
        let cases = [(64, 0), (160, 1)];
        let codecs = Codec::ALL.into_iter().filter(|c| *c != Codec::Raw);
        let all = codecs.flat_map(|codec| cases.map(|case| (codec, case)));
        for (codec, (tokens, encoders)) in all {
            let mut sender = sender(tokens);
            let block = block(0, tokens);
            let (orders, taken) = mpsc::channel(1);
            let (report, mut reported) = mpsc::channel(1);
            let cutter = sender.open(&block).unwrap();
            let cutter = Box::new(cutter);
            let order = Order::Block {
                block: Arc::clone(&block),
                cutter,
                codec,
            };
            orders.try_send(order).ok().unwrap();
            let held = Recorder::held();
            let writing = tokio::spawn(writer(held.clone(), &sender, taken, report).run());
            // So do the test and the writer.
            let is_encoded =
                || held.waiting_parts().is_some() && Arc::strong_count(&block) == 2 + encoders;
            let waiting = async {
                while !is_encoded() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
            waited.unwrap_or_else(|_| panic!("{codec}: nothing is encoded meanwhile"));
            held.open();
            assert!(matches!(reported.recv().await, Some(Ok(_))), "{codec}");
            drop(orders);
            writing.await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_next_block_is_encoded_while_the_last_segment_is_written() {
        // One segment, and more than the encoder makes ahead.
        let lengths = [30, 160];
        for codec in Codec::ALL.into_iter().filter(|c| *c != Codec::Raw) {
            let mut sender = sender(lengths.iter().sum());
            let (orders, taken) = mpsc::channel(2);
            let (report, mut reported) = mpsc::channel(2);
            let mut start = 0;
            let blocks = lengths.map(|tokens| {
                let block = block(start, tokens);
                start += tokens;
                let cutter = sender.open(&block).unwrap();
                let order = Order::Block {
                    block: Arc::clone(&block),
                    cutter: Box::new(cutter),
                    codec,
                };
                orders.try_send(order).ok().unwrap();
                block
            });
            let held = Recorder::held();
            let writing = tokio::spawn(writer(held.clone(), &sender, taken, report).run());
            // The test, the writer and its encoder hold the second one while the first one waits.
            let is_begun = || held.waiting_parts() == Some(2) && Arc::strong_count(&blocks[1]) == 3;
            let waiting = async {
                while !is_begun() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
            waited.unwrap_or_else(|_| panic!("{codec}: the second block is not encoded"));
            held.open();
            for _ in 0..2 {
                let told = reported.recv().await;
                let Some(Ok(What::Block(_))) = told else {
                    panic!("{codec}: a block is not reported");
                };
            }
            drop(orders);
            writing.await.unwrap();
        }
    }
}
