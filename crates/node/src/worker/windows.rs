//! Windows of models with sliding windows: copied out when the last chunk is computed or an answer is
//! complete, a slice between two steps of running generations, and put back to where an import puts them.
//!
//! A window cache is a ring: after a long prefill the window starts in its middle, while an imported one
//! starts at its first cell. The order of cells is the order of float sums, so a local prefill has to end
//! where a handoff would.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tandem_engine::{EngineError, KvEngine, Sequence};
use tandem_kv::{Contract, KvBlock, Section};

use super::jobs::{After, ExportStage, Job, Stage, Taking, Work, slice};
use super::{Worker, milliseconds};
use crate::job::{Computed, JobId};
use crate::send::Input;

/// What is done with a window when the last chunk is computed.
pub(super) enum Window {
    /// It is copied out.
    Out(CopyOut),
    /// It is put back.
    Back(Taking),
}

/// A window that is copied out.
pub(super) struct CopyOut {
    whole: Range<u32>,
    /// Of all window layers.
    row_bytes: u64,
    copied: Option<KvBlock>,
}

/// What a slice has led to.
enum Step {
    /// There is more to copy.
    More,
    /// The whole window is out.
    Out(Arc<KvBlock>),
    /// It is back.
    Back,
}

impl CopyOut {
    /// The window of a sequence that holds `[0, end)`; `None` if there is none.
    pub(super) fn of(contract: &Contract, end: u32) -> Option<Self> {
        (contract.has_window() && end > 0).then(|| Self {
            whole: contract.window_start(end)..end,
            row_bytes: contract.token_bytes(&contract.section_layers(Section::Window)),
            copied: None,
        })
    }

    /// Copies the next slice; gives the whole with the last one.
    fn step(
        &mut self,
        engine: &mut dyn KvEngine,
        sequence: Sequence,
    ) -> Result<Option<KvBlock>, EngineError> {
        let start = self
            .copied
            .as_ref()
            .map_or(self.whole.start, |c| c.tokens.end);
        let part = slice(start..self.whole.end, self.row_bytes);
        let mut rows = engine.export(sequence, Section::Window, part)?;
        match &mut self.copied {
            None => {
                // Otherwise a later slice would copy the earlier ones.
                rows.reserve(self.whole.len());
                self.copied = Some(rows);
            }
            Some(copied) => copied.append(rows),
        }
        let whole = &self.whole;
        Ok(self.copied.take_if(|copied| copied.tokens == *whole))
    }
}

impl Window {
    /// True once the whole window is out.
    pub(super) const fn is_out(&self) -> bool {
        matches!(self, Self::Back(_))
    }

    fn step(&mut self, engine: &mut dyn KvEngine, sequence: Sequence) -> Result<Step, EngineError> {
        match self {
            Self::Out(out) => {
                let Some(block) = out.step(engine, sequence)? else {
                    return Ok(Step::More);
                };
                let block = Arc::new(block);
                *self = Self::Back(Taking::new(Arc::clone(&block)));
                Ok(Step::Out(block))
            }
            Self::Back(taking) => {
                let part = taking.part();
                engine.import_part(sequence, &taking.block, part.clone())?;
                Ok(if taking.taken(&part) {
                    Step::Back
                } else {
                    Step::More
                })
            }
        }
    }
}

impl Worker {
    /// Copies a slice of the window of one job; false if there is none to copy.
    pub(super) fn window_step(&mut self) -> bool {
        let ready = |(id, job): (&JobId, &Job)| job.can_copy().then_some(*id);
        let Some(id) = self.jobs.iter().find_map(ready) else {
            return false;
        };
        let after = self.window_slice(id);
        self.go_on(id, after);
        true
    }

    fn window_slice(&mut self, id: JobId) -> Result<After, EngineError> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(After::Keep);
        };
        let (engine, sequence, kv_end) = (self.engine.as_mut(), job.sequence, job.kv_end());
        let begun = Instant::now();
        match &mut job.work {
            Work::Export(e) => {
                let ExportStage::Window { window, computed } = &mut e.stage else {
                    return Ok(After::Keep);
                };
                match window.step(engine, sequence)? {
                    Step::More => {}
                    Step::Out(block) => {
                        let chunk = last_chunk(block, kv_end, *computed, job.prefill_ms, e.receipt);
                        let delivered = e.chunks.try_send(chunk).is_ok();
                        // The decode node continues from an import, so whoever evaluates here does, too.
                        if !delivered || !e.receipt {
                            return Ok(After::End);
                        }
                    }
                    Step::Back => e.stage = ExportStage::Evaluating,
                }
            }
            Work::Generate(g) => {
                let Stage::Settling(window) = &mut g.stage else {
                    return Ok(After::Keep);
                };
                let step = window.step(engine, sequence)?;
                job.prefill_ms += milliseconds(begun);
                g.summary.local_prefill_ms = job.prefill_ms;
                if matches!(step, Step::Back) {
                    g.start_decoding(job.tokens[kv_end as usize], kv_end);
                }
            }
            Work::Retire {
                chunks,
                end,
                window: Some(window),
                ..
            } => {
                if let Some(block) = window.step(engine, sequence)? {
                    let chunk = last_chunk(Arc::new(block), *end, begun, 0.0, false);
                    // Whoever takes them may have gone.
                    let _ = chunks.try_send(chunk);
                    return Ok(After::End);
                }
            }
            Work::Retire { .. } => {}
        }
        Ok(After::Keep)
    }
}

/// The window, behind all other blocks.
fn last_chunk(
    window: Arc<KvBlock>,
    tokens: u32,
    computed: Instant,
    prefill_ms: f64,
    receipt_follows: bool,
) -> Input {
    Input::Chunk(Computed {
        blocks: vec![window],
        tokens,
        computed,
        prefill_ms,
        last: true,
        receipt_follows,
    })
}
