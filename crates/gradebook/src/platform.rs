//! What each system does in its own way: who may read a file.

use std::path::Path;

/// Nobody else on this machine may read what students wrote.
#[cfg(unix)]
pub(crate) fn private_file(path: &Path) {
    set_mode(path, 0o600);
}

/// Nobody else on this machine may look into this folder.
#[cfg(unix)]
pub(crate) fn private_folder(path: &Path) {
    set_mode(path, 0o700);
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(mode);
    if let Err(reason) = std::fs::set_permissions(path, mode) {
        tracing::warn!(%reason, path = %path.display(), "others on this machine may be able to read this");
    }
}

#[cfg(not(unix))]
pub(crate) fn private_file(_: &Path) {}

#[cfg(not(unix))]
pub(crate) fn private_folder(_: &Path) {}
