//! Which models the demo runs on.

use std::path::PathBuf;

use anyhow::{Context, bail};
use tandem_testkit::{Architecture, Spec};

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

/// The models given on the command line, else trained ones, else fixtures, which are made if needed. Of one model given, the
/// other is the trained one.
///
/// # Errors
/// If a name is unknown or given twice, or missing and there is no trained one, a file is not there, or a fixture cannot be written.
pub fn choose(given: &[(String, PathBuf)], environment: &Environment) -> anyhow::Result<Models> {
    let trained = (in_checkout(TRAINED.0), in_checkout(TRAINED.1));
    if !given.is_empty() {
        return from_arguments(given, trained);
    }
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
        code: tandem_testkit::ensure(&cache, &Spec::new(Architecture::Qwen3))?,
        feedback: tandem_testkit::ensure(&cache, &Spec::new(Architecture::Gemma3))?,
        random: true,
    })
}

fn from_arguments(
    given: &[(String, PathBuf)],
    trained: (Option<PathBuf>, Option<PathBuf>),
) -> anyhow::Result<Models> {
    for (name, path) in given {
        if name != "code" && name != "feedback" {
            bail!("--model `{name}`: the demo has the models `code` and `feedback`");
        }
        if !path.is_file() {
            bail!("--model `{name}`: there is no file {}", path.display());
        }
    }
    let one = |wanted: &str, trained: Option<PathBuf>| -> anyhow::Result<PathBuf> {
        let mut paths = given.iter().filter(|(name, _)| name == wanted);
        match (paths.next(), paths.next()) {
            (Some((_, path)), None) => Ok(path.clone()),
            (None, _) => trained.with_context(|| {
                format!("--model `{wanted}` is missing, and there is no trained one: add --model {wanted}=PATH")
            }),
            _ => bail!("--model `{wanted}` is given twice: leave one out"),
        }
    };
    let (code, feedback) = trained;
    Ok(Models {
        code: one("code", code)?,
        feedback: one("feedback", feedback)?,
        random: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_given_once_or_the_trained_one() {
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
            let none = (None, None);
            let error = from_arguments(&given, none).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let trained = dir.path().join("trained.gguf");
        let given = [("code".to_owned(), file.clone())];
        let models =
            from_arguments(&given, (Some(trained.clone()), Some(trained.clone()))).unwrap();
        assert_eq!((models.code, models.feedback), (file, trained));
    }
}
