//! Which codec the next block travels in.

use std::time::{Duration, Instant};

use tandem_kv::Section;
use tandem_kv::adaptive::{Adaptive, CodecRates, Conditions, DecodeRates, Quality, REVIEW_BYTES};
use tandem_kv::codec::Codec;

use super::links::{Learnt, Memory, Waited};
use super::stream::Done;
use crate::job::Computed;
use crate::limits::{BELIEVED_BYTES, LINK_BYTES};
use crate::rate::{Counted, Rate};
use crate::wire::Drained;

/// How the codec is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Always this one.
    Fixed(Codec),
    /// By [`Adaptive`], within a quality.
    Auto(Quality),
}

/// What a handoff has measured of itself.
#[derive(Debug)]
pub struct Measured {
    choice: Choice,
    adaptive: Adaptive,
    rates: CodecRates,
    /// Bytes of rows and time of the last chunks.
    produced: Rate,
    /// What all connections together carried while some waited for the link; what handoffs before could not
    /// believe comes first.
    link: Waited,
    /// When some waited.
    waiting: Counted,
    /// All bytes that arrived then, in this handoff.
    drained: u64,
    /// With so many the choice is made again.
    doubled: u64,
    /// The rate of the link, from a handoff before; what is measured here is better.
    known: Option<f64>,
    /// True if rows have come that were held already.
    held: bool,
    /// True if rows of the window have come.
    in_window: bool,
    /// Payload bytes, and time during which some were on their way; counted when none is any more, because
    /// what was written may still be in buffers, and if they were many.
    carried: Rate,
    /// Payload bytes acknowledged.
    acknowledged: u64,
    /// Payload bytes written since the last acknowledgement.
    on_their_way: u64,
    /// Since when some have been on their way, and how many were written since.
    busy_since: Option<Instant>,
    busy_bytes: u64,
    computed: Option<f64>,
    /// Tokens computed so far.
    tokens: u32,
}

impl Measured {
    /// Nothing measured yet, but what handoffs before have.
    #[must_use]
    pub fn new(choice: &Choice, memory: Memory) -> Self {
        let quality = match choice {
            Choice::Fixed(_) => Quality::Lossless,
            Choice::Auto(quality) => *quality,
        };
        Self {
            choice: *choice,
            adaptive: Adaptive::new(quality),
            rates: CodecRates::default(),
            produced: Rate::default(),
            link: memory.little,
            waiting: Counted::default(),
            drained: 0,
            doubled: 0,
            known: memory.rate,
            held: false,
            in_window: false,
            carried: Rate::default(),
            acknowledged: 0,
            on_their_way: 0,
            busy_since: None,
            busy_bytes: 0,
            computed: None,
            tokens: 0,
        }
    }

    /// The codec of the next block.
    #[must_use]
    pub const fn codec(&self) -> Codec {
        match self.choice {
            Choice::Fixed(codec) => codec,
            Choice::Auto(_) => self.adaptive.codec(),
        }
    }

    /// False if the codec of the next chunk's blocks of a section is to be chosen when they are computed, by how fast that
    /// is: of the first chunk, and of the first rows of the window.
    #[must_use]
    pub fn may_grow(&self, section: Section) -> bool {
        let is_measured =
            self.produced.per_second() > 0.0 && (self.in_window || section == Section::Full);
        matches!(self.choice, Choice::Fixed(_)) || self.goodput().is_none() || is_measured
    }

    /// The engine has given a chunk.
    pub fn produced(&mut self, chunk: &Computed) {
        let has_window = chunk.blocks.iter().any(|b| b.section == Section::Window);
        if has_window && !std::mem::replace(&mut self.in_window, true) {
            // From here on each token has rows of all layers, and not of the full ones alone.
            self.produced = Rate::default();
            self.adaptive.start_over();
        }
        let tokens = chunk.tokens.saturating_sub(self.tokens);
        self.tokens = chunk.tokens;
        let before = self.computed.replace(chunk.prefill_ms).unwrap_or(0.0);
        let spent = Duration::try_from_secs_f64((chunk.prefill_ms - before) / 1e3);
        // KV that was held already costs no time and is not a production.
        if let Ok(spent) = spent
            && !spent.is_zero()
            && tokens > 0
        {
            if self.held && self.produced.per_second() == 0.0 {
                // What was chosen for rows that are held is not for those that are computed.
                self.adaptive.start_over();
            }
            self.produced.add(made(chunk, tokens), spent);
        } else {
            self.held = true;
        }
        self.review();
    }

