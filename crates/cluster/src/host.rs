//! Names under which a server on a loopback address may be asked for.
//!
//! A web page may come from a name whose owner lets it stand for this machine afterwards (DNS rebinding). Such a name is in
//! `Host`.

use std::net::IpAddr;

/// Names by which containers reach the machine that they run on; `.internal` belongs to nobody.
const OF_CONTAINERS: [&str; 2] = ["host.docker.internal", "host.containers.internal"];

/// The host of `host[:port]`, in lower case and without a dot at its end.
#[must_use]
pub fn host_name(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// True for a [name](host_name) that means this machine to every resolver.
#[must_use]
pub fn is_this_machine(name: &str) -> bool {
    let ip = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost"
        || name.ends_with(".localhost")
        || OF_CONTAINERS.contains(&name)
        || ip
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        for (host, known) in [
            ("127.0.0.1:8080", true),
            ("127.1.2.3", true),
            ("localhost", true),
            ("LocalHost.:1", true),
            ("app.localhost:8080", true),
            ("[::1]:8080", true),
            ("[::1]", true),
            ("host.docker.internal:8080", true),
            ("evil.example", false),
            ("localhost.evil.example:8080", false),
            ("127.0.0.1.evil.example", false),
            ("192.168.1.5:8080", false),
            ("", false),
        ] {
            assert_eq!(is_this_machine(&host_name(host)), known, "{host}");
        }
    }
}
