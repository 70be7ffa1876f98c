//! llama.cpp's sequence state from and to neutral planes.
//!
//! Layout (llama.cpp 0.6.0-dev, state version 4, `llama_kv_cache::state_write`): a header of magic
//! and sequence id, then one section per cache. A section lists cells (position, one sequence id),
//! then per layer of that cache the K rows, then the V rows. The blob has no version, identity or
//! checksum and is parsed by C++, so it is only ever built here, from checked planes, and never
//! comes from the network.

use std::ops::Range;

use tandem_handoff::plane::row_range;
use tandem_handoff::{Contract, KvBlock, Plane, PlaneKind, Section};

/// `io_magic` of the in-memory format.
const MAGIC: u32 = 0xaf14_3cd8;
/// `GGML_TYPE_F16`.
const TYPE_F16: i32 = 1;
/// Largest blob that is read, in cells per section.
const MAX_CELLS: u32 = tandem_handoff::limits::MAX_TOKENS;

/// A blob that does not have the expected form: another llama.cpp, or a cache that the contract
/// does not describe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("llama.cpp state, {at}: {reason}")]
pub struct BlobError {
    /// Where in the blob.
    pub at: &'static str,
    /// What was found.
    pub reason: String,
}

/// A parsed section: positions of its cells and the byte ranges of its rows.
#[derive(Debug)]
pub struct Cells {
    /// Position of each cell, in cell order.
    pub positions: Vec<u32>,
    /// K of each layer of the section.
    keys: Vec<Rows>,
    /// V of each layer of the section.
    values: Vec<Rows>,
}

#[derive(Debug)]
struct Rows {
    row_bytes: usize,
    range: Range<usize>,
}

/// The sections of a blob in order, given the contract and whether it holds only the window.
fn sections(contract: &Contract, only_window: bool) -> Vec<Section> {
    match (contract.has_window(), only_window) {
        (false, _) => vec![Section::Full],
        (true, true) => vec![Section::Window],
        (true, false) => vec![Section::Full, Section::Window],
    }
}

/// Reads a blob that llama.cpp wrote for this contract.
///
/// # Errors
/// If a count, type, row size or the total length is not what the contract says.
pub fn parse(
    blob: &[u8],
    contract: &Contract,
    only_window: bool,
) -> Result<Vec<(Section, Cells)>, BlobError> {
    let mut cursor = Cursor { blob, at: 0 };
    expect("magic", cursor.u32()?, MAGIC)?;
    cursor.i32()?;
    let mut out = Vec::new();
    for section in sections(contract, only_window) {
        out.push((section, section_cells(&mut cursor, contract, section)?));
    }
    if cursor.at != blob.len() {
        return Err(BlobError {
            at: "end",
            reason: format!("{} unread bytes", blob.len() - cursor.at),
        });
    }
    Ok(out)
}

fn section_cells(
    cursor: &mut Cursor<'_>,
    contract: &Contract,
    section: Section,
) -> Result<Cells, BlobError> {
    expect("n_stream", cursor.u32()?, 1)?;
    let count = cursor.u32()?;
    let mut cells = Cells {
        positions: Vec::new(),
        keys: Vec::new(),
        values: Vec::new(),
    };
    if count == 0 {
        return Ok(cells);
    }
    if count > MAX_CELLS {
        return Err(BlobError {
            at: "cell_count",
            reason: count.to_string(),
        });
    }
    for _ in 0..count {
        let position = cursor.i32()?;
        expect("n_seq_id", cursor.u32()?, 1)?;
        cursor.i32()?;
        cells
            .positions
            .push(u32::try_from(position).map_err(|_| BlobError {
                at: "pos",
                reason: position.to_string(),
            })?);
    }
    let layers = contract.section_layers(section);
    expect("v_trans", cursor.u32()?, 0)?;
    expect(
        "n_layer",
        cursor.u32()?,
        u32::try_from(layers.len()).unwrap_or(0),
    )?;
    expect("n_rot_k", cursor.u32()?, 0)?;
    expect("n_rot_v", cursor.u32()?, 0)?;
    for &layer in &layers {
        let rows = rows(cursor, contract, layer, PlaneKind::Key, count)?;
        cells.keys.push(rows);
    }
    for &layer in &layers {
        let rows = rows(cursor, contract, layer, PlaneKind::Value, count)?;
        cells.values.push(rows);
    }
    Ok(cells)
}

fn rows(
    cursor: &mut Cursor<'_>,
    contract: &Contract,
    layer: u32,
    kind: PlaneKind,
    count: u32,
) -> Result<Rows, BlobError> {
    expect("ggml_type", cursor.i32()?, TYPE_F16)?;
    let row = row_bytes(contract, layer, kind);
    expect("row_bytes", cursor.u64()?, row as u64)?;
    let range = cursor.skip(row * count as usize)?;
    Ok(Rows {
        row_bytes: row,
        range,
    })
}

fn row_bytes(contract: &Contract, layer: u32, kind: PlaneKind) -> usize {
    tandem_handoff::plane::plane_bytes(contract, layer, kind, 1)
        .and_then(|b| usize::try_from(b).ok())
        .unwrap_or(0)
}

