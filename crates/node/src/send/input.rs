//! What the engine gives, and what of it has to wait because the receiver has not answered.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use tandem_kv::KvBlock;
use tokio::sync::{mpsc, oneshot};

use super::Input;
use crate::job::{Begun, Command, Computed};
use crate::limits::MAX_EARLY_BYTES;
use crate::model::Model;

/// The chunks of a prefill.
pub(super) struct Inputs {
    computed: mpsc::Receiver<Input>,
    /// The model, whose engine may have paused for want of room.
    model: Option<Arc<Model>>,
    /// What came before the receiver answered.
    early: VecDeque<Input>,
    /// What it weighs.
    early_bytes: u64,
    /// The chunk behind that, which is being computed.
    begun: Option<Begun>,
    /// True if nothing more comes.
    is_over: bool,
}

impl Inputs {
    pub(super) fn new(computed: mpsc::Receiver<Input>, model: Option<Arc<Model>>) -> Self {
        Self {
            computed,
            model,
            early: VecDeque::new(),
            early_bytes: 0,
            begun: None,
            is_over: false,
        }
    }

    /// Does what has to be done before anything can be sent, and takes meanwhile what the engine gives, so that it
    /// computes on: chunks until they weigh [`MAX_EARLY_BYTES`].
    pub(super) async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = self.take_early(), if self.has_room() => {}
            }
        }
    }

    const fn has_room(&self) -> bool {
        !self.is_over && self.early_bytes < MAX_EARLY_BYTES
    }

    async fn take_early(&mut self) {
        let given = match &mut self.begun {
            Some(Begun { chunk, .. }) => {
                let chunk = chunk.await;
                // Its blocks come whole with it.
                self.begun = None;
                chunk.ok().map(Input::Chunk)
            }
            None => self.computed.recv().await,
        };
        self.wake();
        match given {
            Some(Input::Begun(begun)) => self.begun = Some(begun),
            Some(input) => {
                self.early_bytes += bytes(&input);
                self.early.push_back(input);
            }
            None => self.is_over = true,
        }
    }

    /// What the engine gives next, of the chunk that has been begun first; `None` if nothing more comes.
    pub(super) async fn next(
        &mut self,
        begun: &mut Option<oneshot::Receiver<Computed>>,
    ) -> Option<Input> {
        let given = match begun {
            Some(chunk) => {
                let chunk = chunk.await.ok();
                *begun = None;
                chunk.map(Input::Chunk)
            }
            None => match self.early.pop_front() {
                Some(input) => Some(input),
                None => match self.begun.take() {
                    Some(begun) => Some(Input::Begun(begun)),
                    None => self.computed.recv().await,
                },
            },
        };
        self.wake();
        given
    }

    /// A full queue wakes the engine anyway.
    fn wake(&self) {
        if let Some(model) = &self.model {
            let _ = model.command(Command::Wake);
        }
    }
}

/// Rows of a chunk. The window is made of blocks that have been counted.
fn bytes(input: &Input) -> u64 {
    match input {
        Input::Chunk(chunk) => chunk.blocks.iter().map(|b: &Arc<KvBlock>| b.bytes()).sum(),
        Input::Begun(_) | Input::Receipt(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tandem_kv::{Plane, PlaneKind, Section};
    use tokio::task::yield_now;

    use super::*;

    /// A chunk that ends with this token and weighs 64 MiB.
    fn chunk(end: u32) -> Computed {
        let plane = |kind| Plane {
            layer: 0,
            kind,
            data: vec![0; 32 << 20].into(),
        };
        let block = KvBlock {
            section: Section::Full,
            tokens: end - 128..end,
            planes: [PlaneKind::Key, PlaneKind::Value].map(plane).into(),
        };
        Computed {
            blocks: vec![Arc::new(block)],
            window: None,
            tokens: end,
            computed: Instant::now(),
            prefill_ms: 0.0,
            last: false,
            receipt_follows: false,
        }
    }

    fn end(input: Option<Input>) -> Option<u32> {
        match input {
            Some(Input::Chunk(chunk)) => Some(chunk.tokens),
            _ => None,
        }
    }

    #[tokio::test]
    async fn chunks_are_taken_before_the_answer_as_far_as_there_is_room() {
        let (give, computed) = mpsc::channel(1);
        let mut inputs = Inputs::new(computed, None);
        let ends: Vec<u32> = (1..=8).map(|i| i * 128).collect();
        let mut left = ends.iter();
        let mut given = Vec::new();
        // As long as room comes, and the other half has its turn.
        inputs
            .meanwhile(async {
                for _ in 0..100 {
                    if let Ok(room) = give.try_reserve() {
                        let end = *left.next().unwrap();
                        room.send(Input::Chunk(chunk(end)));
                        given.push(end);
                    }
                    yield_now().await;
                }
            })
            .await;
        // Four weigh as much as may be, and one waits in the channel.
        assert_eq!(given, ends[..5]);
        let giving = async {
            for end in left {
                give.send(Input::Chunk(chunk(*end))).await.unwrap();
            }
            drop(give);
        };
        let taking = async {
            let mut taken = Vec::new();
            while let Some(end) = end(inputs.next(&mut None).await) {
                taken.push(end);
            }
            taken
        };
        let ((), taken) = tokio::join!(giving, taking);
        assert_eq!(taken, ends);
    }

    #[tokio::test]
    async fn a_chunk_that_is_being_computed_goes_on_growing_behind_the_others() {
        let (give, computed) = mpsc::channel(4);
        let mut inputs = Inputs::new(computed, None);
        let begin = || {
            let (whole, chunk) = oneshot::channel();
            let blocks = Vec::new();
            (whole, Input::Begun(Begun { blocks, chunk }))
        };
        let ((first, first_begun), (second, second_begun)) = (begin(), begin());
        inputs
            .meanwhile(async {
                give.send(first_begun).await.unwrap();
                yield_now().await;
                first.send(chunk(128)).unwrap();
                for _ in 0..10 {
                    yield_now().await;
                }
                give.send(second_begun).await.unwrap();
                for _ in 0..10 {
                    yield_now().await;
                }
            })
            .await;
        let mut begun = None;
        assert_eq!(end(inputs.next(&mut begun).await), Some(128));
        let Some(Input::Begun(given)) = inputs.next(&mut begun).await else {
            panic!("it has been begun");
        };
        begun = Some(given.chunk);
        second.send(chunk(256)).unwrap();
        assert_eq!(end(inputs.next(&mut begun).await), Some(256));
        assert!(begun.is_none());
        // An engine that ends in the middle of a chunk.
        let (ended, begun_again) = begin();
        let ends = async {
            give.send(begun_again).await.unwrap();
            yield_now().await;
            drop((ended, give));
            for _ in 0..10 {
                yield_now().await;
            }
        };
        inputs.meanwhile(ends).await;
        assert!(inputs.next(&mut None).await.is_none());
    }
}
