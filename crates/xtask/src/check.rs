//! `cargo xtask check`: everything that is checked and is not a test, the same locally and in CI.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::{limits, tidy};

/// Runs all checks, stopping at the first that fails. Everything is built with the one profile that
/// tests and users run, so that llama.cpp is built once.
///
/// # Errors
/// Names the check that failed; its own output says why.
pub fn run(root: &Path) -> anyhow::Result<()> {
    cargo(root, "fmt", &["--all", "--check"], &[])?;
    cargo(
        root,
        "clippy",
        &[
            "--release",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    )?;
    eprintln!("check: tidy");
    tidy::run(root)?;
    eprintln!("check: limits");
    limits::run(root, true)?;
    cargo(
        root,
        "doc",
        &["--release", "--workspace", "--no-deps"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )?;
    dependencies(root)
}

/// Licences, sources and advisories, if `cargo-deny` is installed.
fn dependencies(root: &Path) -> anyhow::Result<()> {
    let installed = Command::new("cargo-deny")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success());
    if !installed {
        eprintln!(
            "check: deny SKIPPED: cargo-deny is not installed (`cargo install cargo-deny --locked` gets it)"
        );
        return Ok(());
    }
    cargo(
        root,
        "deny",
        &[
            "check",
            "bans",
            "licenses",
            "sources",
            "--hide-inclusion-graph",
        ],
        &[],
    )
}

fn cargo(root: &Path, task: &str, arguments: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    eprintln!("check: {task}");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(cargo)
        .current_dir(root)
        .arg(task)
        .args(arguments)
        .envs(env.iter().copied())
        .status()
        .with_context(|| format!("`cargo {task}` could not be started"))?;
    if !status.success() {
        bail!("`cargo {task}` found problems; they are printed above");
    }
    Ok(())
}
