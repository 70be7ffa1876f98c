//! Folders in which nothing can be written: by a limit of a process, which then is one of its own, and by a file system
//! that is full.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]
// Only there is something skipped.
#![cfg_attr(
    target_os = "linux",
    expect(
        clippy::print_stderr,
        reason = "a test says on its output what it skips"
    )
)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a child process finds its folder.
const CHILD_DIR: &str = "TANDEM_TEST_DIR";

/// Runs the ignored test `name`, which must pass, in a process whose files may not grow.
pub fn without_room_on_disk(name: &str, dir: &Path) {
    // The limit of the shell holds for its children only; without the trap they would be killed.
    let script = "trap '' XFSZ; ulimit -f 1 && exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("1 passed"), "{said}");
}

/// In that process: its folder, in which no file can grow.
pub fn full_folder() -> PathBuf {
    let dir = std::env::var_os(CHILD_DIR).expect("started by another test only");
    let probe = Path::new(&dir).join("probe");
    let error = std::fs::write(&probe, [0; 1 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
    std::fs::remove_file(probe).unwrap();
    dir.into()
}

/// A file system of its own in a folder. Only root can mount one; elsewhere [`without_room_on_disk`] stands for it.
#[cfg(target_os = "linux")]
pub struct SmallDisk(PathBuf);

#[cfg(target_os = "linux")]
impl SmallDisk {
    /// `None` for those who are not root.
    pub fn mount(dir: &Path, kib: u32) -> Option<Self> {
        let options = format!("size={kib}k,mode=700");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir)
            .output();
        if !mount.is_ok_and(|m| m.status.success()) {
            eprintln!("SKIPPED: mounting a small file system takes root");
            return None;
        }
        Some(Self(dir.into()))
    }

    /// Somebody else fills it.
    pub fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        let error = loop {
            if let Err(error) = std::io::Write::write_all(&mut filler, &[1; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
}

#[cfg(target_os = "linux")]
impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Somebody may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
