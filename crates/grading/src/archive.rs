//! Zip archives: unpacked into a folder that is gone afterwards, and read like any other.
//!
//! Names and sizes in an archive are what somebody wrote there: only names that stay inside are taken, and what counts is
//! what comes out, not what is promised.

use crate::error::GradingError;
use crate::limits;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use zip::ZipArchive;

/// True if a path is called like an archive.
pub(crate) fn is_archive(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("zip"))
}

/// What may still come out of an archive and those in it.
struct Budget {
    bytes: u64,
    members: usize,
}

/// Unpacks an archive into a folder; archives in it become folders beside their files. Returns where the submissions are: a
/// folder that has everything is gone into.
///
/// # Errors
/// An archive that cannot be read, has more in it than the limits allow, or names files outside of itself.
pub(crate) fn unpack(path: &Path, into: &Path) -> Result<PathBuf, GradingError> {
    let fault =
        |problem: String| GradingError::Submissions(format!("{}: {problem}", path.display()));
    let file = File::open(path).map_err(|e| fault(e.to_string()))?;
    let mut budget = Budget {
        bytes: limits::MAX_ARCHIVE_BYTES,
        members: limits::MAX_ARCHIVE_MEMBERS,
    };
    extract(file, into, &mut budget, limits::MAX_ARCHIVE_DEPTH).map_err(fault)?;
    Ok(only_folder(into))
}

fn extract(
    file: impl Read + Seek,
    into: &Path,
    budget: &mut Budget,
    depth: usize,
) -> Result<(), String> {
    let mut archive =
        ZipArchive::new(file).map_err(|e| format!("it is no archive that can be read: {e}"))?;
    let mut nested = Vec::new();
    for i in 0..archive.len() {
        budget.members = budget
            .members
            .checked_sub(1)
            .ok_or_else(|| format!("it has more than {} files", limits::MAX_ARCHIVE_MEMBERS))?;
        let mut member = archive.by_index(i).map_err(|e| e.to_string())?;
        if member.is_symlink() {
            continue;
        }
        let name = member.enclosed_name();
        let name = name.ok_or("it names a file outside of itself; nothing of it was read")?;
        let to = into.join(&name);
        if member.is_dir() {
            std::fs::create_dir_all(&to).map_err(|e| e.to_string())?;
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).map_err(|e| e.to_string())?;
        }
        copy(&mut member, &to, budget)?;
        if is_archive(&to) && depth > 1 {
            nested.push(to);
        }
    }
    for inner in nested {
        unpack_inner(&inner, budget, depth - 1)?;
    }
    Ok(())
}

/// An archive in an archive becomes a folder. One that cannot be, or has too much in it, stays a file of a kind that is not
/// supported, so that its owner's work says so and no other suffers.
fn unpack_inner(inner: &Path, all: &mut Budget, depth: usize) -> Result<(), String> {
    let folder = inner.with_extension("");
    let Ok(file) = File::open(inner) else {
        return Ok(());
    };
    if folder.exists() {
        return Ok(());
    }
    let mut own = Budget {
        bytes: all.bytes.min(limits::MAX_INNER_ARCHIVE_BYTES),
        members: all.members.min(limits::MAX_FOLDER_ENTRIES),
    };
    let (bytes, members) = (own.bytes, own.members);
    let done = extract(file, &folder, &mut own, depth);
    all.bytes -= bytes - own.bytes;
    all.members -= members - own.members;
    let tidied = match &done {
        Ok(()) => std::fs::remove_file(inner),
        Err(_) => std::fs::remove_dir_all(&folder).or(Ok(())),
    };
    tidied.map_err(|e| e.to_string())?;
    match done {
        Err(problem) if all.bytes == 0 || all.members == 0 => Err(problem),
        _ => Ok(()),
    }
}

/// Copies one member, at most a byte more than a notebook may have: the reader says then that it is too large.
fn copy(member: &mut impl Read, to: &Path, budget: &mut Budget) -> Result<(), String> {
    let limit = limits::MAX_NOTEBOOK_BYTES + 1;
    let mut file = File::create(to).map_err(|e| e.to_string())?;
    let copied = io::copy(&mut member.take(limit.min(budget.bytes)), &mut file);
    let copied = copied.map_err(|e| format!("{} cannot be unpacked: {e}", to.display()))?;
    budget.bytes -= copied.min(budget.bytes);
    match budget.bytes {
        0 => Err(format!(
            "it unpacks to more than {} bytes",
            limits::MAX_ARCHIVE_BYTES
        )),
        _ => Ok(()),
    }
}

/// The folder in which everything is, through those that have nothing else beside it.
fn only_folder(folder: &Path) -> PathBuf {
    let mut folder = folder.to_owned();
    for _ in 0..limits::MAX_ARCHIVE_DEPTH {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            break;
        };
        let entries: Vec<PathBuf> = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| !crate::source::is_junk(p))
            .collect();
        match entries.as_slice() {
            // A folder of folders or of several files is a course; one of a single file may be a work.
            [only] if only.is_dir() && has_folders_or_many(only) => folder = only.clone(),
            _ => break,
        }
    }
    folder
}

fn has_folders_or_many(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    let entries: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    entries.len() > 1 || entries.iter().any(|p| p.is_dir())
}
