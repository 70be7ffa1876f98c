//! What the engine gives, and what of it has to wait because the receiver has not answered.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::Input;
use crate::job::{Begun, Command, Computed};
use crate::limits::{MAX_ALL_EARLY_BYTES, MAX_EARLY_BYTES};
use crate::model::Model;

/// The chunks of a prefill.
pub(super) struct Inputs {
    computed: mpsc::Receiver<Input>,
    /// The model, whose engine may have paused for want of room.
    model: Option<Arc<Model>>,
    /// Of a prefill.
    weight: Option<Weight>,
    /// What came before the receiver answered, and what it weighs.
    early: VecDeque<(Input, u64)>,
    /// The chunk behind that, which is being computed.
    begun: Option<Begun>,
    /// True if nothing more comes.
    is_over: bool,
}

impl Inputs {
    pub(super) fn new(
        computed: mpsc::Receiver<Input>,
        model: Option<Arc<Model>>,
        early: Option<Arc<AtomicU64>>,
    ) -> Self {
        let weight = |all| Weight { all, own: 0 };
        Self {
            computed,
            model,
            weight: early.map(weight),
            early: VecDeque::new(),
            begun: None,
            is_over: false,
        }
    }

    /// Does what has to be done before anything can be sent, and takes meanwhile what the engine gives, so that it
    /// computes on: chunks as long as there is room for them; once there is none, no more. What is no prefill, an answer
    /// that is handed back, waits.
    pub(super) async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = self.take_early(), if self.has_room() => {}
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.is_over && self.weight.as_ref().is_some_and(Weight::has_room)
    }

    async fn take_early(&mut self) {
        let given = match &mut self.begun {
            Some(Begun { chunk, .. }) => {
                let chunk = chunk.await.ok();
                self.begun = None;
                // Its blocks come whole with it.
                chunk.map(|chunk| {
                    let bytes = self.weigh(&chunk);
                    (Input::Begun(Begun::computed(chunk)), bytes)
                })
            }
            None => match self.computed.recv().await {
                Some(Input::Begun(begun)) => {
                    self.begun = Some(begun);
                    return self.wake();
                }
                Some(Input::Chunk(chunk)) => {
                    let bytes = self.weigh(&chunk);
                    Some((Input::Chunk(chunk), bytes))
                }
                other => other.map(|input| (input, 0)),
            },
        };
        self.wake();
        self.is_over = given.is_none();
        self.early.extend(given);
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
                Some((input, bytes)) => {
                    if let Some(weight) = &mut self.weight {
                        weight.less(bytes);
                    }
                    Some(input)
                }
                None => match self.begun.take() {
                    Some(begun) => Some(Input::Begun(begun)),
                    None => self.computed.recv().await,
                },
            },
        };
        self.wake();
        given
    }

    fn weigh(&mut self, chunk: &Computed) -> u64 {
        self.weight.as_mut().map_or(0, |weight| weight.add(chunk))
    }

    /// A full queue wakes the engine anyway.
    fn wake(&self) {
        if let Some(model) = &self.model {
            let _ = model.command(Command::Wake);
        }
    }
}

/// What came early, of one prefill and of all of a node.
struct Weight {
    all: Arc<AtomicU64>,
    own: u64,
}

impl Weight {
    fn has_room(&self) -> bool {
        self.own < MAX_EARLY_BYTES && self.all.load(Ordering::Relaxed) < MAX_ALL_EARLY_BYTES
    }

