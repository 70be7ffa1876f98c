//! `cargo xtask schemas`: schemas that mean harm, more of them than a run of the tests has.
//!
//! The test is `hostile` in `crates/engine/tests/it`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

/// Which seeds.
#[derive(Args)]
pub struct SchemasArguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many.
    #[arg(long, default_value_t = 5000)]
    count: u64,
}

/// Runs the test with these seeds.
///
/// # Errors
/// If it fails; its output names the seed.
pub fn run(root: &Path, arguments: &SchemasArguments) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(["test", "--release", "--package", "tandem-engine"])
        .args(["--test", "it", "hostile_schemas"])
        .env("TANDEM_SCHEMAS_FROM", arguments.from.to_string())
        .env("TANDEM_SCHEMAS_COUNT", arguments.count.to_string())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("a schema took too much, or told too much");
    }
    Ok(())
}
