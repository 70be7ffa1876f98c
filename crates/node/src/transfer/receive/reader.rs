//! The reader of the connection of a handoff: checks headers, reads rows into place, decodes.

use std::sync::{Arc, Mutex};

use tandem_cluster::ReadHalf;
use tandem_handoff::codec::{CodecError, Decoder};
use tandem_handoff::frame::{Header, Kind};
use tandem_handoff::receiver::{Inbound, Receiver, ReceiverError, Step};
use tokio::sync::mpsc;

use super::lock;
use crate::limits::Limits;
use crate::transfer::wire::{WireError, fill, fill_parts, read_header, read_payload};

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("connection to the prefill node: {0}")]
    Wire(#[from] WireError),
    #[error(transparent)]
    Protocol(#[from] ReceiverError),
    #[error("the decoder cannot be made: {0}")]
    Codec(#[from] CodecError),
}

impl Fault {
    /// True if another connection would not help: a rule was broken or the sender ended it.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Self::Wire(_) => false,
            Self::Protocol(e) => !e.is_damage(),
            Self::Codec(_) => true,
        }
    }
}

/// What a reader came upon, and for which generation of connections.
pub(super) struct StepOf {
    pub(super) generation: u32,
    pub(super) result: Result<Step, Fault>,
}

pub(super) struct Reader {
    read: ReadHalf,
    inbound: Inbound,
    receiver: Arc<Mutex<Receiver>>,
    steps: mpsc::Sender<StepOf>,
    limits: Limits,
    /// Encoded payloads, used again.
    scratch: Vec<u8>,
}

impl Reader {
    pub(super) const fn new(
        read: ReadHalf,
        inbound: Inbound,
        receiver: Arc<Mutex<Receiver>>,
        steps: mpsc::Sender<StepOf>,
        limits: Limits,
    ) -> Self {
        Self {
            read,
            inbound,
            receiver,
            steps,
            limits,
            scratch: Vec::new(),
        }
    }

    pub(super) const fn generation(&self) -> u32 {
        self.inbound.generation()
    }

    /// Reads until the connection ends; the last thing it says is why. It is never silent for long,
    /// because the sender beats.
    pub(super) async fn run(mut self) {
        let generation = self.generation();
        let mut decoder = match Decoder::new() {
            Ok(decoder) => decoder,
            Err(e) => return self.tell(generation, Err(e.into())).await,
        };
        // The first frame shows that the sender has heard the answer to its hello.
        let mut has_spoken = false;
        loop {
            let result = self.frame(&mut decoder).await;
            let over = result.is_err();
            if has_spoken && matches!(result, Ok(Step::Wait)) {
                continue;
            }
            has_spoken = true;
            self.tell(generation, result).await;
            if over {
                return;
            }
        }
    }

    async fn tell(&self, generation: u32, result: Result<Step, Fault>) {
        let step = StepOf { generation, result };
        let _ = self.steps.send(step).await;
    }

    async fn frame(&mut self, decoder: &mut Decoder) -> Result<Step, Fault> {
        let silence = self.limits.handoff_silence;
        let header = read_header(&mut self.read, Some(silence), silence).await?;
        self.inbound.check(&mut lock(&self.receiver), &header)?;
        if header.kind == Kind::Segment {
            self.segment(decoder, &header).await?;
            return Ok(self.inbound.complete(&mut lock(&self.receiver))?);
        }
        let payload = read_payload(&mut self.read, &header, silence).await?;
        let mut receiver = lock(&self.receiver);
        Ok(self
            .inbound
            .frame(&mut receiver, decoder, &header, &payload)?)
    }

    /// Reads a segment's rows into the block.
    async fn segment(&mut self, decoder: &mut Decoder, header: &Header) -> Result<(), Fault> {
        let silence = self.limits.handoff_silence;
        if let Some(rows) = self.inbound.rows() {
            let sum = fill_parts(&mut self.read, rows, silence).await?;
            return Ok(self.inbound.rows_read(&sum)?);
        }
        self.scratch.resize(header.payload_len as usize, 0);
        fill(&mut self.read, &mut self.scratch, silence).await?;
        if let Err(error) = self.inbound.decode(decoder, &self.scratch) {
            // A broken rule ends it before the owner takes the step.
            if !error.is_damage() {
                lock(&self.receiver).close(&error.to_string());
            }
            return Err(error.into());
        }
        Ok(())
    }
}
