//! Fingerprints of files that have been read before, kept by path, size and time, so that a large model is not hashed at
//! each start.
//!
//! One small file per model. What cannot be read there is computed again, and what cannot be written is told in the log.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// First line of a record: its form.
const FORM: &str = "tandem fingerprint 1";

/// What is known of the weights of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Weights {
    /// BLAKE3, hex.
    pub(crate) digest: String,
    /// Tensor types and how often each occurs.
    pub(crate) quantisation: String,
}

/// Where the record of one model is, and what it must begin with.
pub(crate) struct Record {
    path: PathBuf,
    /// Form, and size and time of each part.
    head: String,
}

impl Record {
    /// The record of the model with these parts in `folder`; none if a part cannot be looked at.
    pub(crate) fn of(folder: &Path, parts: &[PathBuf]) -> Option<Self> {
        let mut head = format!("{FORM}\n");
        let mut name = blake3::Hasher::new();
        for part in parts {
            // A name may be a link, as in the cache of Hugging Face.
            let part = part.canonicalize().ok()?;
            let meta = part.metadata().ok()?;
            let time = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            name.update(part.as_os_str().as_encoded_bytes());
            name.update(b"\n");
            // Writing to a string cannot fail.
            let _ = writeln!(head, "{} {}", meta.len(), time.as_nanos());
        }
        let name = name.finalize().to_hex();
        Some(Self {
            path: folder.join(&name.as_str()[..32]),
            head,
        })
    }

    /// What is known, if the files are as they were.
    pub(crate) fn read(&self) -> Option<Weights> {
        let text = fs::read_to_string(&self.path).ok()?;
        let mut lines = text.strip_prefix(&self.head)?.lines();
        let digest = lines.next().filter(|d| d.len() == 64)?.to_owned();
        let quantisation = lines.next()?.to_owned();
        (lines.next() == Some("end")).then_some(Weights {
            digest,
            quantisation,
        })
    }

    /// Keeps what is known; the file is whole or as before.
    pub(crate) fn write(&self, weights: &Weights) {
        let Weights {
            digest,
            quantisation,
        } = weights;
        let text = format!("{}{digest}\n{quantisation}\nend\n", self.head);
        let beside = self
            .path
            .with_extension(format!("{}.tmp", std::process::id()));
        let written = (self.path.parent())
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&beside, text))
            .and_then(|()| fs::rename(&beside, &self.path));
        if let Err(error) = written {
            let path = self.path.display();
            tracing::warn!(%path, %error, "a fingerprint is not kept: the next start takes as long");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_holds_as_long_as_the_files_are_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let parts = [dir.path().join("a"), dir.path().join("b")];
        for part in &parts {
            fs::write(part, b"x").unwrap();
        }
        let folder = dir.path().join("kept");
        let record = || Record::of(&folder, &parts).unwrap();
        let weights = Weights {
            digest: "0".repeat(64),
            quantisation: "f16x2".into(),
        };
        assert_eq!(record().read(), None);
        record().write(&weights);
        assert_eq!(record().read(), Some(weights.clone()));
        // A record that was cut is none.
        let path = record().path;
        let text = fs::read_to_string(&path).unwrap();
        for end in 0..text.len() - 1 {
            fs::write(&path, &text[..end]).unwrap();
            assert_eq!(record().read(), None, "{end}");
        }
        record().write(&weights);
        fs::write(&parts[1], b"yy").unwrap();
        assert_eq!(record().read(), None);
        fs::write(&parts[1], b"z").unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(2);
        let file = fs::File::options().write(true).open(&parts[1]).unwrap();
        file.set_modified(later).unwrap();
        assert_eq!(record().read(), None);
        fs::remove_file(&parts[0]).unwrap();
        assert!(Record::of(&folder, &parts).is_none());
    }
}
