//! Which models the demo runs on.

use std::path::{Path, PathBuf};

use anyhow::bail;
use tandem_fixtures::{Architecture, Spec};

use super::course::in_checkout;
use crate::environment::Environment;

/// Small trained models, if someone has put them there.
const TRAINED: (&str, &str) = ("models/nano-coder.gguf", "models/nano-writer.gguf");

/// The two models of the demo.
#[derive(Debug, PartialEq, Eq)]
pub struct Models {
    /// Analyses code.
    pub code: PathBuf,
    /// Writes feedback.
    pub feedback: PathBuf,
    /// True if their weights are random, so that what they write means nothing.
    pub random: bool,
}

/// The models given on the command line, else trained ones, else fixtures, which are made if needed.
///
/// # Errors
/// If a name is unknown, missing or given twice, a file is not there, or a fixture cannot be written.
pub fn choose(given: &[(String, PathBuf)], environment: &Environment) -> anyhow::Result<Models> {
    if !given.is_empty() {
        return from_arguments(given);
    }
    let trained = (in_checkout(TRAINED.0), in_checkout(TRAINED.1));
    if let (Some(code), Some(feedback)) = trained {
        return Ok(Models {
            code,
            feedback,
            random: false,
        });
    }
    let cache = environment.fixtures()?;
    eprintln!(
        "there are no trained models: using small ones with random weights in {}",
        cache.display()
    );
    Ok(Models {
        code: tandem_fixtures::ensure(&cache, &Spec::new(Architecture::Qwen3))?,
        feedback: tandem_fixtures::ensure(&cache, &Spec::new(Architecture::Gemma3))?,
        random: true,
    })
}

fn from_arguments(given: &[(String, PathBuf)]) -> anyhow::Result<Models> {
    for (name, path) in given {
        if name != "code" && name != "feedback" {
            bail!("--model `{name}`: the demo has the models `code` and `feedback`");
        }
        if !path.is_file() {
            bail!("--model `{name}`: there is no file {}", path.display());
        }
    }
    let one = |wanted: &str| -> anyhow::Result<&Path> {
        let mut paths = given.iter().filter(|(name, _)| name == wanted);
        match (paths.next(), paths.next()) {
            (Some((_, path)), None) => Ok(path),
            (None, _) => bail!("--model `{wanted}` is missing: add --model {wanted}=PATH"),
            _ => bail!("--model `{wanted}` is given twice: leave one out"),
        }
    };
    Ok(Models {
        code: one("code")?.to_owned(),
        feedback: one("feedback")?.to_owned(),
        random: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_models_must_be_given_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, b"x").unwrap();
        let missing = dir.path().join("none.gguf");
        for (given, expected) in [
            (vec![("code", &file)], "--model feedback=PATH"),
            (vec![("code", &file), ("code", &file)], "given twice"),
            (vec![("coder", &file)], "`coder`"),
            (
                vec![("code", &missing), ("feedback", &file)],
                "there is no file",
            ),
        ] {
            let given: Vec<_> = given
                .into_iter()
                .map(|(n, p)| (n.to_owned(), p.clone()))
                .collect();
            let error = from_arguments(&given).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
