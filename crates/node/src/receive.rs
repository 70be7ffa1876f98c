//! The receiving end of a handoff on a real socket.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tandem_kv::frame::{Header, Kind};
use tandem_kv::limits::{MAX_CHUNKS_IN_FLIGHT, MAX_STRING};
use tandem_kv::message::{Hello, RefusalCode, Refuse, abort_frame, control_frame, parse};
use tandem_kv::receiver::{Receiver, ReceiverError, Step};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::api::Node;
use crate::job::{Applied, Command};
use crate::limits::{ACCEPT_RETRY, GOODBYE, Limits, MAX_HANDOFF_CONNECTIONS};
use crate::tickets::Permitted;
use crate::wire::{FrameReader, WireError};

/// Takes handoff connections, at most [`MAX_HANDOFF_CONNECTIONS`] at once.
pub async fn accept_loop(listener: TcpListener, node: Arc<Node>) {
    let places = Arc::new(Semaphore::new(MAX_HANDOFF_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!(%error, "cannot take a handoff connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            if let Err(reason) = connection(stream, &node).await {
                tracing::warn!(%peer, %reason, "handoff connection ended");
            }
            drop(place);
        });
    }
}

/// One connection: hello, then KV for one job.
async fn connection(stream: TcpStream, node: &Node) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let limits = node.config.limits;
    let (mut read, mut write) = stream.into_split();
    let mut reader = FrameReader::default();
    let hello = timeout(limits.connect, reader.next(&mut read, only_hello)).await;
    let (header, payload) = match hello {
        Ok(Ok(frame)) => frame,
        Ok(Err(e)) => {
            refuse(&mut write, 0, RefusalCode::Hello, &e.to_string()).await;
            return Err(e.to_string());
        }
        Err(_) => {
            return Err(format!(
                "no hello within {} s",
                limits.connect.as_secs_f32()
            ));
        }
    };
    let hello = header
        .check_payload(&payload)
        .map_err(|e| e.to_string())
        .and_then(|()| parse::<Hello>(Kind::Hello, &payload).map_err(|e| e.to_string()));
    let hello = match hello {
        Ok(hello) => hello,
        Err(reason) => {
            refuse(&mut write, header.handoff, RefusalCode::Hello, &reason).await;
            return Err(reason);
        }
    };
    let permitted = node.tickets.take(&hello.ticket);
    let Some(permitted) = permitted.filter(|p| p.expectation.handoff == header.handoff) else {
        let reason = "hello field `ticket`: unknown, used or expired";
        refuse(&mut write, header.handoff, RefusalCode::Ticket, reason).await;
        return Err(reason.into());
    };
    let result = serve(&permitted, &hello, limits, reader, read, write).await;
    if let Err(reason) = &result {
        let failed = Command::HandoffFailed(permitted.job, reason.clone());
        permitted.model.deliver(failed).await;
    }
    result
}

fn only_hello(header: &Header) -> Result<(), String> {
    if header.kind == Kind::Hello && header.sequence == 0 {
        return Ok(());
    }
    Err("the first frame must be a hello with sequence 0".into())
}

async fn refuse(write: &mut OwnedWriteHalf, handoff: u64, code: RefusalCode, message: &str) {
    let refuse = Refuse {
        code,
        message: message.to_owned(),
        differences: Vec::new(),
    };
    say(write, handoff, &refuse).await;
}

async fn say(write: &mut OwnedWriteHalf, handoff: u64, refuse: &Refuse) {
    // Differences of hostile length do not fit a frame; the message names the first ones anyway.
    let short = || Refuse {
        message: refuse.message.chars().take(MAX_STRING).collect(),
        differences: Vec::new(),
        code: refuse.code,
    };
    let frame = control_frame(Kind::Refuse, handoff, 0, refuse)
        .or_else(|_| control_frame(Kind::Refuse, handoff, 0, &short()));
    if let Ok(frame) = frame {
        let _ = timeout(GOODBYE, write.write_all(&frame)).await;
    }
}