    /// Its rows; the window is there twice, in blocks and as a whole.
    fn add(&mut self, chunk: &Computed) -> u64 {
        let blocks = chunk.blocks.iter().chain(&chunk.window);
        let bytes = blocks.map(|block| block.bytes()).sum();
        self.own += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    fn less(&mut self, bytes: u64) {
        self.own -= bytes;
        self.all.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.less(self.own);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tandem_kv::{KvBlock, Plane, PlaneKind, Section};
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
            computed_tokens: 0,
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

    /// Gives chunks one after the other, to each the other half's turn; tells how many there was room for.
    async fn given_early(inputs: &mut Inputs, give: &mpsc::Sender<Input>, ends: &[u32]) -> usize {
        let mut given = 0;
        let giving = async {
            for _ in 0..100 {
                if given < ends.len()
                    && let Ok(room) = give.try_reserve()
                {
                    room.send(Input::Chunk(chunk(ends[given])));
                    given += 1;
                }
                yield_now().await;
            }
        };
        inputs.meanwhile(giving).await;
        given
    }

    fn ends() -> Vec<u32> {
        (1..=8).map(|i| i * 128).collect()
    }

    #[tokio::test]
    async fn chunks_are_taken_before_the_answer_as_far_as_there_is_room() {
        let all = Arc::new(AtomicU64::new(0));
        let (give, computed) = mpsc::channel(1);
        let mut inputs = Inputs::new(computed, None, Some(Arc::clone(&all)));
        let ends = ends();
        // Four weigh as much as may be, and one waits in the channel.
        let given = given_early(&mut inputs, &give, &ends).await;
        assert_eq!((given, all.load(Ordering::Relaxed)), (5, MAX_EARLY_BYTES));
        let giving = async {
            for end in &ends[given..] {
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
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn there_is_room_for_all_prefills_together_and_none_for_answers() {
        let all = Arc::new(AtomicU64::new(MAX_ALL_EARLY_BYTES - 1));
        for (early, room) in [(Some(&all), 1), (Some(&all), 0), (None, 0)] {
            let (give, computed) = mpsc::channel(1);
            let mut inputs = Inputs::new(computed, None, early.cloned());
            let given = given_early(&mut inputs, &give, &ends()).await;
            assert_eq!(given, room + 1);
            if room > 0 {
                // Until it has been sent, or given up.
                let (_, full) = mpsc::channel(1);
                let other = Inputs::new(full, None, Some(Arc::clone(&all)));
                assert!(!other.has_room());
                drop(inputs);
                assert_eq!(all.load(Ordering::Relaxed), MAX_ALL_EARLY_BYTES - 1);
                all.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[tokio::test]
    async fn a_chunk_that_is_being_computed_goes_on_growing_behind_the_others() {
        let all = Arc::new(AtomicU64::new(0));
        let (give, computed) = mpsc::channel(4);
        let mut inputs = Inputs::new(computed, None, Some(all));
        let begin = || {
            let (whole, chunk) = oneshot::channel();
            let begun = Begun {
                blocks: Vec::new(),
                chunk,
                last: false,
            };
            (whole, Input::Begun(begun))
        };
        let pause = async || {
            for _ in 0..10 {
                yield_now().await;
            }
        };
        let ((first, first_begun), (second, second_begun)) = (begin(), begin());
        inputs
            .meanwhile(async {
                give.send(first_begun).await.unwrap();
                pause().await;
                first.send(chunk(128)).unwrap();
                pause().await;
                give.send(second_begun).await.unwrap();
                pause().await;
            })
            .await;
        // Whoever takes them counts those that have been begun.
        let mut second = Some(second);
        for whole in [128, 256] {
            let Some(Input::Begun(given)) = inputs.next(&mut None).await else {
                panic!("it has been begun");
            };
            if whole == 256 {
                second.take().unwrap().send(chunk(256)).unwrap();
            }
            let mut begun = Some(given.chunk);
            assert_eq!(end(inputs.next(&mut begun).await), Some(whole));
            assert!(begun.is_none());
        }
        // An engine that ends in the middle of a chunk.
        let (ended, begun_again) = begin();
        let ends = async {
            give.send(begun_again).await.unwrap();
            pause().await;
            drop((ended, give));
            pause().await;
        };
        inputs.meanwhile(ends).await;
        assert!(inputs.next(&mut None).await.is_none());
    }
}
