//! The sending end of a handoff on a real socket.

use std::sync::Arc;
use std::time::Instant;

use tandem_kv::frame::Header;
use tandem_kv::sender::{Sender, SenderError, SenderState};
use tandem_proto::{ErrorCode, NodeError, PrefillEvent, PrefillRequest};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::job::{Command, Computed};
use crate::limits::{GOODBYE, Limits};
use crate::model::Model;
use crate::wire::{FrameReader, WireError};

/// What to send where.
#[derive(Debug)]
pub struct Outgoing {
    /// The model whose KV is sent.
    pub model: Arc<Model>,
    /// Tokens, target and ticket.
    pub request: PrefillRequest,
    /// Waits.
    pub limits: Limits,
}

/// Sends chunks as they are computed; tells the coordinator about it.
pub async fn send_kv(
    outgoing: Outgoing,
    computed: mpsc::Receiver<Computed>,
    events: mpsc::Sender<PrefillEvent>,
) {
    let request = outgoing.request.request.clone();
    let last = match Pump::connect(outgoing, events.clone()).await {
        Ok(mut pump) => match pump.run(computed).await {
            Ok(done) => done,
            Err(e) => {
                pump.goodbye(&e).await;
                PrefillEvent::Failed(e)
            }
        },
        Err(e) => PrefillEvent::Failed(e),
    };
    if let PrefillEvent::Failed(e) = &last {
        tracing::warn!(%request, error = %e, "handoff failed");
    }
    // The coordinator may have gone; then nobody needs the event.
    let _ = events.send(last).await;
}

fn broken(message: impl Into<String>) -> NodeError {
    NodeError::new(ErrorCode::Handoff, message)
}

fn sender_error(e: &SenderError) -> NodeError {
    let code = match e {
        SenderError::Refused(_) => ErrorCode::Refused,
        _ => ErrorCode::Handoff,
    };
    NodeError::new(code, e.to_string())
}

type Incoming = Result<(Header, Vec<u8>), NodeError>;

struct Pump {
    sender: Sender,
    write: OwnedWriteHalf,
    incoming: mpsc::Receiver<Incoming>,
    reader: tokio::task::AbortHandle,
    events: mpsc::Sender<PrefillEvent>,
    limits: Limits,
    clock: TransferClock,
    model: Arc<Model>,
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Time during which KV was written but not acknowledged.
#[derive(Debug, Default)]
struct TransferClock {
    since: Option<Instant>,
    total_ms: f64,
}

impl TransferClock {
    fn sent(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    fn all_acknowledged(&mut self) {
        if let Some(since) = self.since.take() {
            self.total_ms += since.elapsed().as_secs_f64() * 1e3;
        }
    }
}

impl Pump {
    /// Connects, says hello and waits for the answer. No KV moves before it.
    async fn connect(
        outgoing: Outgoing,
        events: mpsc::Sender<PrefillEvent>,
    ) -> Result<Self, NodeError> {
        let Outgoing {
            model,
            request,
            limits,
        } = outgoing;
        let connecting = timeout(limits.connect, TcpStream::connect(&request.target)).await;
        let stream = connecting
            .map_err(|_| {
                broken(format!(
                    "no connection to {} within {} s",
                    request.target,
                    limits.connect.as_secs_f32()
                ))
            })?
            .map_err(|e| broken(format!("cannot connect to {}: {e}", request.target)))?;
        stream
            .set_nodelay(true)
            .map_err(|e| broken(e.to_string()))?;
        let kv_end = u32::try_from(request.tokens.len()).unwrap_or(u32::MAX) - 1;
        let (sender, hello) = Sender::new(
            model.contract.clone(),
            request.handoff,
            &request.ticket,
            &request.tokens,
            kv_end,
        )
        .map_err(|e| sender_error(&e))?;
        let (read, write) = stream.into_split();
        let (frames, incoming) = mpsc::channel(8);
        let reader = tokio::spawn(read_frames(read, frames)).abort_handle();
        let mut pump = Self {
            sender,
            write,
            incoming,
            reader,
            events,
            limits,
            clock: TransferClock::default(),
            model,
        };
        pump.write(&hello).await?;
        while pump.sender.state() == SenderState::AwaitAccept {
            let frame = timeout(limits.connect, pump.incoming.recv()).await;
            let frame = frame.map_err(|_| broken("the decode node did not answer the hello"))?;
            pump.received(frame)?;
        }
        pump.tell(PrefillEvent::Accepted).await;
        Ok(pump)
    }

