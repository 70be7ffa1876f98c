//! The writer of one connection of a handoff: encodes the next segment while the last is written,
//! where there is anything to encode.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_identity::WriteHalf;
use tandem_kv::KvBlock;
use tandem_kv::codec::{Codec, CodecError, Encoder};
use tandem_kv::message::BlockDigest;
use tandem_kv::segment::{Cutter, Segment};
use tandem_kv::sender::{Outbound, Outgoing};
use tandem_proto::{ErrorCode, NodeError};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::Fault;
use super::connection::Told;
use crate::limits::{SEGMENTS_AHEAD, WRITE_BYTES};
use crate::wire::{Drain, Drained, flush, write_frame, write_parts};

/// What a writer is told to do.
pub(super) enum Order {
    /// Encode and write a block.
    Block {
        block: Arc<KvBlock>,
        place: u64,
        cutter: Box<Cutter>,
        codec: Codec,
    },
    /// Write a control frame.
    Control(Outgoing),
    /// Write this and close.
    Last(Vec<u8>),
}

/// A writer has done what it was told.
pub(super) struct Written {
    pub(super) stream: usize,
    /// What it wrote, if it was a block.
    pub(super) block: Option<Done>,
}

/// A block that has been written.
pub struct Done {
    pub(super) place: u64,
    pub(super) digest: BlockDigest,
    pub(super) codec: Codec,
    pub(super) raw_bytes: u64,
    pub(super) wire_bytes: u64,
    /// Time spent encoding.
    pub(super) encoding: Duration,
    /// What the connection took while it was waited for.
    pub(super) drained: Drained,
}

pub(super) struct Writer {
    pub(super) stream: usize,
    pub(super) write: WriteHalf,
    pub(super) outbound: Outbound,
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) report: mpsc::Sender<Told>,
    pub(super) silence: Duration,
    /// From one block to the next, as long as there is one.
    pub(super) drain: Drain,
}

impl Writer {
    pub(super) async fn run(mut self) {
        let mut encoder = None;
        while let Some(order) = self.orders.recv().await {
            let done = match order {
                Order::Block {
                    block,
                    place,
                    cutter,
                    codec,
                } => self
                    .block(&block, place, cutter, codec, &mut encoder)
                    .await
                    .map(Some),
                Order::Control(frame) => self.control(&frame).await.map(|()| None),
                Order::Last(frame) => {
                    let _ = write_frame(&mut self.write, &frame, self.silence).await;
                    let _ = self.write.shutdown().await;
                    return;
                }
            };
            let over = done.is_err();
            let stream = self.stream;
            let report = match done {
                Ok(block) => Ok(Written { stream, block }),
                Err(fault) => Err((stream, fault)),
            };
            if self.report.send(report).await.is_err() || over {
                return;
            }
        }
    }

    async fn control(&mut self, frame: &Outgoing) -> Result<(), Fault> {
        let frame = self.outbound.control(frame);
        Ok(write_frame(&mut self.write, &frame, self.silence).await?)
    }

    async fn block(
        &mut self,
        block: &Arc<KvBlock>,
        place: u64,
        cutter: Box<Cutter>,
        codec: Codec,
        encoder: &mut Option<Encoder>,
    ) -> Result<Done, Fault> {
        let mut own = match encoder.take() {
            Some(encoder) => encoder,
            None => Encoder::new().map_err(cannot_encode)?,
        };
        let mut wire_bytes = 0;
        let (own, digest, encoding) = if codec == Codec::Raw {
            // Only checksums: as long as going to another thread takes, and the rows that a checksum
            // has just read are in the processor's cache when they are written.
            let (mut cutter, mut spent) = (*cutter, Duration::ZERO);
            while let Some(segment) = timed(&mut spent, || cutter.next(block, codec, &mut own))? {
                wire_bytes += self.segments(block, &[segment]).await?;
            }
            (own, cutter.finish(), spent)
        } else {
            let (ready, mut segments) = mpsc::channel(SEGMENTS_AHEAD);
            let source = Arc::clone(block);
            let encoding =
                tokio::task::spawn_blocking(move || encode(&source, *cutter, codec, own, &ready));
            let (mut ready, mut bytes) = (Vec::new(), 0);
            loop {
                if segments.is_empty() {
                    // Now the encoder limits, and not the link.
                    self.drain.pause();
                }
                let next = segments.recv().await;
                let is_over = next.is_none();
                if let Some(segment) = next {
                    bytes += u64::from(segment.header.payload_len);
                    ready.push(segment);
                }
                if bytes >= WRITE_BYTES || is_over {
                    wire_bytes += self.segments(block, &ready).await?;
                    (ready, bytes) = (Vec::new(), 0);
                }
                if is_over {
                    break;
                }
            }
            encoding.await.map_err(cannot_encode)??
        };
        flush(&mut self.write, self.silence, &mut self.drain).await?;
        *encoder = Some(own);
        Ok(Done {
            place,
            digest,
            codec,
            raw_bytes: block.bytes(),
            wire_bytes,
            encoding,
            drained: self.drain.lap(self.orders.is_empty()),
        })
    }

    /// Writes segments with one call, if the stream takes them. Gives the bytes that were written.
    async fn segments(&mut self, block: &KvBlock, segments: &[Segment]) -> Result<u64, Fault> {
        let headers: Vec<_> = segments
            .iter()
            .map(|s| self.outbound.segment(&s.header))
            .collect();
        let mut parts = Vec::new();
        for (header, segment) in headers.iter().zip(segments) {
            parts.push(header.as_slice());
            parts.extend(segment.parts(block));
        }
        write_parts(&mut self.write, &parts, self.silence, &mut self.drain).await?;
        Ok(parts.iter().map(|p| p.len() as u64).sum())
    }
}

/// Cuts and encodes a block; waits while enough segments are ready.
fn encode(
    block: &KvBlock,
    mut cutter: Cutter,
    codec: Codec,
    mut encoder: Encoder,
    ready: &mpsc::Sender<Segment>,
) -> Result<(Encoder, BlockDigest, Duration), Fault> {
    let mut spent = Duration::ZERO;
    while let Some(segment) = timed(&mut spent, || cutter.next(block, codec, &mut encoder))? {
        if ready.blocking_send(segment).is_err() {
            // The writer has given up and says why.
            break;
        }
    }
    Ok((encoder, cutter.finish(), spent))
}

/// Adds the time that a segment takes to `spent`.
fn timed(
    spent: &mut Duration,
    next: impl FnOnce() -> Result<Option<Segment>, CodecError>,
) -> Result<Option<Segment>, Fault> {
    let start = Instant::now();
    let segment = next();
    *spent += start.elapsed();
    segment.map_err(cannot_encode)
}

fn cannot_encode(error: impl std::fmt::Display) -> Fault {
    let message = format!("KV cannot be encoded: {error}");
    Fault::Over(NodeError::new(ErrorCode::Handoff, message))
}
