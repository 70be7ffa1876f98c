//! Profiles of machines, by their names or from files.

use std::path::Path;

use tandem_sched::profile::{Catalogue, Machine};

use crate::files;

/// Largest profile that is read, in bytes.
pub const MAX_BYTES: u64 = 1 << 20;

/// The machine that a name or a file, such as `lab/mine.toml`, stands for.
///
/// # Errors
/// If there is none, or the file is no profile.
pub fn machine<'a>(catalogue: &'a mut Catalogue, named: &str) -> anyhow::Result<&'a Machine> {
    let name = match Path::new(named).extension() {
        None => named.to_owned(),
        Some(_) => {
            let text = files::read_text(Path::new(named), MAX_BYTES)?;
            catalogue.add_machine(named, &text)?
        }
    };
    Ok(catalogue.machine(&name)?)
}
