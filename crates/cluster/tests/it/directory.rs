//! Keys on disk.

use std::path::{Path, PathBuf};

use tandem_cluster::{ClusterDir, DirectoryError};

fn temporary() -> (tempfile::TempDir, ClusterDir) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = ClusterDir::new(dir.path().join("deep/below/cluster"));
    (dir, cluster)
}

fn files(cluster: &ClusterDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cluster.path()).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[cfg(unix)]
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_is_made_is_found_again() {
    let (_dir, cluster) = temporary();
    assert!(!cluster.has_identity());
    let made = cluster.init().unwrap();
    assert!(cluster.has_identity());
    let loaded = cluster.load().unwrap();
    assert_eq!(loaded.id(), made.id());
    let authority = cluster.authority().unwrap();
    let further = authority.issue().unwrap();
    assert_eq!(further.authority(), loaded.authority());
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_it() {
    let (_dir, cluster) = temporary();
    cluster.init().unwrap();
    assert_eq!(mode(cluster.path()), 0o700);
    let files = files(&cluster);
    assert_eq!(files.len(), 4);
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[cfg(unix)]
#[test]
fn what_others_can_read_is_refused_with_the_mend() {
    let (_dir, cluster) = temporary();
    cluster.init().unwrap();
    let at = |name: &str| cluster.path().join(name);
    for (path, bad, good) in [
        (at("node.key"), 0o644, 0o600),
        (at("node.key"), 0o640, 0o600),
        (at("node.key"), 0o602, 0o600),
        (cluster.path().to_owned(), 0o755, 0o700),
    ] {
        set_mode(&path, bad);
        let error = cluster.load().unwrap_err().to_string();
        let fix = format!("chmod {good:o} {}", path.display());
        assert!(error.contains(&fix), "{error}");
        set_mode(&path, good);
        cluster.load().unwrap();
    }
    set_mode(&at("authority.key"), 0o604);
    let error = cluster.authority().unwrap_err();
    assert!(matches!(error, DirectoryError::Readable { .. }), "{error}");
    // The identity does not need that key.
    cluster.load().unwrap();
}

#[test]
fn nothing_is_overwritten() {
    let (_dir, cluster) = temporary();
    cluster.init().unwrap();
    let before: Vec<Vec<u8>> = files(&cluster)
        .iter()
        .map(|f| std::fs::read(f).unwrap())
        .collect();
    let error = cluster.init().unwrap_err();
    assert!(matches!(error, DirectoryError::Taken(_)), "{error}");
    let after: Vec<Vec<u8>> = files(&cluster)
        .iter()
        .map(|f| std::fs::read(f).unwrap())
        .collect();
    assert_eq!(before, after);
    // Any one of the files is enough.
    for file in files(&cluster) {
        let (_other_dir, other) = temporary();
        std::fs::create_dir_all(other.path()).unwrap();
        std::fs::write(other.path().join(file.file_name().unwrap()), "mine").unwrap();
        assert!(matches!(other.init(), Err(DirectoryError::Taken(_))));
        assert_eq!(files(&other).len(), 1);
    }
}

#[test]
fn what_is_missing_is_named_with_the_mend() {
    let (_dir, cluster) = temporary();
    let error = cluster.load().unwrap_err().to_string();
    assert!(error.contains("tandem cluster init"), "{error}");
    assert!(error.contains("tandem cluster join"), "{error}");
    let error = cluster.authority().unwrap_err().to_string();
    assert!(error.contains("tandem cluster invite"), "{error}");
}

#[test]
fn files_that_are_no_keys_are_refused() {
    for (name, content) in [
        ("node.pem", String::new()),
        ("node.key", "-----BEGIN NONSENSE-----".to_owned()),
        ("authority.pem", "x".repeat(100_000)),
        ("node.pem", "\u{0}".repeat(65_537)),
    ] {
        let (_dir, cluster) = temporary();
        cluster.init().unwrap();
        std::fs::write(cluster.path().join(name), content).unwrap();
        let error = cluster.load().unwrap_err();
        assert!(
            matches!(
                error,
                DirectoryError::Identity { .. } | DirectoryError::Large(_)
            ),
            "{name}: {error}"
        );
    }
}