/// Serves a handoff that its ticket permits.
async fn serve(
    permitted: &Permitted,
    hello: &Hello,
    limits: Limits,
    reader: FrameReader,
    read: OwnedReadHalf,
    mut write: OwnedWriteHalf,
) -> Result<(), String> {
    let handoff = permitted.expectation.handoff;
    let (receiver, accept) = match Receiver::accept(hello, permitted.expectation.clone()) {
        Ok(accepted) => accepted,
        Err(refusal) => {
            say(&mut write, handoff, &refusal).await;
            return Err(refusal.message);
        }
    };
    let mut pump = Pump {
        permitted,
        receiver,
        reader,
        read,
        write,
        limits,
        applying: FuturesOrdered::new(),
    };
    let result = match pump.send(&accept).await {
        Ok(()) => pump.run().await,
        Err(e) => Err(e),
    };
    if let Err(reason) = &result {
        let frame = abort_frame(handoff, 0, reason);
        let _ = timeout(GOODBYE, pump.write.write_all(&frame)).await;
    }
    result
}

type Applying = std::pin::Pin<Box<dyn Future<Output = (Applied, Result<(), String>)> + Send>>;

struct Pump<'a> {
    permitted: &'a Permitted,
    receiver: Receiver,
    reader: FrameReader,
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
    limits: Limits,
    applying: FuturesOrdered<Applying>,
}

impl Pump<'_> {
    async fn send(&mut self, frame: &[u8]) -> Result<(), String> {
        let silence = self.limits.handoff_silence;
        timeout(silence, self.write.write_all(frame))
            .await
            .map_err(|_| "the prefill node takes no answers".to_owned())?
            .map_err(|e| format!("connection to the prefill node: {e}"))
    }

    /// Reads frames and applies blocks, until everything is applied and confirmed.
    async fn run(&mut self) -> Result<(), String> {
        loop {
            if let Some(frame) = self.receiver.finish() {
                let committed = Command::Committed(self.permitted.job);
                self.permitted.model.deliver(committed).await;
                return self.send(&frame).await;
            }
            let room = self.applying.len() < MAX_CHUNKS_IN_FLIGHT as usize;
            let reading = room && !self.receiver.all_sent();
            let receiver = &mut self.receiver;
            let next = self
                .reader
                .next(&mut self.read, |header| receiver.check(header));
            tokio::select! {
                applied = self.applying.next(), if !self.applying.is_empty() => {
                    let Some((block, result)) = applied else { continue };
                    result?;
                    let ack = self.receiver.applied(block.section, &block.tokens);
                    self.send(&ack).await?;
                }
                // A beat for the sender, which would take a long step of the engine for silence.
                () = tokio::time::sleep(self.limits.handoff_beat), if !self.applying.is_empty() => {
                    let beat = self.receiver.beat();
                    self.send(&beat).await?;
                }
                frame = timeout(self.limits.handoff_silence, next), if reading => {
                    let frame = frame.map_err(|_| {
                        format!("the prefill node was silent for {} s", self.limits.handoff_silence.as_secs_f32())
                    })?;
                    let (header, payload) = frame.map_err(|e: WireError<ReceiverError>| e.to_string())?;
                    self.frame(&header, &payload)?;
                }
            }
        }
    }

    fn frame(&mut self, header: &Header, payload: &[u8]) -> Result<(), String> {
        match self
            .receiver
            .frame(header, payload)
            .map_err(|e| e.to_string())?
        {
            Step::Wait | Step::AllSent => Ok(()),
            Step::Apply(block) => {
                let applied = Applied {
                    section: block.section,
                    tokens: block.tokens.clone(),
                };
                let (reply, answer) = oneshot::channel();
                let apply = Command::Apply(self.permitted.job, Box::new(block), reply);
                self.permitted.model.command(apply).map_err(|e| e.message)?;
                self.applying.push_back(Box::pin(async move {
                    let result = answer.await;
                    (
                        applied,
                        result.unwrap_or_else(|_| Err("the engine has stopped".into())),
                    )
                }));
                Ok(())
            }
        }
    }
}
