//! The KV rows of one fake sequence.

use std::ops::Range;

use half::f16;
use tandem_handoff::plane::plane_bytes;
use tandem_handoff::{Contract, KvBlock, LayerKind, Plane, PlaneKind, Section};

use super::tokenizer::{FAKE_EOS, is_printable};
use crate::tokenizer::Token;

/// Stored rows of one plane.
#[derive(Debug, Clone)]
struct Rows {
    layer: u32,
    kind: PlaneKind,
    section: Section,
    row_bytes: usize,
    /// Position of the first row.
    first: u32,
    data: Vec<u8>,
}

impl Rows {
    fn range(&self, tokens: &Range<u32>) -> &[u8] {
        let at = |position: u32| (position - self.first) as usize * self.row_bytes;
        &self.data[at(tokens.start)..at(tokens.end)]
    }

    /// Forgets all rows before a position.
    fn forget_before(&mut self, position: u32) {
        if position > self.first {
            let bytes = (position - self.first) as usize * self.row_bytes;
            self.data.drain(..bytes.min(self.data.len()));
            self.first = position;
        }
    }
}

/// All rows of one sequence. Window planes store the window only.
#[derive(Debug, Clone)]
pub struct Cache {
    seed: u64,
    window: u32,
    has_window: bool,
    planes: Vec<Rows>,
    /// Tokens in the full planes.
    full_end: u32,
    /// One past the last token of the window planes.
    window_end: u32,
    /// Hash of all rows of the full planes, in order of position.
    full_hash: u64,
}

impl Cache {
    /// An empty cache of the contract's shape.
    pub fn new(contract: &Contract, seed: u64) -> Self {
        let seed = fold(mix(seed), contract.weights.as_bytes());
        let planes = (0..).zip(&contract.layers).flat_map(|(layer, spec)| {
            let section = match spec.kind {
                LayerKind::Full => Section::Full,
                LayerKind::Window => Section::Window,
            };
            [PlaneKind::Key, PlaneKind::Value].map(|kind| Rows {
                layer,
                kind,
                section,
                row_bytes: plane_bytes(contract, layer, kind, 1)
                    .and_then(|bytes| usize::try_from(bytes).ok())
                    .unwrap_or(0),
                first: 0,
                data: Vec::new(),
            })
        });
        Self {
            seed,
            window: contract.window,
            has_window: contract.has_window(),
            planes: planes.collect(),
            full_end: 0,
            window_end: 0,
            full_hash: seed,
        }
    }

    /// Tokens that can be continued from.
    pub fn held(&self) -> u32 {
        if self.has_window && self.window_end != self.full_end {
            0
        } else {
            self.full_end
        }
    }

    /// Forgets full planes whose window never came.
    pub fn drop_incomplete(&mut self) {
        if self.held() == 0 {
            self.truncate(0);
        }
    }

    /// Forgets what comes behind so many tokens, and everything where a window would have to come back.
    pub fn truncate(&mut self, tokens: u32) {
        if tokens >= self.full_end && self.held() > 0 {
            return;
        }
        let kept = if self.has_window {
            0
        } else {
            tokens.min(self.full_end)
        };
        for rows in &mut self.planes {
            rows.data.truncate(kept as usize * rows.row_bytes);
            rows.first = 0;
        }
        self.full_end = kept;
        self.window_end = kept;
        self.full_hash = self.seed;
        (0..kept).for_each(|position| self.hash_full(position));
    }

    /// One past the last token of the full planes, complete or not.
    pub const fn full_end(&self) -> u32 {
        self.full_end
    }

    /// The same rows up to a position. The window is there at the end of all of them only.
    pub fn beginning(&self, tokens: u32) -> Self {
        let mut other = self.clone();
        if tokens == self.full_end {
            return other;
        }
        for rows in &mut other.planes {
            let kept = match rows.section {
                Section::Full => tokens as usize * rows.row_bytes,
                Section::Window => 0,
            };
            rows.data.truncate(kept);
            rows.first = 0;
        }
        other.full_end = tokens;
        other.window_end = if self.has_window { 0 } else { tokens };
        other.full_hash = self.seed;
        (0..tokens).for_each(|position| other.hash_full(position));
        other
    }

    /// Evaluates one token at the next position; gives its row of each plane: K and V of each layer.
    pub fn push(&mut self, token: Token) -> Vec<Vec<u8>> {
        let position = self.full_end;
        let state = mix(self.state() ^ mix((u64::from(token) << 32) | u64::from(position)));
        let mut given = Vec::new();
        for rows in &mut self.planes {
            let plane = u64::from(rows.layer) * 2 + u64::from(rows.kind == PlaneKind::Value);
            let row = row(mix(state ^ mix(plane)), rows.row_bytes);
            rows.data.extend_from_slice(&row);
            given.push(row);
        }
        self.full_end += 1;
        self.window_end = self.full_end;
        self.hash_full(position);
        self.forget();
        given
    }

