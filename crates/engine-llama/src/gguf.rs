//! What a model file says about itself, and its fingerprints.
//!
//! Reads the header of a GGUF file (version 2 and 3, little-endian), as described in
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Split models
//! (`NAME-00001-of-00003.gguf`) are read part by part.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::fingerprint::{Record, Weights};
use crate::loading::Watch;

/// Bytes that are hashed between two reports of progress.
const REPORT_BYTES: u64 = 64 << 20;

/// Largest string, array or table that is read from a header, in bytes or entries.
pub const MAX_HEADER_LENGTH: u64 = 1 << 28;
/// Largest number of parts of a split model.
pub const MAX_PARTS: u64 = 256;

/// Why a model file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file system said no.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The bytes are not a GGUF header.
    #[error("{path} is not a usable GGUF file: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// A metadata value; arrays keep their elements, other types are widened.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any integer type.
    Int(i128),
    /// Any float type.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
}

/// The header of a model, all parts together.
#[derive(Debug, Clone)]
pub struct Gguf {
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// BLAKE3 of all `tokenizer.*` metadata but the chat template, hex.
    pub tokenizer_digest: String,
    /// BLAKE3 of tensor names, shapes, types and data of all parts, hex.
    pub weights_digest: String,
    /// Tensor types and how often each occurs, such as `f32x25 f16x14`.
    pub quantisation: String,
}

impl Gguf {
    /// Reads the header and hashes the weights, which reads every byte of the file, unless their fingerprint is in
    /// `known`, a folder of those of files that were read before.
    ///
    /// # Errors
    /// If a file is missing, cut short, or not GGUF.
    pub fn read(path: &Path, known: Option<&Path>, watch: &Watch) -> Result<Self, GgufError> {
        let first = Part::read(path)?;
        let count = match first.metadata.get("split.count") {
            Some(Value::Int(n)) => u64::try_from(*n).unwrap_or(0).clamp(1, MAX_PARTS),
            _ => 1,
        };
        let mut paths = vec![path.to_owned()];
        for index in 2..=count {
            paths.push(part_path(path, index, count)?);
        }
        let record = known.and_then(|folder| Record::of(folder, &paths));
        let weights = match record.as_ref().and_then(Record::read) {
            Some(weights) => weights,
            None => {
                let weights = hash(&first, &paths, watch)?;
                if let Some(record) = record {
                    record.write(&weights);
                }
                weights
            }
        };
        Ok(Self {
            metadata: first.metadata,
            tokenizer_digest: first.tokenizer.finalize().to_hex().to_string(),
            weights_digest: weights.digest,
            quantisation: weights.quantisation,
        })
    }

    /// The architecture name.
    #[must_use]
    pub fn architecture(&self) -> &str {
        match self.metadata.get("general.architecture") {
            Some(Value::Text(name)) => name,
            _ => "",
        }
    }

    /// A value under `<architecture>.`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&format!("{}.{key}", self.architecture()))
    }

    /// An unsigned number under `<architecture>.`.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u32> {
        match self.get(key)? {
            Value::Int(n) => u32::try_from(*n).ok(),
            _ => None,
        }
    }
}

/// Hashes the weights of all parts, of which the first is known.
fn hash(first: &Part, paths: &[PathBuf], watch: &Watch) -> Result<Weights, GgufError> {
    let sizes = paths.iter().map(|p| p.metadata().map_or(0, |m| m.len()));
    let mut hashing = Hashing {
        hasher: blake3::Hasher::new_derive_key("tandem weights v1"),
        types: BTreeMap::new(),
        done: 0,
        total: sizes.sum(),
        watch,
    };
    for (index, path) in paths.iter().enumerate() {
        match index {
            0 => first.hash_weights(path, &mut hashing)?,
            _ => Part::read(path)?.hash_weights(path, &mut hashing)?,
        }
    }
    let types = hashing.types.iter();
    let types: Vec<String> = types
        .map(|(kind, n)| format!("{}x{n}", type_name(*kind)))
        .collect();
    Ok(Weights {
        digest: hashing.hasher.finalize().to_hex().to_string(),
        quantisation: types.join(" "),
    })
}

/// A hash of weights that is being computed.
struct Hashing<'a> {
    hasher: blake3::Hasher,
    types: BTreeMap<u32, u32>,
    /// Bytes that have been read.
    done: u64,
    /// Bytes of all files.
    total: u64,
    watch: &'a Watch,
}

impl Hashing<'_> {
    fn take_in(&mut self, file: File) -> std::io::Result<()> {
        let mut file = file;
        loop {
            let before = file.stream_position()?;
            self.hasher.update_reader((&mut file).take(REPORT_BYTES))?;
            let read = file.stream_position()? - before;
            self.done += read;
            self.watch.hashed(self.done, self.total);
            if read < REPORT_BYTES {
                return Ok(());
            }
        }
    }
}

/// The metadata of a model, without its weights.
///
/// # Errors
/// If the file is missing, cut short, or not GGUF.
pub fn metadata(path: &Path) -> Result<BTreeMap<String, Value>, GgufError> {
    Ok(Part::read(path)?.metadata)
}

fn part_path(first: &Path, index: u64, count: u64) -> Result<PathBuf, GgufError> {
    let name = first.to_string_lossy();
    let suffix = format!("-00001-of-{count:05}.gguf");
    let stem = name
        .strip_suffix(&suffix)
        .ok_or_else(|| GgufError::Format {
            path: first.to_owned(),
            reason: format!("part 1 of {count} must be given, and its name must end in {suffix}"),
        })?;
    Ok(PathBuf::from(format!(
        "{stem}-{index:05}-of-{count:05}.gguf"
    )))
}

