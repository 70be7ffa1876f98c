//! Small GGUF models with seeded random weights, for tests and the demo.
//!
//! Each file is a complete model that llama.cpp loads and runs: one of nine architectures with the
//! tensors and metadata of its real family, a byte-level vocabulary and a chat template. The weights
//! are noise, scaled so that the answers depend on the whole prompt and the logits are spread like
//! those of a trained model. The bytes of a file are a function of its [`Spec`] alone, on every
//! platform. For measurements there are fixtures of real [`Size`], too.
//!
//! ```
//! use tandem_testkit::{Architecture, Spec, ensure};
//! let dir = tempfile::tempdir()?;
//! let model = ensure(dir.path(), &Spec::new(Architecture::Qwen3))?;
//! assert!(model.is_file());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod caches;
pub mod disk;
mod file;
mod gguf;
mod layers;
mod metadata;
mod shape;
mod spec;
mod tensors;
mod vocabulary;
mod weights;

pub use file::{FixtureError, ensure, write};
pub use shape::{Experts, Shape, Window};
pub use spec::{Architecture, GENERATOR_VERSION, Size, Spec, TokenizerVariant, WeightType};
