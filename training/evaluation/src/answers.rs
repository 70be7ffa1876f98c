//! Asks a model as a node does: chat template, chunked prefill, constrained greedy decoding.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tandem_corpus::Example;
use tandem_engine::chat::{ChatMessage, ChatTemplate};
use tandem_engine::constraint::ConstraintFactory;
use tandem_engine::generation::Generation;
use tandem_engine::{Capacity, Compute, DecodeStep, KvCache, KvEngine, Sequence, Token, Tokenizer};
use tandem_engine_llama::{LlamaEngine, LlamaOptions};
use tandem_grading::{Job, Layout, build_prompt, verdict_schema};
use tandem_proto::{FinishReason, Format, GenerationParams, SamplingParams};

/// Characters of one rationale, as in a run of the grading.
const RATIONALE_CHARS: u32 = 200;
/// Tokens of one answer.
const MAX_TOKENS: u32 = 700;
/// Tokens of prompt and answer.
const CONTEXT: u32 = 8_192;
const CHUNK: u32 = 512;

/// Tokens of the prompt of a job, as a node makes them.
pub fn prompt_tokens(
    template: &ChatTemplate,
    job: Job,
    example: &Example,
) -> anyhow::Result<Vec<Token>> {
    let prompt = build_prompt(
        (Layout::JobFirst, job),
        &example.rubric,
        &example.submission,
        None,
    );
    let messages = [
        ("system", prompt.system),
        ("user", format!("{}{}", prompt.shared, prompt.submission)),
    ];
    let messages = messages.map(|(role, content)| ChatMessage::new(role, content));
    Ok(template.tokens(&messages)?)
}

/// What a model said.
pub struct Answer {
    pub text: String,
    /// False if it was cut at [`MAX_TOKENS`].
    pub complete: bool,
}

/// A loaded model.
pub struct Asker {
    engine: LlamaEngine,
    template: ChatTemplate,
    constraints: ConstraintFactory,
}

impl Asker {
    pub fn load(path: &Path, threads: u32) -> anyhow::Result<Self> {
        let options = LlamaOptions {
            capacity: Capacity {
                sequences: 1,
                cached: 0,
                tokens_per_sequence: CONTEXT,
                prefill_tokens: CHUNK,
                microbatch_tokens: CHUNK,
            },
            threads,
            ..LlamaOptions::default()
        };
        let engine = LlamaEngine::load(path, &options)
            .with_context(|| format!("cannot load {}", path.display()))?;
        Ok(Self {
            template: ChatTemplate::new(engine.tokenizer())?,
            constraints: ConstraintFactory::new(engine.tokenizer())?,
            engine,
        })
    }

    pub fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        self.engine.tokenizer()
    }

    /// Tokens of the prompt of a job.
    pub fn prompt(&self, job: Job, example: &Example) -> anyhow::Result<Vec<Token>> {
        prompt_tokens(&self.template, job, example)
    }

    /// Greedy answer; that of the code analysis is held to the grading's schema.
    pub fn ask(&mut self, job: Job, example: &Example) -> anyhow::Result<Answer> {
        let tokens = self.prompt(job, example)?;
        let format = match job {
            Job::Feedback => Format::Text,
            Job::CodeAnalysis => Format::schema(
                "verdict",
                verdict_schema(&example.rubric, &example.submission, RATIONALE_CHARS),
            ),
        };
        let params = GenerationParams {
            sampling: SamplingParams {
                max_tokens: Some(MAX_TOKENS),
                ..SamplingParams::greedy()
            },
            format,
        };
        let mut generation = Generation::new(&params, self.tokenizer(), &self.constraints)?;
        let sequence = self.engine.open()?;
        let answer = self.decode(sequence, &tokens, &mut generation);
        self.engine.release(sequence);
        answer
    }

    fn decode(
        &mut self,
        sequence: Sequence,
        tokens: &[Token],
        generation: &mut Generation,
    ) -> anyhow::Result<Answer> {
        let (mut last, before) = tokens.split_last().context("the prompt is empty")?;
        let mut position = 0;
        for chunk in before.chunks(CHUNK as usize) {
            self.engine.prefill(sequence, position, chunk)?;
            position += u32::try_from(chunk.len())?;
        }
        let mut text = String::new();
        let mut step;
        loop {
            let logits = self.logits(sequence, *last, position)?;
            position += 1;
            step = generation.next(&logits)?;
            text.push_str(&step.text);
            if let Some(reason) = step.finished {
                let complete = reason == FinishReason::Stop;
                return Ok(Answer { text, complete });
            }
            last = &step.token;
        }
    }

    fn logits(
        &mut self,
        sequence: Sequence,
        token: Token,
        position: u32,
    ) -> anyhow::Result<Vec<f32>> {
        let step = DecodeStep {
            sequence,
            token,
            position,
        };
        let rows = self.engine.decode(&[step])?;
        rows.into_iter().next().context("the engine gave no logits")
    }

    /// Logits after each of the tokens.
    pub fn all_logits(&mut self, tokens: &[Token]) -> anyhow::Result<Vec<Vec<f32>>> {
        let sequence = self.engine.open()?;
        let rows = (0..)
            .zip(tokens)
            .map(|(position, token)| self.logits(sequence, *token, position))
            .collect();
        self.engine.release(sequence);
        rows
    }
}
