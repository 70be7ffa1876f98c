//! How many files and connections this process may have open.

/// Raises the limit as far as the system allows without asking: each connection is an open file, and macOS and many
/// distributions begin with 256 or 1,024. What fails changes nothing.
#[cfg(unix)]
pub fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    // macOS says that there is no highest one, and allows this many (`OPEN_MAX`).
    let most = limit.maximum.unwrap_or(10_240);
    if limit.current.is_some_and(|current| current < most) {
        let raised = Rlimit {
            current: Some(most),
            ..limit
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, most, "the limit of open files stays as it is");
        }
    }
}

/// Elsewhere there is no such limit.
#[cfg(not(unix))]
pub fn raise_limit() {}
