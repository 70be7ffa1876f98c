//! Where a machine keeps its identity, and the machine that made the cluster its authority.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::authority::{Authority, AuthorityError};
use crate::identity::{Identity, IdentityError};
use crate::join::Membership;
use crate::limits::MAX_FILE_BYTES;

const AUTHORITY_KEY: &str = "authority.key";
const AUTHORITY: &str = "authority.pem";
const NODE_KEY: &str = "node.key";
const NODE: &str = "node.pem";

/// The folder with the keys and certificates of this machine. Only its owner may read it; folders
/// and keys that others can read are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterDir {
    path: PathBuf,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// There is no identity.
    #[error(
        "{} holds no identity of this machine: make a cluster with `tandem cluster init`, or join one with \
         `tandem cluster join TOKEN` (`tandem cluster invite` on the machine that made it prints the token)",
        .0.display()
    )]
    Empty(PathBuf),
    /// There is no authority.
    #[error(
        "{} holds no authority: `tandem cluster invite` runs on the machine on which `tandem cluster init` made \
         the cluster",
        .0.display()
    )]
    NoAuthority(PathBuf),
    /// There is something already.
    #[error(
        "{} is there already and is not overwritten: choose another folder, or remove this one if no machine \
         needs its cluster any more",
        .0.display()
    )]
    Taken(PathBuf),
    /// Others can read it.
    #[error(
        "{path} can be read by others (mode {mode:o}): `chmod {wanted:o} {path}` fixes that; if somebody may \
             have read it, make a new cluster instead"
    )]
    Readable {
        /// The file or folder.
        path: String,
        /// Its permissions.
        mode: u32,
        /// What they should be.
        wanted: u32,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is far larger than any key or certificate.
    #[error("{} has more than {MAX_FILE_BYTES} bytes: it is no key or certificate", .0.display())]
    Large(PathBuf),
    /// What the files hold cannot be used.
    #[error("{}: {source}", .path.display())]
    Identity {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: IdentityError,
    },
    /// The authority cannot be made or used.
    #[error("{}: {source}", .path.display())]
    Authority {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: AuthorityError,
    },
}

impl ClusterDir {
    /// The folder at this path, which need not exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an authority, and an identity of this machine under it.
    ///
    /// # Errors
    /// If any of the files is there, or cannot be written.
    pub fn init(&self) -> Result<Identity, DirectoryError> {
        for name in [AUTHORITY_KEY, AUTHORITY, NODE_KEY, NODE] {
            let path = self.path.join(name);
            // An error other than absence shows when the file is written.
            if path.try_exists().unwrap_or(false) {
                return Err(DirectoryError::Taken(path));
            }
        }
        let authority = Authority::create().map_err(|e| self.of_authority(e))?;
        let identity = authority.issue().map_err(|e| self.of_authority(e))?;
        self.make()?;
        self.write_new(AUTHORITY_KEY, authority.key_pem())?;
        self.write_new(AUTHORITY, authority.certificate_pem())?;
        self.write_new(NODE_KEY, identity.key_pem())?;
        // Last: an identity is there when its certificate is.
        self.write_new(NODE, identity.certificate_pem())?;
        Ok(identity)
    }

    /// True if there is an identity, whether it can be used or not.
    #[must_use]
    pub fn has_identity(&self) -> bool {
        self.path.join(NODE).try_exists().unwrap_or(false)
    }

    /// The identity of this machine.
    ///
    /// # Errors
    /// If there is none, others can read its key, or it cannot be used, for example because it has
    /// expired.
    pub fn load(&self) -> Result<Identity, DirectoryError> {
        if !self.has_identity() {
            return Err(DirectoryError::Empty(self.path.clone()));
        }
        check_private(&self.path, 0o700)?;
        let key = self.read_private(NODE_KEY)?;
        let (certificate, authority) = (self.read(NODE)?, self.read(AUTHORITY)?);
        Identity::from_pem(certificate, key, &authority).map_err(|e| self.of_identity(e))
    }