    /// A block has been written.
    pub(super) fn block(&mut self, done: &Done) {
        self.written(done.wire_bytes, &done.drained);
        if done.codec == Codec::Raw || done.encoding.is_zero() || done.wire_bytes == 0 {
            return;
        }
        let rate = match done.codec {
            Codec::Raw => return,
            Codec::Plane => &mut self.rates.plane,
            Codec::Q8 => &mut self.rates.q8,
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let (raw, wire) = (done.raw_bytes as f64, done.wire_bytes as f64);
        rate.ratio = raw / wire;
        rate.encode = raw / done.encoding.as_secs_f64();
    }

    /// There is a new connection, to a receiver that decodes as fast as it says.
    pub fn connected(&mut self, receiver: &DecodeRates) {
        self.rates.decoded_at(receiver);
        // What was on its way over the old one is written again.
        (self.busy_since, self.busy_bytes, self.on_their_way) = (None, 0, 0);
    }

    /// Payload bytes have been written to a connection.
    pub fn written(&mut self, wire_bytes: u64, drained: &Drained) {
        self.on_their_way += wire_bytes;
        self.busy_bytes += wire_bytes;
        self.arrived(drained);
    }

    /// Bytes have arrived over a connection while it was waited for. Connections share the link: time in which
    /// several are waited for counts once.
    pub fn arrived(&mut self, drained: &Drained) {
        if drained.bytes == 0 {
            return;
        }
        self.drained += drained.bytes;
        self.link.bytes += drained.bytes;
        for span in &drained.spans {
            self.link.time += self.waiting.add(span.clone());
        }
        // One connection may have told and another not yet, and a new one is slow: what is chosen first is chosen
        // again each time that twice as much is known.
        let is_early = self.doubled < REVIEW_BYTES;
        if is_early && self.has_measured() && self.drained >= self.doubled {
            if self.doubled == 0 {
                self.adaptive.start_over();
            } else {
                self.adaptive.look_again();
            }
            self.doubled = self.drained * 2;
        }
        // The link may change during a long handoff.
        if self.link.bytes >= LINK_BYTES {
            self.link.bytes /= 2;
            self.link.time /= 2;
        }
    }

    /// A block has been given to a connection.
    pub fn opened(&mut self, now: Instant) {
        self.busy_since.get_or_insert(now);
    }

    /// Blocks have been acknowledged; `idle` if none is on its way any more.
    pub fn acknowledged(&mut self, now: Instant, idle: bool) {
        let Some(since) = self.busy_since else { return };
        if idle {
            self.busy_since = None;
            let carried = std::mem::take(&mut self.busy_bytes);
            // What is little may have gone faster than the link can carry more: a shaper lets that much through at once.
            if carried >= BELIEVED_BYTES {
                self.carried
                    .add(carried, now.saturating_duration_since(since));
            }
        }
        let bytes = std::mem::take(&mut self.on_their_way);
        self.adaptive.acknowledged(bytes);
        self.acknowledged += bytes;
        self.review();
    }

    fn has_measured(&self) -> bool {
        self.link.is_enough(self.known.is_none())
    }

    /// Bytes per second of the link; `None` while nothing has had to wait for it.
    ///
    /// What arrives while a writer waits is its rate, however busy the engine at its end
    /// is. What is acknowledged in the time in which something is on its way is less than it can carry,
    /// because that counts the whole path: encoder, link, decoder and engine.
    fn goodput(&self) -> Option<f64> {
        let measured = self.has_measured().then(|| self.link.per_second());
        let rate = measured.or(self.known)?;
        Some(rate.max(self.carried.per_second()))
    }

    /// What there is to remember for the next handoff over this link.
    #[must_use]
    pub fn learnt(&self) -> Learnt {
        let enough = self.codec() == Codec::Raw && self.acknowledged >= BELIEVED_BYTES;
        if enough && self.free().is_some() {
            return Learnt::Fast;
        }
        let is_new =
            |rate: &f64| self.has_measured() || self.known.is_some_and(|known| *rate > known);
        let rate = self.goodput().filter(is_new);
        rate.map_or(Learnt::Nothing, Learnt::Rate)
    }

    /// What is left for the next handoff of what was measured: all of it, if it is too little to be believed.
    #[must_use]
    pub fn little(&self) -> Waited {
        if self.has_measured() {
            Waited::default()
        } else {
            self.link
        }
    }

    /// Bytes that went through, if seldom something waited.
    #[must_use]
    pub const fn free(&self) -> Option<u64> {
        if self.drained <= self.acknowledged / 8 {
            Some(self.acknowledged)
        } else {
            None
        }
    }

    fn review(&mut self) {
        if matches!(self.choice, Choice::Fixed(_)) || !self.adaptive.is_due() {
            return;
        }
        let Some(goodput) = self.goodput() else {
            return;
        };
        let production = match self.produced.per_second() {
            rate if rate > 0.0 => rate,
            _ if self.held => f64::INFINITY,
            _ => return,
        };
        let conditions = Conditions {
            production,
            goodput,
            rates: self.rates,
        };
        let before = self.adaptive.codec();
        let codec = self.adaptive.review(&conditions);
        if codec != before {
            tracing::info!(
                %before, %codec, goodput, production,
                "KV travels in another codec from here on"
            );
        }
    }
}

/// Bytes of rows that are made in the time in which a chunk of so many tokens is computed, by the bytes a token
/// of each section: the first chunk of the window has rows in the window layers of fewer tokens, or, behind
/// tokens that were held, of more.
fn made(chunk: &Computed, tokens: u32) -> u64 {
    let of = |section| {
        let blocks = chunk.blocks.iter().filter(|b| b.section == section);
        let (bytes, rows) = blocks.fold((0, 0), |(bytes, rows), b| {
            (bytes + b.bytes(), rows + u64::from(b.len()))
        });
        bytes * u64::from(tokens) / rows.max(1)
    };
    of(Section::Full) + of(Section::Window)
}
