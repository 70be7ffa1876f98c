//! A prefill node that the test plays itself, frame by frame.

use std::sync::Arc;

use tandem_engine::fake::{FakeConfig, FakeEngine};
use tandem_engine::{Compute, DecodeStep, KvCache, Sequence};
use tandem_handoff::codec::{Codec, Encoder};
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind, encode_frame};
use tandem_handoff::page::{Namespace, Origin};
use tandem_handoff::receipt::{Receipt, ReturnTicket};
use tandem_handoff::sender::{Offer, Outbound, Sender, SenderError, SenderState};
use tandem_handoff::{KvBlock, Section};
use tandem_proto::Ticket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cluster::{Deal, PATIENCE};

/// A commit with another manifest.
pub fn false_commit(commit: &[u8]) -> Vec<u8> {
    let header = Header::parse(commit[..HEADER_BYTES].try_into().unwrap()).unwrap();
    assert_eq!(header.kind, Kind::Commit);
    let mut payload = commit[HEADER_BYTES..].to_vec();
    // The last digit, before `"}`.
    let at = payload.len() - 3;
    payload[at] = if payload[at] == b'0' { b'1' } else { b'0' };
    let header = Header::control(Kind::Commit, header.handoff, header.sequence);
    encode_frame(header, &payload)
}

pub struct Handoff {
    pub stream: TcpStream,
    pub sender: Sender,
    pub outbound: Outbound,
    pub engine: FakeEngine,
    pub sequence: Sequence,
    tokens: Vec<u32>,
    kv_end: u32,
    hello: Vec<u8>,
}

impl Handoff {
    /// Says hello for a request and hears the answer.
    pub async fn dial(config: &FakeConfig, deal: &Deal, ticket: &Ticket) -> Result<Self, String> {
        let engine = FakeEngine::new(FakeConfig {
            gate: None,
            ..config.clone()
        });
        let contract = Arc::new(engine.contract().clone());
        let salt = deal.terms.salt.as_bytes();
        let namespace = Namespace::new(Arc::clone(&contract), salt, Origin::Exact);
        let kv_end = u32::try_from(deal.tokens.len()).unwrap() - 1;
        let offer = Offer {
            contract,
            handoff: ticket.handoff,
            ticket: ticket.secret.clone(),
            tokens: deal.tokens.clone(),
            continuation: 0,
            kv_end,
            pages: namespace.chain(&deal.tokens[..kv_end as usize]),
            step_bytes: 0,
            exact_end: kv_end,
        };
        Self::offer(engine, offer, deal.via.unwrap_or(ticket.port)).await
    }

