//! The store: one SQLite file. All SQL stands below this module.
//!
//! Readers and the writer are different types, and each works inside one transaction: a reader sees one state, and what a
//! writer did is there as a whole or not at all. Calls block, so they run on Tokio's threads for that.

mod anchor;
mod course;
mod erase;
mod export;
mod migrations;
mod result;
mod review;
mod run;
mod session;
mod submission;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::platform::private_file;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

pub use anchor::BlindReading;
pub use course::{Assignment, RubricVersion};
pub(crate) use erase::FORGOTTEN;
pub use export::{PastExport, SheetFile};
pub use result::Kept;
pub use review::{By, Past, Undone, WriteError};
pub use run::{Outcome, RunRow, RunWork, Sums};
pub use session::{Browser, Member, Person, Place, Role, Sees};
pub use submission::{Handed, Seen, Work};

/// How long one process waits for another that writes.
const BUSY: Duration = Duration::from_secs(10);
/// Readers that are kept open.
const READERS: usize = 4;

/// What can go wrong with the store itself.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite says no.
    #[error("the gradebook {path}: {source}", path = .path.display())]
    Sql {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// A later version of tandem made it.
    #[error(
        "the gradebook {path} was made by a later version of tandem (form {found}, this one knows {known}); use that version",
        path = .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its form.
        found: u32,
        /// The last form that is known here.
        known: u32,
    },
    /// The folder cannot be made.
    #[error("cannot make the folder of {path}: {source}", path = .path.display())]
    Folder {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file cannot be written anew now, as where somebody else reads it all the time.
    #[error(
        "it is deleted, and its bytes are still in the file, as another program has that open or the disk is full; they go \
         when tandem opens it next"
    )]
    Busy,
    /// The name of a file cannot be given to SQLite.
    #[error("the name of the file is not UTF-8; choose another one")]
    Name,
    /// The work was ended in the middle.
    #[error("the gradebook stopped in the middle of a task")]
    Ended,
}

/// A gradebook's file. Copies share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
}

/// One state of the store.
pub struct Reader<'a> {
    sql: Transaction<'a>,
}

/// One change of the store, made as a whole.
pub struct Writer<'a> {
    reader: Reader<'a>,
    /// The time of the change, in milliseconds since 1970.
    now: i64,
}

impl<'a> Deref for Writer<'a> {
    type Target = Reader<'a>;

    fn deref(&self) -> &Self::Target {
        &self.reader
    }
}

impl Store {
    /// Opens a file, or makes it, in the form of this version.
    ///
    /// # Errors
    /// If it cannot be opened, or a later version made it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| StoreError::Folder {
                path: path.to_owned(),
                source,
            })?;
        }
        let sql = |source| StoreError::Sql {
            path: path.to_owned(),
            source,
        };
        let mut writer = connection(path).map_err(sql)?;
        private_file(path);
        migrations::run(&mut writer, path)?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                writer: Mutex::new(writer),
                readers: Mutex::default(),
            }),
        })
    }

    /// Reads one state.
    ///
    /// # Errors
    /// If SQLite says no.
    pub async fn read<T: Send + 'static>(
        &self,
        task: impl FnOnce(&Reader<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let task = move || store.read_now(task);
        tokio::task::spawn_blocking(task)
            .await
            .map_err(|_| StoreError::Ended)?
    }

    /// Reads one state, on this thread.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn read_now<T>(
        &self,
        task: impl FnOnce(&Reader<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let kept = lock(&self.inner.readers).pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => connection(&self.inner.path).map_err(|e| self.sql(e))?,
        };
        let result = connection
            .transaction()
            .and_then(|sql| task(&Reader { sql }));
        let mut readers = lock(&self.inner.readers);
        if readers.len() < READERS {
            readers.push(connection);
        }
        result.map_err(|e| self.sql(e))
    }

    /// Makes one change; what fails changes nothing.
    ///
    /// # Errors
    /// What the task says, or that SQLite says no.
    pub async fn write<T: Send + 'static, E: From<StoreError> + Send + 'static>(
        &self,
        task: impl FnOnce(&Writer<'_>) -> rusqlite::Result<Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let store = self.clone();
        let task = move || store.write_now(task);
        tokio::task::spawn_blocking(task)
            .await
            .map_err(|_| E::from(StoreError::Ended))?
    }

    /// Makes one change, on this thread.
    ///
    /// # Errors
    /// What the task says, or that SQLite says no.
    pub fn write_now<T, E: From<StoreError>>(
        &self,
        task: impl FnOnce(&Writer<'_>) -> rusqlite::Result<Result<T, E>>,
    ) -> Result<T, E> {
        let mut connection = lock(&self.inner.writer);
        let sql = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|e| self.sql(e))?;
        let writer = Writer {
            reader: Reader { sql },
            now: i64::try_from(now_ms()).unwrap_or(i64::MAX),
        };
        let done = task(&writer).map_err(|e| self.sql(e))?;
        if done.is_ok() {
            writer.reader.sql.commit().map_err(|e| self.sql(e))?;
        }
        done
    }

    /// Writes the file anew where something was deleted, so that no byte of that is left in it or beside it.
    ///
    /// # Errors
    /// If SQLite says no, or somebody else reads the file all the time; then it is done when the gradebook is opened next.
    pub fn sweep(&self) -> Result<(), StoreError> {
        if !self.read_now(|reader| reader.is_unswept())? {
            return Ok(());
        }
        // Those that are kept open would hold what was.
        lock(&self.inner.readers).clear();
        let is_busy = {
            let connection = lock(&self.inner.writer);
            connection
                .execute_batch("VACUUM")
                .map_err(|e| self.sql(e))?;
            let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
            let busy = connection.query_row(checkpoint, [], |row| row.get::<_, i64>(0));
            busy.map_err(|e| self.sql(e))? != 0
        };
        if is_busy {
            return Err(StoreError::Busy);
        }
        self.write_now(|writer| writer.is_swept().map(Ok))
    }

    /// Writes all into another file, which is there and empty, as one state.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn copy_to(&self, file: &Path) -> Result<(), StoreError> {
        let connection = connection(&self.inner.path).map_err(|e| self.sql(e))?;
        // A whole path, which SQLite takes for no address.
        let whole = file.canonicalize().ok();
        let file = whole
            .as_deref()
            .and_then(Path::to_str)
            .ok_or(StoreError::Name)?;
        let copied = connection.execute("VACUUM INTO ?1", [file]);
        copied.map(|_| ()).map_err(|e| self.sql(e))
    }

    fn sql(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Sql {
            path: self.inner.path.clone(),
            source,
        }
    }
}

/// A poisoned lock guards a connection whose transaction was rolled back.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection with the settings that the tables rely on. What was committed survives the end of the process and of the
/// power.
fn connection(path: &Path) -> rusqlite::Result<Connection> {
    let sql = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    sql.busy_timeout(BUSY)?;
    sql.pragma_update(None, "journal_mode", "WAL")?;
    sql.pragma_update(None, "synchronous", "FULL")?;
    sql.pragma_update(None, "foreign_keys", true)?;
    // What is deleted is overwritten.
    sql.pragma_update(None, "secure_delete", true)?;
    Ok(sql)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// A document as JSON. Plain structs with string keys always serialise.
fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A document that was written by [`json`].
fn read_json<T: serde::de::DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|e| {
        let kind = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(e))
    })
}
