//! Parts of tests that need a process of their own.

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