/// Copies rows out of a parsed section into a block, ordered by position. Cells of other positions
/// are left out: a window cache may still hold the token before the window, or have recycled it.
///
/// # Errors
/// If a position of `tokens` is missing or there twice.
pub fn to_block(
    blob: &[u8],
    cells: &Cells,
    contract: &Contract,
    section: Section,
    tokens: Range<u32>,
) -> Result<KvBlock, BlobError> {
    let cells_of_tokens = cells.positions.iter().copied().zip(0..);
    let mut order: Vec<(u32, usize)> = cells_of_tokens
        .filter(|(position, _)| tokens.contains(position))
        .collect();
    order.sort_unstable();
    if !order.iter().map(|(p, _)| *p).eq(tokens.clone()) {
        return Err(BlobError {
            at: "pos",
            reason: format!(
                "{} cells do not cover tokens {}..{} once each",
                order.len(),
                tokens.start,
                tokens.end
            ),
        });
    }
    let mut planes = Vec::new();
    for (i, layer) in contract.section_layers(section).into_iter().enumerate() {
        let pair = [
            (PlaneKind::Key, &cells.keys),
            (PlaneKind::Value, &cells.values),
        ];
        for (kind, rows) in pair {
            let data = rows
                .get(i)
                .map_or_else(Vec::new, |r| gather(blob, r, &order));
            let data = data.into();
            planes.push(Plane { layer, kind, data });
        }
    }
    Ok(KvBlock {
        section,
        tokens,
        planes,
    })
}

fn gather(blob: &[u8], rows: &Rows, order: &[(u32, usize)]) -> Vec<u8> {
    let bytes = &blob[rows.range.clone()];
    let row = rows.row_bytes;
    if let (Some((_, first)), Some((_, last))) = (order.first(), order.last())
        && order.windows(2).all(|w| w[1].1 == w[0].1 + 1)
    {
        return bytes[first * row..(last + 1) * row].to_vec();
    }
    let mut out = Vec::with_capacity(order.len() * row);
    for (_, cell) in order {
        out.extend_from_slice(&bytes[cell * row..(cell + 1) * row]);
    }
    out
}

/// Builds the blob that imports `tokens` of a block, which must be some of its tokens, in `out`, which is emptied
/// before. The block must have been validated against the contract.
///
/// A full block gets an empty window section; a window block is to be imported as "partial only".
pub fn from_block(out: &mut Vec<u8>, block: &KvBlock, tokens: &Range<u32>, contract: &Contract) {
    let only_window = block.section == Section::Window;
    let rows = block.bytes() / u64::from(block.len().max(1)) + 12;
    let capacity = usize::try_from(rows).unwrap_or(0) * tokens.len() + 4096;
    out.clear();
    out.reserve(capacity);
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&0i32.to_le_bytes());
    for section in sections(contract, only_window) {
        out.extend_from_slice(&1u32.to_le_bytes());
        if section == block.section {
            write_section(out, block, tokens, contract);
        } else {
            out.extend_from_slice(&0u32.to_le_bytes());
        }
    }
}

fn write_section(out: &mut Vec<u8>, block: &KvBlock, tokens: &Range<u32>, contract: &Contract) {
    let count = tokens.end - tokens.start;
    out.extend_from_slice(&count.to_le_bytes());
    for position in tokens.clone() {
        out.extend_from_slice(&position.to_le_bytes());
        out.extend_from_slice(&1u32.to_le_bytes());
        out.extend_from_slice(&0i32.to_le_bytes());
    }
    let layers = block.planes.len() / 2;
    let header = [0, u32::try_from(layers).unwrap_or(0), 0, 0];
    for value in header {
        out.extend_from_slice(&value.to_le_bytes());
    }
    for kind in [PlaneKind::Key, PlaneKind::Value] {
        for plane in block.planes.iter().filter(|p| p.kind == kind) {
            out.extend_from_slice(&TYPE_F16.to_le_bytes());
            let row = row_bytes(contract, plane.layer, kind) as u64;
            out.extend_from_slice(&row.to_le_bytes());
            out.extend_from_slice(&plane.data[row_range(plane, &block.tokens, tokens)]);
        }
    }
}

struct Cursor<'a> {
    blob: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn skip(&mut self, n: usize) -> Result<Range<usize>, BlobError> {
        let end = self.at.checked_add(n).filter(|e| *e <= self.blob.len());
        let end = end.ok_or(BlobError {
            at: "length",
            reason: format!("needs {n} bytes at {}, has {}", self.at, self.blob.len()),
        })?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], BlobError> {
        let range = self.skip(N)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.blob[range]);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, BlobError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn i32(&mut self) -> Result<i32, BlobError> {
        Ok(i32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, BlobError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }
}

fn expect<T: PartialEq + std::fmt::Display>(
    at: &'static str,
    found: T,
    expected: T,
) -> Result<(), BlobError> {
    if found == expected {
        return Ok(());
    }
    Err(BlobError {
        at,
        reason: format!("found {found}, expected {expected}"),
    })
}
