//! `cargo xtask fixtures`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use tandem_testkit::{Architecture, Size, Spec, WeightType};

/// Arguments of the task.
#[derive(Args)]
pub struct FixturesArguments {
    /// Folder to write to.
    #[arg(long, default_value = "out/fixtures")]
    out: PathBuf,
    /// Only this one, as large as one that people use, with 8-bit weights, to measure with: llama, qwen2, qwen3, qwen3moe,
    /// gemma3 or gpt-oss; some 7 GB and more.
    #[arg(long, value_name = "ARCHITECTURE", value_parser = architecture)]
    real: Option<Architecture>,
}

fn architecture(name: &str) -> anyhow::Result<Architecture> {
    let mut all = Architecture::ALL.into_iter();
    all.find(|one| one.name() == name).with_context(|| {
        format!(
            "choose one of {}",
            Architecture::ALL.map(Architecture::name).join(", ")
        )
    })
}

/// Writes models into a folder, by default one of each architecture, and says where.
///
/// # Errors
/// If a file cannot be written.
pub fn write(arguments: &FixturesArguments) -> anyhow::Result<()> {
    let specs = match arguments.real {
        None => Architecture::ALL
            .into_iter()
            .chain(Architecture::OTHER_CACHES)
            .map(Spec::new)
            .collect(),
        Some(architecture) => vec![Spec {
            weights: WeightType::Q8_0,
            size: Size::Real,
            ..Spec::new(architecture)
        }],
    };
    for spec in specs {
        let architecture = spec.architecture;
        let path = tandem_testkit::ensure(&arguments.out, &spec)?;
        eprintln!("{architecture:<10} {}", path.display());
    }
    Ok(())
}