struct Part {
    metadata: BTreeMap<String, Value>,
    tokenizer: blake3::Hasher,
    /// Raw tensor table: hashed as it is.
    table: Vec<u8>,
    types: BTreeMap<u32, u32>,
    data_offset: u64,
}

impl Part {
    fn read(path: &Path) -> Result<Self, GgufError> {
        let file = File::open(path).map_err(|source| GgufError::Io {
            path: path.to_owned(),
            source,
        })?;
        let mut reader = Reader {
            inner: BufReader::new(file),
            position: 0,
            seen: None,
        };
        Self::parse(&mut reader).map_err(|reason| GgufError::Format {
            path: path.to_owned(),
            reason,
        })
    }

    fn parse(reader: &mut Reader) -> Result<Self, String> {
        if &reader.bytes::<4>()? != b"GGUF" {
            return Err("the first four bytes are not `GGUF`".into());
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!("GGUF version {version}; 2 and 3 are supported"));
        }
        let n_tensors = limit("tensor count", reader.u64()?)?;
        let n_values = limit("metadata count", reader.u64()?)?;
        let mut metadata = BTreeMap::new();
        let mut tokenizer = blake3::Hasher::new_derive_key("tandem tokenizer v1");
        for _ in 0..n_values {
            reader.seen = Some(Vec::new());
            let key = reader.text()?;
            let kind = reader.u32()?;
            let value = reader.value(kind, 0)?;
            let raw = reader.seen.take().unwrap_or_default();
            if key.starts_with("tokenizer.") && !key.starts_with("tokenizer.chat_template") {
                tokenizer.update(&(raw.len() as u64).to_le_bytes());
                tokenizer.update(&raw);
            }
            metadata.insert(key, value);
        }
        reader.seen = Some(Vec::new());
        let mut types = BTreeMap::new();
        for _ in 0..n_tensors {
            *types.entry(reader.tensor()?).or_insert(0) += 1;
        }
        let alignment = match metadata.get("general.alignment") {
            Some(Value::Int(n)) => u64::try_from(*n).unwrap_or(32).max(1),
            _ => 32,
        };
        Ok(Self {
            metadata,
            tokenizer,
            table: reader.seen.take().unwrap_or_default(),
            types,
            data_offset: reader.position.next_multiple_of(alignment),
        })
    }

    fn hash_weights(&self, path: &Path, hashing: &mut Hashing<'_>) -> Result<(), GgufError> {
        for (kind, n) in &self.types {
            *hashing.types.entry(*kind).or_insert(0) += n;
        }
        let hasher = &mut hashing.hasher;
        hasher.update(&(self.table.len() as u64).to_le_bytes());
        hasher.update(&self.table);
        let mut data = || -> std::io::Result<()> {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(self.data_offset))?;
            hashing.take_in(file)
        };
        data().map_err(|source| GgufError::Io {
            path: path.to_owned(),
            source,
        })
    }
}

struct Reader {
    inner: BufReader<File>,
    position: u64,
    /// Copy of the bytes read since it was set.
    seen: Option<Vec<u8>>,
}

impl Reader {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        self.inner
            .read_exact(buffer)
            .map_err(|e| format!("header ends early: {e}"))?;
        self.position += buffer.len() as u64;
        if let Some(seen) = &mut self.seen {
            seen.extend_from_slice(buffer);
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut buffer = [0; N];
        self.fill(&mut buffer)?;
        Ok(buffer)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn text(&mut self) -> Result<String, String> {
        let length = limit("string length", self.u64()?)?;
        let mut buffer = vec![0; length];
        self.fill(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer).into_owned())
    }

    /// One value of the GGUF type `kind`.
    fn value(&mut self, kind: u32, depth: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::Int(u8::from_le_bytes(self.bytes()?).into()),
            1 => Value::Int(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Int(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => Value::Bool(self.bytes::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 if depth == 0 => {
                let kind = self.u32()?;
                let n = limit("array length", self.u64()?)?;
                let items: Result<Vec<Value>, String> =
                    (0..n).map(|_| self.value(kind, depth + 1)).collect();
                Value::List(items?)
            }
            10 => Value::Int(self.u64()?.into()),
            11 => Value::Int(i64::from_le_bytes(self.bytes()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            _ => return Err(format!("metadata type {kind} is not supported")),
        })
    }

    /// Reads one entry of the tensor table; gives its type.
    fn tensor(&mut self) -> Result<u32, String> {
        self.text()?;
        let dimensions = self.u32()?;
        if dimensions > 8 {
            return Err(format!("tensor with {dimensions} dimensions"));
        }
        for _ in 0..dimensions {
            self.u64()?;
        }
        let kind = self.u32()?;
        self.u64()?;
        Ok(kind)
    }
}

fn limit(what: &str, value: u64) -> Result<usize, String> {
    if value > MAX_HEADER_LENGTH {
        return Err(format!("{what} {value} exceeds {MAX_HEADER_LENGTH}"));
    }
    usize::try_from(value).map_err(|_| format!("{what} {value} does not fit"))
}

/// Name of a ggml type, as in ggml's type table.
fn type_name(kind: u32) -> String {
    let name = match kind {
        0 => "f32",
        1 => "f16",
        2 => "q4_0",
        3 => "q4_1",
        6 => "q5_0",
        7 => "q5_1",
        8 => "q8_0",
        10 => "q2_k",
        11 => "q3_k",
        12 => "q4_k",
        13 => "q5_k",
        14 => "q6_k",
        30 => "bf16",
        39 => "mxfp4",
        other => return format!("type{other}"),
    };
    name.to_owned()
}