    async fn tell(&self, event: PrefillEvent) {
        let _ = self.events.send(event).await;
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), NodeError> {
        let silence = self.limits.handoff_silence;
        timeout(silence, self.write.write_all(bytes))
            .await
            .map_err(|_| {
                broken(format!(
                    "the decode node took nothing for {} s",
                    silence.as_secs_f32()
                ))
            })?
            .map_err(|e| broken(format!("connection to the decode node: {e}")))
    }

    fn received(&mut self, frame: Option<Incoming>) -> Result<(), NodeError> {
        let (header, payload) =
            frame.ok_or_else(|| broken("the decode node closed the connection"))??;
        self.sender
            .receive(&header, &payload)
            .map_err(|e| sender_error(&e))?;
        if self.sender.in_flight() == 0 {
            self.clock.all_acknowledged();
        }
        Ok(())
    }

    /// Sends everything; ends when the decode node has confirmed.
    async fn run(
        &mut self,
        mut computed: mpsc::Receiver<Computed>,
    ) -> Result<PrefillEvent, NodeError> {
        loop {
            let chunk = self.next_chunk(&mut computed).await?;
            for block in &chunk.blocks {
                while !self.sender.may_send() {
                    self.wait_for_frame().await?;
                }
                self.clock.sent();
                for frame in self.sender.block(block).map_err(|e| sender_error(&e))? {
                    self.write(&frame).await?;
                }
            }
            self.tell(PrefillEvent::Progress {
                tokens: chunk.tokens,
                sent_bytes: self.sender.raw_bytes(),
            })
            .await;
            if chunk.last {
                return self.commit(&chunk).await;
            }
        }
    }

    /// The next computed chunk; takes acknowledgements and shows signs of life meanwhile.
    async fn next_chunk(
        &mut self,
        computed: &mut mpsc::Receiver<Computed>,
    ) -> Result<Computed, NodeError> {
        loop {
            tokio::select! {
                chunk = computed.recv() => {
                    // The engine may have paused for want of room; a full queue wakes it anyway.
                    let _ = self.model.command(Command::Wake);
                    return chunk.ok_or_else(|| NodeError::new(ErrorCode::Engine, "the prefill ended early"));
                }
                frame = self.incoming.recv() => self.received(frame)?,
                () = tokio::time::sleep(self.limits.handoff_beat) => {
                    let beat = self.sender.beat();
                    self.write(&beat).await?;
                }
            }
        }
    }

    async fn wait_for_frame(&mut self) -> Result<(), NodeError> {
        let silence = self.limits.handoff_silence;
        let frame = timeout(silence, self.incoming.recv()).await.map_err(|_| {
            broken(format!(
                "the decode node acknowledged nothing for {} s",
                silence.as_secs_f32()
            ))
        })?;
        self.received(frame)
    }

    async fn commit(&mut self, last: &Computed) -> Result<PrefillEvent, NodeError> {
        let frame = self.sender.commit().map_err(|e| sender_error(&e))?;
        self.write(&frame).await?;
        while self.sender.state() != SenderState::Committed {
            self.wait_for_frame().await?;
        }
        Ok(PrefillEvent::Done {
            prefill_ms: last.prefill_ms,
            transfer_ms: self.clock.total_ms,
            exposed_transfer_ms: last.computed.elapsed().as_secs_f64() * 1e3,
            handoff_bytes: self.sender.raw_bytes(),
        })
    }

    /// Tells the decode node why the handoff ends, if it still listens, and lets it read what was
    /// sent: closing with unread acknowledgements would reset the connection and take KV with it.
    async fn goodbye(&mut self, error: &NodeError) {
        let frame = self.sender.abort(&error.message);
        let leave = async {
            let _ = self.write.write_all(&frame).await;
            let _ = self.write.shutdown().await;
            while let Some(Ok(_)) = self.incoming.recv().await {}
        };
        let _ = timeout(GOODBYE, leave).await;
    }
}

async fn read_frames(read: OwnedReadHalf, frames: mpsc::Sender<Incoming>) {
    let mut stream = BufReader::new(read);
    let mut reader = FrameReader::default();
    loop {
        let frame = reader
            .next(&mut stream, |_| Ok::<(), String>(()))
            .await
            .map_err(|e: WireError<String>| broken(format!("connection to the decode node: {e}")));
        let over = frame.is_err();
        if frames.send(frame).await.is_err() || over {
            return;
        }
    }
}
