//! `cargo xtask fixtures`

use std::path::Path;

use tandem_fixtures::{Architecture, Spec};

/// Writes one model per architecture into `out` and says where.
///
/// # Errors
/// If a file cannot be written.
pub fn write(out: &Path) -> anyhow::Result<()> {
    for architecture in Architecture::ALL {
        let path = tandem_fixtures::ensure(out, &Spec::new(architecture))?;
        eprintln!("{architecture:<10} {}", path.display());
    }
    Ok(())
}
