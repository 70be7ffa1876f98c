//! The file of what the names of models stand for.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tandem_sched::Pin;

/// Number of the file's form.
const FORM: u32 = 1;

/// The pins of each model, by name.
pub type Pins = BTreeMap<String, Vec<Pin>>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    form: u32,
    models: Pins,
}

/// Reads the file; nothing is pinned where there is none.
///
/// # Errors
/// If it cannot be read, or is no such file.
pub fn read_pins(path: &Path) -> io::Result<Pins> {
    let bytes = match fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Pins::new()),
        read => read?,
    };
    let file: File = serde_json::from_slice(&bytes)?;
    if file.form != FORM {
        let form = file.form;
        return Err(io::Error::other(format!(
            "it has form {form}, and this version knows {FORM}"
        )));
    }
    Ok(file.models)
}

/// Writes the file; it is whole or as before.
///
/// # Errors
/// If that fails.
pub fn write_pins(path: &Path, models: Pins) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_vec_pretty(&File { form: FORM, models })?;
    let part = path.with_extension("part");
    let mut file = fs::File::create(&part)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&part, path)
}
