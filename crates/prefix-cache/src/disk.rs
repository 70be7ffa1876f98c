//! The directory of a store: one file per object, written once and never changed.
//!
//! A file is complete under its name or not there: it is written under another name and renamed.
//! It is not synced, because a file that a power cut leaves damaged is found by its digests. Every
//! write takes a new name (id and serial number), so that a deletion never meets a newer file.

use std::ffi::OsStr;
use std::fmt::{Display, Formatter};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use tandem_handoff::page::PageId;

use super::limits::{FAULT_LOG_PAUSE, MAX_ENTRIES};
use super::object::{Kind, MAX_HEAD_BYTES, Meta, Rows, Unusable};
use super::{DiskConfig, OpenError};

/// Start of the names of files that are being written.
const WRITING: &str = ".writing-";
/// The file that is locked while a store is open.
const LOCK: &str = "lock";

/// A file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileName {
    pub id: PageId,
    pub kind: Kind,
    /// Tells files of the same id apart.
    pub serial: u64,
    /// Its length.
    pub bytes: u64,
}

/// An object on its way to disk.
#[derive(Debug, Clone)]
pub struct Spill {
    pub id: PageId,
    pub meta: Arc<Meta>,
    pub rows: Rows,
    pub version: u64,
}

impl Display for FileName {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let ending = self.kind.extension();
        write!(f, "{}-{:016x}.{ending}", self.id, self.serial)
    }
}

impl FileName {
    /// The file that this name says; `None` if it is not one that a store writes.
    fn parse(name: &OsStr, bytes: u64) -> Option<Self> {
        let (stem, ending) = name.to_str()?.split_once('.')?;
        let (id, serial) = stem.split_once('-')?;
        let kind = [Kind::Page, Kind::Snapshot]
            .into_iter()
            .find(|k| k.extension() == ending)?;
        let file = Self {
            id: id.parse().ok()?,
            kind,
            serial: u64::from_str_radix(serial, 16).ok()?,
            bytes,
        };
        (file.to_string() == name.to_str()?).then_some(file)
    }
}

/// A usable file of an earlier run.
#[derive(Debug)]
pub struct Found {
    pub id: PageId,
    pub meta: Meta,
    pub file: FileName,
    written: SystemTime,
}

/// Why rows could not be read.
#[derive(Debug)]
pub enum Unread {
    /// The file is gone.
    Gone,
    /// It is not what was written.
    Damaged,
    /// The disk failed.
    Failed(std::io::Error),
}

impl From<std::io::Error> for Unread {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::Gone,
            ErrorKind::UnexpectedEof => Self::Damaged,
            _ => Self::Failed(error),
        }
    }
}

/// What was found in a directory.
#[derive(Debug, Default)]
pub struct Scan {
    /// Usable files, the oldest first.
    pub found: Vec<Found>,
    /// Files that were deleted because they were damaged or of another version.
    pub unusable: u64,
    /// Operations that failed.
    pub errors: u64,
}

/// The directory of a store.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    logged: Mutex<Option<Instant>>,
    /// Reads that are still going on although nobody waits for them any more.
    overdue: AtomicUsize,
    /// Released by the system when the process ends, however it ends.
    lock: File,
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Closing the file is not enough while a child process that is just being started has it.
        let _ = self.lock.unlock();
    }
}

