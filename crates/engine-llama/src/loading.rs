//! How far the loading of a model is, and who is told.

use std::sync::Arc;

/// How far the loading of a model is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loading {
    /// Its weights are being hashed.
    Hashed {
        /// Bytes that have been read.
        bytes: u64,
        /// Bytes of its files.
        of: u64,
    },
    /// llama.cpp is loading it: the part that it has, from 0 to 1.
    Loaded(f32),
}

/// Who is told how far loading is; nobody by default.
#[derive(Clone, Default)]
pub struct Watch(Option<Arc<dyn Fn(Loading) + Send + Sync>>);

impl Watch {
    /// Tells this function, on the thread that loads.
    pub fn new(tell: impl Fn(Loading) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    pub(crate) fn hashed(&self, bytes: u64, of: u64) {
        self.tell(Loading::Hashed { bytes, of });
    }

    pub(crate) fn tell(&self, loading: Loading) {
        if let Some(tell) = &self.0 {
            tell(loading);
        }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({})", self.is_on())
    }
}
