//! `cargo xtask tidy`: rules of this project that neither the compiler nor clippy knows.
//!
//! - [`arrows`]: which crate may depend on which, and what pure crates may not depend on;
//! - [`sources`]: what pure crates may not name, and where `unsafe` may stand;
//! - [`files`]: names of files, paths of one machine, documents that forget a crate;
//! - [`links`]: links of documents to files;
//! - [`compiler`]: the oldest compiler, named alike wherever it is named;
//! - [`modules`]: import cycles between the modules of a crate;
//! - [`code`]: Rust source without its comments and literals.

mod arrows;
mod code;
mod compiler;
mod files;
mod links;
mod modules;
mod sources;

use std::path::Path;

use anyhow::{Context, bail};
use cargo_metadata::{Metadata, MetadataCommand};

use arrows::Crate;

/// Checks the checkout at `root`.
///
/// # Errors
/// Lists every violation, each with its fix.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let metadata = MetadataCommand::new()
        .current_dir(root)
        .no_deps()
        .exec()
        .context("`cargo metadata` failed")?;
    let crates = crates(&metadata);
    let mut found = arrows::check(&crates);
    found.extend(files::check(root, &crates)?);
    found.extend(compiler::check(root)?);
    for package in &metadata.packages {
        let folder = package
            .manifest_path
            .parent()
            .context("a manifest has a folder")?;
        let name = package.name.trim_start_matches("tandem-");
        found.extend(modules::check(name, folder.as_std_path())?);
    }
    if found.is_empty() {
        return Ok(());
    }
    for violation in &found {
        eprintln!("tidy: {violation}");
    }
    bail!("tidy found {} violation(s)", found.len());
}

fn crates(metadata: &Metadata) -> Vec<Crate> {
    let of = |package: &cargo_metadata::Package| Crate {
        name: package.name.to_string(),
        dependencies: package
            .dependencies
            .iter()
            .map(|d| arrows::Dependency {
                name: d.name.clone(),
                development: d.kind == cargo_metadata::DependencyKind::Development,
            })
            .collect(),
    };
    metadata.packages.iter().map(of).collect()
}
