//! Who else is on this machine's GPU: what was forgotten there makes all else slow.

use std::process::Command;

use super::checks::Subject;

/// What lists processes, by NVIDIA; not there on other machines.
const PROGRAM: &str = "nvidia-smi";
const QUERY: [&str; 2] = [
    "--query-compute-apps=pid,process_name,used_memory",
    "--format=csv,noheader",
];

/// Names the processes that are not this one.
pub fn check(subject: &mut Subject) {
    let Ok(listed) = Command::new(PROGRAM).args(QUERY).output() else {
        return;
    };
    if !listed.status.success() {
        return;
    }
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let others = others(&text, std::process::id());
    if others.is_empty() {
        return subject.ok("GPU", "nobody else is on it");
    }
    for other in others {
        subject.warn(
            "GPU",
            &other,
            "end it if it is not one of these servers: it takes memory and time",
        );
    }
}

/// Lines of other processes.
fn others(text: &str, own: u32) -> Vec<String> {
    let other = |line: &str| {
        let mut fields = line.split(',').map(str::trim);
        let (pid, name, memory) = (fields.next()?, fields.next()?, fields.next()?);
        let pid: u32 = pid.parse().ok()?;
        (pid != own).then(|| format!("process {pid} ({name}) holds {memory}"))
    };
    text.lines().filter_map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_named() {
        let text = "12, /usr/bin/ollama, 31000 MiB\n7, tandem, 5 MiB\n\nnonsense\n";
        assert_eq!(
            others(text, 7),
            ["process 12 (/usr/bin/ollama) holds 31000 MiB"]
        );
    }
}