    /// Layer and kind of each plane.
    pub fn planes(&self) -> impl Iterator<Item = (u32, PlaneKind)> {
        self.planes.iter().map(|rows| (rows.layer, rows.kind))
    }

    /// One logit per token id, from the stored rows. Printable characters and the end token are
    /// likely, other control tokens never win.
    pub fn logits(&self, vocabulary: u32) -> Vec<f32> {
        let state = self.state();
        let logit = |token: Token| {
            let bonus = match token {
                FAKE_EOS => 3.0,
                t if is_printable(t) => 4.0,
                t if t > 255 => -16.0,
                _ => 0.0,
            };
            unit(mix(state ^ mix(0x10_0000 + u64::from(token)))) * 8.0 - 4.0 + bonus
        };
        (0..vocabulary).map(logit).collect()
    }

    /// Copies rows out.
    pub fn export(&self, section: Section, tokens: Range<u32>) -> Result<KvBlock, String> {
        let held = self.held();
        if tokens.start > tokens.end || tokens.end > held {
            return Err(format!("export of {tokens:?} while {held} tokens are held"));
        }
        let window = held.saturating_sub(self.window)..held;
        if section == Section::Window && tokens.start < window.start {
            return Err(format!("export of {tokens:?}; the window is {window:?}"));
        }
        let planes = self.planes.iter().filter(|rows| rows.section == section);
        Ok(KvBlock {
            section,
            planes: planes
                .map(|rows| Plane {
                    layer: rows.layer,
                    kind: rows.kind,
                    data: rows.range(&tokens).to_vec().into(),
                })
                .collect(),
            tokens,
        })
    }

    /// Takes rows of a validated block in; on an error nothing has changed.
    pub fn import(&mut self, block: &KvBlock, tokens: &Range<u32>) -> Result<(), String> {
        let whole = &block.tokens;
        let window = self.full_end.saturating_sub(self.window)..self.full_end;
        let (fits, start) = match block.section {
            Section::Full => (true, self.full_end),
            // A window begins anew, or goes on.
            Section::Window if tokens.start == whole.start => (*whole == window, whole.start),
            Section::Window => (*whole == window, self.window_end),
        };
        if !fits || tokens.start != start || tokens.end > whole.end || tokens.is_empty() {
            return Err(format!(
                "tokens {tokens:?} of block {whole:?} of {:?}; {} full tokens are held, and the \
                 window up to {}",
                block.section, self.full_end, self.window_end
            ));
        }
        let planes = self
            .planes
            .iter_mut()
            .filter(|rows| rows.section == block.section);
        let part = block.part(tokens.clone());
        for (rows, plane) in planes.zip(&part.planes) {
            if block.section == Section::Window && tokens.start == whole.start {
                rows.first = tokens.start;
                rows.data.clear();
            }
            rows.data.extend_from_slice(&plane.data);
        }
        match block.section {
            Section::Window => self.window_end = tokens.end,
            Section::Full => {
                self.full_end = tokens.end;
                tokens.clone().for_each(|position| self.hash_full(position));
            }
        }
        Ok(())
    }

    /// Hash of everything that the next token attends to.
    fn state(&self) -> u64 {
        let end = self.full_end;
        let mut state = mix(self.full_hash ^ u64::from(end));
        let window = end.saturating_sub(self.window)..end;
        for rows in self.planes.iter().filter(|r| r.section == Section::Window) {
            state = fold(state, rows.range(&window));
        }
        state
    }

    fn hash_full(&mut self, position: u32) {
        let mut hash = mix(self.full_hash ^ u64::from(position));
        for rows in self.planes.iter().filter(|r| r.section == Section::Full) {
            hash = fold(hash, rows.range(&(position..position + 1)));
        }
        self.full_hash = hash;
    }

    /// Drops what has left the window.
    fn forget(&mut self) {
        let start = self.window_end.saturating_sub(self.window);
        let planes = self.planes.iter_mut();
        for rows in planes.filter(|r| r.section == Section::Window) {
            rows.forget_before(start);
        }
    }
}

/// Numbers between -1 and 1 as little-endian f16.
fn row(state: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 2)
        .flat_map(|i| f16::from_f32(unit(mix(state ^ mix(i))) * 2.0 - 1.0).to_le_bytes())
        .collect()
}

/// The finaliser of `SplitMix64` (Steele, Lea, Flood 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn fold(state: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(state, |state, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(state ^ u64::from_le_bytes(word))
    })
}

/// 24 bits as a number in `[0, 1)`.
fn unit(bits: u64) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "24 bits fit an f32 exactly")]
    let numerator = (bits >> 40) as f32;
    numerator / 16_777_216.0
}
