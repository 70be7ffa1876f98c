//! Where the sample course is.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// The sample course within a checkout.
const SAMPLE: &str = "examples/intro-course";

/// The given folder, or the sample course: below the current folder, else where this program was
/// built.
///
/// # Errors
/// If there is no rubric in it.
pub fn find(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(course) = given {
        if !course.join("rubric.yaml").is_file() {
            bail!(
                "--course: {} has no rubric.yaml; name a folder with rubric.yaml and submissions/",
                course.display()
            );
        }
        return Ok(course.to_owned());
    }
    let Some(course) = in_checkout(SAMPLE).filter(|c| c.join("rubric.yaml").is_file()) else {
        bail!("{SAMPLE} is not here: start the demo in a checkout, or name a folder with --course");
    };
    Ok(course)
}

/// `path` below the current folder if it is there, else below the checkout that this program was
/// built from.
pub fn in_checkout(path: &str) -> Option<PathBuf> {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let places = [PathBuf::from(path), built_in.join(path)];
    places.into_iter().find(|p| p.exists())
}
