//! `cargo xtask fuzz`: the fuzz targets of `tandem-handoff` for longer than a run of the tests gives them.
//!
//! They are tests of `crates/handoff/tests/it/fuzz.rs` and run on stable: `bolero` makes the input.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

/// Where the targets are among the tests.
const PREFIX: &str = "it::fuzz::";

/// Longest time of a target, in seconds: a week.
const MAX_SECONDS: u64 = 7 * 24 * 3600;

/// Which target, for how long.
#[derive(Args)]
pub struct FuzzArguments {
    /// One target; without it all of them, one after the other. `list` names them.
    target: Option<String>,
    /// Time of each target.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    seconds: u64,
    /// Only the input with this number, which a failure has named.
    #[arg(long)]
    seed: Option<u128>,
}

/// Runs the targets.
///
/// # Errors
/// If there is no such target, or one has found something; its output says what, and the seed.
pub fn run(root: &Path, arguments: &FuzzArguments) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    run_with(&cargo, root, arguments)
}

fn run_with(cargo: &OsStr, root: &Path, arguments: &FuzzArguments) -> anyhow::Result<()> {
    let targets = targets(cargo, root)?;
    let chosen: Vec<&String> = match arguments.target.as_deref() {
        None => targets.iter().collect(),
        Some("list") => {
            targets.iter().for_each(|t| eprintln!("{t}"));
            return Ok(());
        }
        Some(name) => targets.iter().filter(|t| *t == name).collect(),
    };
    if chosen.is_empty() {
        bail!("no such target; there are {}", targets.join(", "));
    }
    let mut failed = Vec::new();
    for target in chosen {
        let mut command = tests(
            cargo,
            root,
            &["--exact", "--nocapture", &format!("{PREFIX}{target}")],
        );
        match arguments.seed {
            Some(seed) => command
                .env("BOLERO_RANDOM_SEED", seed.to_string())
                .env("BOLERO_RANDOM_ITERATIONS", "0"),
            None => {
                let milliseconds = arguments.seconds * 1000;
                command.env("BOLERO_RANDOM_TEST_TIME_MS", milliseconds.to_string())
            }
        };
        let status = command.status().context("cannot start cargo")?;
        if !status.success() {
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("findings in {}", failed.join(", "));
    }
    Ok(())
}

/// The test program with these arguments.
fn tests(cargo: &OsStr, root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args([
            "test",
            "--quiet",
            "--release",
            "--package",
            "tandem-handoff",
        ])
        .args(["--test", "it", "--"])
        .args(arguments);
    command
}

/// Names of all targets.
fn targets(cargo: &OsStr, root: &Path) -> anyhow::Result<Vec<String>> {
    let output = tests(cargo, root, &["--list", "--format", "terse", PREFIX])
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|l| l.strip_suffix(": test"));
    let targets: Vec<String> = names
        .filter_map(|n| n.strip_prefix(PREFIX))
        .map(str::to_owned)
        .collect();
    if targets.is_empty() {
        bail!("there are no targets under {PREFIX}");
    }
    Ok(targets)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// In the place of cargo: two targets, of which one finds something.
    const CARGO: &str = r#"#!/bin/sh
case "$*" in
*--list*) echo "it::fuzz::sound: test"; echo "it::fuzz::faulty: test" ;;
*it::fuzz::faulty) exit 101 ;;
esac
"#;

    #[test]
    fn a_finding_fails_the_command_and_names_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let cargo = dir.path().join("cargo");
        std::fs::write(&cargo, CARGO).unwrap();
        std::fs::set_permissions(&cargo, PermissionsExt::from_mode(0o700)).unwrap();
        let run = |target: Option<&str>| {
            let arguments = FuzzArguments {
                target: target.map(str::to_owned),
                seconds: 1,
                seed: None,
            };
            run_with(cargo.as_os_str(), dir.path(), &arguments).map_err(|e| e.to_string())
        };
        assert_eq!(run(None), Err("findings in faulty".into()));
        assert_eq!(run(Some("faulty")), Err("findings in faulty".into()));
        assert_eq!(run(Some("sound")), Ok(()));
        let unknown = run(Some("other")).unwrap_err();
        assert!(unknown.contains("sound, faulty"), "{unknown}");
    }
}