    /// The authority, on the machine that made the cluster.
    ///
    /// # Errors
    /// If it is not here, others can read its key, or it cannot be read.
    pub fn authority(&self) -> Result<Authority, DirectoryError> {
        if !self.path.join(AUTHORITY_KEY).try_exists().unwrap_or(false) {
            return Err(DirectoryError::NoAuthority(self.path.clone()));
        }
        check_private(&self.path, 0o700)?;
        let key = self.read_private(AUTHORITY_KEY)?;
        let certificate = self.read(AUTHORITY)?;
        Authority::from_pem(certificate, key).map_err(|e| self.of_authority(e))
    }

    /// Checks that this machine may join the cluster whose authority has this fingerprint, before a
    /// token is used up, and makes the folder.
    ///
    /// # Errors
    /// [`DirectoryError::Taken`] if there is an identity that is valid, or one of another cluster;
    /// others if the folder cannot be made or is not private.
    pub fn prepare_join(&self, fingerprint: &str) -> Result<(), DirectoryError> {
        let authority = self.path.join(AUTHORITY);
        if authority.try_exists().unwrap_or(false) {
            let held = self.read(AUTHORITY)?;
            let same =
                crate::certificate::fingerprint_of_pem(&held).as_deref() == Some(fingerprint);
            if !same || self.load().is_ok() {
                return Err(DirectoryError::Taken(self.path.clone()));
            }
        }
        self.make()
    }

    /// Keeps what this machine got when it joined. An identity of the same cluster that cannot be
    /// used any more is replaced.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn keep(&self, membership: &Membership) -> Result<(), DirectoryError> {
        self.make()?;
        let identity = membership.identity();
        self.replace(AUTHORITY, membership.authority_pem())?;
        self.replace(NODE_KEY, identity.key_pem())?;
        self.replace(NODE, identity.certificate_pem())
    }

    fn make(&self) -> Result<(), DirectoryError> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(&self.path)
            .map_err(|e| io_error(&self.path, e))?;
        check_private(&self.path, 0o700)
    }

    fn write_new(&self, name: &str, text: &str) -> Result<(), DirectoryError> {
        let path = self.path.join(name);
        write_private(&path, text).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => DirectoryError::Taken(path),
            _ => io_error(&path, e),
        })
    }

    /// Writes a file beside and moves it there, so that it is never there in part.
    fn replace(&self, name: &str, text: &str) -> Result<(), DirectoryError> {
        let path = self.path.join(name);
        let beside = self.path.join(format!("{name}.new"));
        let put = || {
            match std::fs::remove_file(&beside) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            write_private(&beside, text)?;
            std::fs::rename(&beside, &path)
        };
        put().map_err(|e| io_error(&path, e))
    }

    fn read(&self, name: &str) -> Result<String, DirectoryError> {
        let path = self.path.join(name);
        let file = File::open(&path).map_err(|e| io_error(&path, e))?;
        let mut text = String::new();
        let size = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
        let size = size.map_err(|e| io_error(&path, e))?;
        if size as u64 > MAX_FILE_BYTES {
            return Err(DirectoryError::Large(path));
        }
        Ok(text)
    }

    fn read_private(&self, name: &str) -> Result<String, DirectoryError> {
        check_private(&self.path.join(name), 0o600)?;
        self.read(name)
    }

    fn of_authority(&self, source: AuthorityError) -> DirectoryError {
        DirectoryError::Authority {
            path: self.path.clone(),
            source,
        }
    }

    fn of_identity(&self, source: IdentityError) -> DirectoryError {
        DirectoryError::Identity {
            path: self.path.clone(),
            source,
        }
    }
}

fn io_error(path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Writes a new file that only its owner may read, and sees it onto the disk.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Checks that nobody but its owner can use a file or folder.
#[cfg(unix)]
fn check_private(path: &Path, wanted: u32) -> Result<(), DirectoryError> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = path.metadata().map_err(|e| io_error(path, e))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(DirectoryError::Readable {
        path: path.display().to_string(),
        mode,
        wanted,
    })
}

/// Where files have no permissions of this kind, there is nothing to check.
#[cfg(not(unix))]
fn check_private(_: &Path, _: u32) -> Result<(), DirectoryError> {
    Ok(())
}