impl Disk {
    /// Makes the directory if it is missing, and locks it.
    ///
    /// # Errors
    /// If it cannot be made, others can read it, or another store has it.
    pub fn open(config: &DiskConfig) -> Result<Self, OpenError> {
        let dir = config.dir.clone();
        let failed = |error| OpenError::Directory {
            dir: config.dir.clone(),
            error,
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&dir).map_err(failed)?;
        check_private(&dir).map_err(failed)?.then_some(()).ok_or(
            // Rows can be turned back into text: nobody else may read them.
            OpenError::Shared { dir: dir.clone() },
        )?;
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let lock = options.open(dir.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                dir,
                logged: Mutex::default(),
                overdue: AtomicUsize::new(0),
                lock,
            }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { dir }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Finds the files of earlier runs and deletes those that are of no use. Files with names that
    /// no store writes are left alone.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn scan(&self) -> Result<Scan, OpenError> {
        let failed = |error| OpenError::Directory {
            dir: self.dir.clone(),
            error,
        };
        let mut scan = Scan::default();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let half_written = name.to_str().is_some_and(|n| n.starts_with(WRITING));
            let path = self.dir.join(&name);
            if half_written {
                scan.errors += self.delete(&path);
                continue;
            }
            match self.examine(&path, &name) {
                Ok(None) => (),
                Ok(Some(found)) if scan.found.len() < MAX_ENTRIES => scan.found.push(found),
                Ok(Some(_)) | Err(Unread::Damaged) => {
                    scan.unusable += 1;
                    scan.errors += self.delete(&path);
                }
                Err(Unread::Gone) => (),
                Err(Unread::Failed(error)) => {
                    scan.errors += 1;
                    self.log("read", &path, &error);
                }
            }
        }
        scan.found.sort_by_key(|f| (f.written, f.file.serial));
        Ok(scan)
    }

    /// The object of a file by its name and head; `None` if it is not ours.
    fn examine(&self, path: &Path, name: &OsStr) -> Result<Option<Found>, Unread> {
        let metadata = std::fs::symlink_metadata(path)?;
        let Some(file) = FileName::parse(name, metadata.len()).filter(|_| metadata.is_file())
        else {
            return Ok(None);
        };
        let mut start = Vec::with_capacity(MAX_HEAD_BYTES);
        let opened = File::open(path)?;
        opened.take(MAX_HEAD_BYTES as u64).read_to_end(&mut start)?;
        let parsed = Meta::parse(&file.id, file.kind, file.bytes, &start);
        let (meta, _) = parsed.map_err(|why| {
            tracing::debug!(%file, ?why, "a page on disk is of no use");
            Unread::Damaged
        })?;
        Ok(Some(Found {
            id: file.id,
            meta,
            written: metadata.modified()?,
            file,
        }))
    }

    /// Writes an object.
    ///
    /// # Errors
    /// If it could not be written whole; then nothing is left of it.
    pub fn write(&self, spill: &Spill, serial: u64) -> std::io::Result<FileName> {
        let name = FileName {
            id: spill.id,
            kind: spill.meta.kind,
            serial,
            bytes: spill.meta.file_bytes(),
        };
        // Readable by the owner only, and deleted unless it is renamed.
        let mut file = tempfile::Builder::new()
            .prefix(WRITING)
            .tempfile_in(&self.dir)?;
        file.write_all(&spill.meta.encode(&spill.id, &spill.rows))?;
        file.write_all(&spill.rows)?;
        file.persist(self.dir.join(name.to_string()))
            .map_err(|e| e.error)?;
        Ok(name)
    }

    /// Reads the rows of an object and compares everything with what was written.
    ///
    /// # Errors
    /// If they are not there whole.
    pub fn read(&self, name: &FileName, meta: &Meta) -> Result<Vec<u8>, Unread> {
        let mut file = File::open(self.dir.join(name.to_string()))?;
        // What is allocated below is compared with the file's length first.
        if file.metadata()?.len() != meta.file_bytes() {
            return Err(Unread::Damaged);
        }
        let rows = usize::try_from(meta.bytes).map_err(|_| Unread::Damaged)?;
        let mut head = vec![0; meta.head_bytes()];
        file.read_exact(&mut head)?;
        let parsed = Meta::parse(&name.id, name.kind, meta.file_bytes(), &head);
        let (parsed, digest) = parsed.map_err(|_: Unusable| Unread::Damaged)?;
        let mut bytes = vec![0; rows];
        file.read_exact(&mut bytes)?;
        if parsed != *meta || blake3::hash(&bytes) != digest {
            return Err(Unread::Damaged);
        }
        Ok(bytes)
    }

    /// True while a read is overdue: another one would wait, too, whatever its file is like.
    pub fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed) > 0
    }

    /// A read has become overdue, or has ended after that.
    pub fn overdue(&self, is_going_on: bool) {
        match is_going_on {
            true => self.overdue.fetch_add(1, Ordering::Relaxed),
            false => self.overdue.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Deletes files; gives those that could not be.
    pub fn remove(&self, files: &[FileName]) -> Vec<FileName> {
        let is_left = |file: &&FileName| self.delete(&self.dir.join(file.to_string())) > 0;
        files.iter().filter(is_left).copied().collect()
    }

    fn delete(&self, path: &Path) -> u64 {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                self.log("delete", path, &error);
                1
            }
            _ => 0,
        }
    }

    /// Says that the disk fails, once in [`FAULT_LOG_PAUSE`]; true if it did.
    pub fn log(&self, doing: &str, path: &Path, error: &std::io::Error) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged.is_none_or(|at| at.elapsed() >= FAULT_LOG_PAUSE);
        if is_due {
            *logged = Some(Instant::now());
            tracing::warn!(path = %path.display(), %error, "pages: cannot {doing}; requests go on without");
        }
        is_due
    }

    /// Where the files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// True if nobody but the owner can look into the directory.
fn check_private(dir: &Path) -> std::io::Result<bool> {
    let metadata = std::fs::metadata(dir)?;
    #[cfg(unix)]
    return Ok(std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 == 0);
    #[cfg(not(unix))]
    Ok(metadata.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_disk_is_logged_now_and_then() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::open(&DiskConfig {
            dir: dir.path().join("pages"),
            bytes: 1,
        });
        let disk = disk.unwrap();
        let error = std::io::Error::from(ErrorKind::StorageFull);
        let log = || disk.log("write", disk.dir(), &error);
        assert_eq!([log(), log(), log()], [true, false, false]);
        *disk.logged.lock().unwrap() = Instant::now().checked_sub(FAULT_LOG_PAUSE);
        assert_eq!([log(), log()], [true, false]);
    }
}
