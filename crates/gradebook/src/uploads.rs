//! Where uploaded files lie while they are read: beside the gradebook, in a folder that nobody else may look into.
//!
//! [`Uploads::open`] removes what a process left behind that was killed; [`Uploads::begin`] makes room for one upload.
//! Several processes may have the same gradebook: each shares a lock while it has an upload, and who has it alone may
//! sweep.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::platform::{private_file, private_folder};

/// Name of the lock in the folder.
const LOCK: &str = "lock";

/// The folder of all uploads of a gradebook.
pub(crate) struct Uploads {
    folder: PathBuf,
}

/// Room for one upload, which is gone with it.
pub(crate) struct Upload {
    folder: TempDir,
    _lock: File,
}

impl Uploads {
    /// Of a gradebook in this file; sweeps the folder.
    pub(crate) fn open(gradebook: &Path) -> Self {
        let mut folder = gradebook.as_os_str().to_owned();
        folder.push(".uploads");
        let uploads = Self {
            folder: folder.into(),
        };
        if uploads.folder.exists()
            && let Err(reason) = uploads.sweep()
        {
            tracing::warn!(%reason, "files of an upload that was broken off cannot be removed");
        }
        uploads
    }

    fn sweep(&self) -> io::Result<()> {
        let lock = self.lock()?;
        if lock.try_lock().is_err() {
            // Another process reads an upload right now.
            return Ok(());
        }
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.is_dir() {
                std::fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.folder.join(LOCK);
        let mut options = OpenOptions::new();
        let lock = options.create(true).append(true).open(&path)?;
        private_file(&path);
        Ok(lock)
    }

    /// Makes room for one upload.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub(crate) fn begin(&self) -> io::Result<Upload> {
        std::fs::create_dir_all(&self.folder)?;
        private_folder(&self.folder);
        let lock = self.lock()?;
        lock.lock_shared()?;
        let folder = TempDir::new_in(&self.folder)?;
        private_folder(folder.path());
        Ok(Upload {
            folder,
            _lock: lock,
        })
    }
}

impl Upload {
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}