    /// Says hello with an offer.
    pub async fn offer(mut engine: FakeEngine, offer: Offer, port: u16) -> Result<Self, String> {
        let (tokens, kv_end) = (offer.tokens.clone(), offer.kv_end);
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, hello) = Sender::new(offer).unwrap();
        let outbound = sender.outbound();
        let sequence = engine.open().unwrap();
        let mut handoff = Self {
            stream,
            sender,
            outbound,
            engine,
            sequence,
            tokens,
            kv_end,
            hello: hello.clone(),
        };
        handoff.write(&hello).await;
        handoff.hear().await?;
        Ok(handoff)
    }

    /// The first frame that was sent.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        // The node may close first; that is its right.
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next frame of the receiver.
    pub async fn hear(&mut self) -> Result<Kind, String> {
        let reading = async {
            let mut header = [0; HEADER_BYTES];
            let read = self.stream.read_exact(&mut header).await;
            read.map_err(|e| format!("closed: {e}"))?;
            let header = Header::parse(&header).map_err(|e| e.to_string())?;
            let mut payload = vec![0; header.payload_len as usize];
            let read = self.stream.read_exact(&mut payload).await;
            read.map_err(|e| format!("closed: {e}"))?;
            self.sender
                .receive(&header, &payload)
                .map_err(|e: SenderError| e.to_string())?;
            Ok(header.kind)
        };
        let heard = tokio::time::timeout(PATIENCE, reading).await;
        heard.expect("the node says nothing")
    }

    /// A block of the request, computed here.
    pub fn compute(&mut self, end: u32) -> KvBlock {
        let start = self.engine.held(self.sequence);
        let tokens = &self.tokens[start as usize..end as usize];
        self.engine.prefill(self.sequence, start, tokens).unwrap();
        let section = Section::Full;
        self.engine
            .export(self.sequence, section, start..end)
            .unwrap()
    }

    pub async fn block(&mut self, block: &KvBlock) {
        self.block_in(block, Codec::Raw).await;
    }

    pub async fn block_in(&mut self, block: &KvBlock, codec: Codec) {
        let mut cutter = self.sender.open(block).unwrap();
        let mut encoder = Encoder::new().unwrap();
        while let Some(segment) = cutter.next(&block.planes, codec, &mut encoder).unwrap() {
            let header = self.outbound.segment(&segment.header);
            self.write(&header).await;
            let rows = segment.parts().concat();
            self.write(&rows).await;
        }
        self.sender.close(block.bytes());
    }

    /// All blocks that the receiver lacks, each heard to be applied.
    pub async fn blocks(&mut self, chunk: u32) {
        let mut at = 0;
        while at < self.kv_end {
            let end = (at + chunk).min(self.kv_end);
            let block = self.compute(end);
            let have = self.sender.accepted().have_tokens;
            if end > have {
                let block = block.part(at.max(have)..end);
                self.block(&block).await;
                while self.sender.in_flight() > 0 {
                    self.hear().await.unwrap();
                }
            }
            at = end;
        }
        let section = Section::Window;
        if !self.sender.is_sent(section) {
            let window = self.sender.next().window..self.kv_end;
            let block = self.engine.export(self.sequence, section, window).unwrap();
            self.block(&block).await;
        }
    }

    /// Commits and hears that everything was applied.
    pub async fn commit(&mut self) {
        let frame = self.sender.commit().unwrap();
        let frame = self.outbound.control(&frame);
        self.write(&frame).await;
        while self.sender.state() != SenderState::Committed {
            self.hear().await.unwrap();
        }
    }

    /// Commits to other rows.
    pub async fn false_commit(&mut self) {
        let frame = self.sender.commit().unwrap();
        let frame = false_commit(&self.outbound.control(&frame));
        self.write(&frame).await;
    }

    /// Commits, and says something that is no receipt before it is heard that everything was applied.
    pub async fn commit_without_a_receipt(&mut self) {
        let frame = self.sender.commit().unwrap();
        let mut frames = self.outbound.control(&frame);
        let receipt = self.computed(None);
        let receipt = self.sender.receipt(&receipt).unwrap();
        let receipt = self.outbound.control(&receipt);
        let header = Header::parse(receipt[..HEADER_BYTES].try_into().unwrap()).unwrap();
        let header = Header::control(Kind::Receipt, header.handoff, header.sequence);
        frames.extend(encode_frame(header, b"nonsense"));
        self.write(&frames).await;
    }

    /// What is computed here for the last token of the prompt, whose rows have been sent.
    pub fn computed(&mut self, hand_back: Option<ReturnTicket>) -> Receipt {
        let step = DecodeStep {
            sequence: self.sequence,
            token: self.tokens[self.kv_end as usize],
            position: self.kv_end,
        };
        let logits = self.engine.decode(&[step]).unwrap();
        Receipt::of(&logits[0], hand_back)
    }

    pub async fn receipt(&mut self, receipt: &Receipt) {
        let frame = self.sender.receipt(receipt).unwrap();
        let frame = self.outbound.control(&frame);
        self.write(&frame).await;
    }

    /// Closes in order.
    pub async fn leave(mut self) {
        let _ = self.stream.shutdown().await;
        let mut rest = Vec::new();
        let reading = self.stream.read_to_end(&mut rest);
        let _ = tokio::time::timeout(PATIENCE, reading)
            .await
            .expect("the node keeps the connection open");
    }
}
