//! KV of a prompt from one sequence of an engine to another, through a codec.

use std::path::Path;

use anyhow::Context;
use tandem_corpus::Example;
use tandem_engine::chat::ChatTemplate;
use tandem_engine::{Capacity, Compute, DecodeStep, KvCache, KvEngine, Sequence, Token};
use tandem_engine_llama::{LlamaEngine, LlamaOptions};
use tandem_grading::Job;
use tandem_handoff::codec::{Codec, Decoder, Encoder, RunSpec};
use tandem_handoff::{Contract, KvBlock, Plane, Section};

use tandem_evaluation::prompt_tokens;

/// Tokens of prompt and answer.
const CONTEXT: u32 = 4_096;
const CHUNK: u32 = 512;

/// A prompt and the answer that is read after it.
pub struct Prompt {
    tokens: Vec<Token>,
    answer: Vec<Token>,
}

impl Prompt {
    pub fn of(subject: &Subject, job: Job, example: &Example) -> anyhow::Result<Self> {
        let answer = match job {
            Job::CodeAnalysis => &example.analysis,
            Job::Feedback => &example.feedback,
        };
        Ok(Self {
            tokens: prompt_tokens(&subject.template, job, example)?,
            answer: subject.engine.tokenizer().encode(answer, false),
        })
    }
}

/// A model with room for two sequences: one prefills, the other takes KV.
pub struct Subject {
    engine: LlamaEngine,
    template: ChatTemplate,
    encoder: Encoder,
    decoder: Decoder,
}

impl Subject {
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let options = LlamaOptions {
            capacity: Capacity {
                sequences: 2,
                cached: 0,
                tokens_per_sequence: CONTEXT,
                prefill_tokens: CHUNK,
                microbatch_tokens: CHUNK,
            },
            ..LlamaOptions::default()
        };
        let engine = LlamaEngine::load(path, &options)
            .with_context(|| format!("cannot load {}", path.display()))?;
        Ok(Self {
            template: ChatTemplate::new(engine.tokenizer())?,
            encoder: Encoder::new()?,
            decoder: Decoder::new()?,
            engine,
        })
    }

    pub fn contract(&self) -> &Contract {
        self.engine.contract()
    }

    /// The KV of all tokens of the prompt but the last.
    pub fn prefill(&mut self, prompt: &Prompt) -> anyhow::Result<Vec<KvBlock>> {
        let sequence = self.engine.open()?;
        let blocks = self.export(sequence, prompt);
        self.engine.release(sequence);
        blocks
    }

    fn export(&mut self, sequence: Sequence, prompt: &Prompt) -> anyhow::Result<Vec<KvBlock>> {
        let (_, before) = prompt.tokens.split_last().context("the prompt is empty")?;
        let mut blocks = Vec::new();
        let mut position = 0;
        for chunk in before.chunks(CHUNK as usize) {
            self.engine.prefill(sequence, position, chunk)?;
            let end = position + u32::try_from(chunk.len())?;
            blocks.push(self.engine.export(sequence, Section::Full, position..end)?);
            position = end;
        }
        if self.contract().has_window() && position > 0 {
            let window = self.contract().window_start(position)..position;
            blocks.push(self.engine.export(sequence, Section::Window, window)?);
        }
        Ok(blocks)
    }

    /// What arrives of the blocks, and how many bytes travel.
    pub fn through(
        &mut self,
        codec: Codec,
        blocks: &[KvBlock],
    ) -> anyhow::Result<(Vec<KvBlock>, u64)> {
        let mut encoded = 0;
        let mut bytes = Vec::new();
        let mut arrived = Vec::new();
        for block in blocks {
            let mut planes = Vec::new();
            for plane in &block.planes {
                let run = run_of(self.engine.contract(), block, plane)?;
                bytes.clear();
                self.encoder.encode(codec, &run, &plane.data, &mut bytes)?;
                let mut data = vec![0_u8; plane.data.len()];
                let taken = self.decoder.decode(codec, &run, &bytes, &mut data)?;
                anyhow::ensure!(taken == bytes.len(), "{codec} left bytes over");
                encoded += bytes.len() as u64;
                let data = data.into();
                planes.push(Plane { data, ..*plane });
            }
            arrived.push(KvBlock {
                planes,
                tokens: block.tokens.clone(),
                section: block.section,
            });
        }
        Ok((arrived, encoded))
    }

    /// Logits before each token of the answer, read after KV that came from elsewhere.
    pub fn read_answer(
        &mut self,
        prompt: &Prompt,
        blocks: &[KvBlock],
    ) -> anyhow::Result<Vec<Vec<f32>>> {
        let sequence = self.engine.open()?;
        let rows = self.decode(sequence, prompt, blocks);
        self.engine.release(sequence);
        rows
    }

    fn decode(
        &mut self,
        sequence: Sequence,
        prompt: &Prompt,
        blocks: &[KvBlock],
    ) -> anyhow::Result<Vec<Vec<f32>>> {
        for block in blocks {
            self.engine.import(sequence, block)?;
        }
        let last = prompt.tokens.last().context("the prompt is empty")?;
        let (_, read) = prompt.answer.split_last().context("the answer is empty")?;
        let start = u32::try_from(prompt.tokens.len() - 1)?;
        let mut rows = Vec::new();
        for (position, token) in (start..).zip(std::iter::once(last).chain(read)) {
            let step = DecodeStep {
                sequence,
                token: *token,
                position,
            };
            rows.extend(self.engine.decode(&[step])?);
        }
        Ok(rows)
    }
}

/// The run that a plane of a block is.
pub fn run_of(contract: &Contract, block: &KvBlock, plane: &Plane) -> anyhow::Result<RunSpec> {
    RunSpec::of(contract, plane.layer, plane.kind, block.len())
        .with_context(|| format!("the contract has no layer {}", plane.layer))
}
