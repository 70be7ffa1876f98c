//! Addresses to listen on, as people write them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// A free port of this machine.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Reads `IP:PORT`, or `NAME:PORT` where the name is one of this machine, such as `localhost`: of its addresses the first one
/// of version 4, or the first one.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let example = "write IP:PORT, such as 127.0.0.1:8080";
    let is_whole = text
        .rsplit_once(':')
        .is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok());
    if !is_whole {
        return Err(example.to_owned());
    }
    let found = text
        .to_socket_addrs()
        .map_err(|e| format!("{e}; {example}"))?;
    let found: Vec<SocketAddr> = found.collect();
    let first = found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first());
    first.copied().ok_or_else(|| example.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_addresses() {
        let read = |text| listen_address(text).map(|address| address.to_string());
        for (text, address) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:7001", "127.0.0.1:7001"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(address));
        }
        for text in [
            "",
            ":80",
            "localhost",
            "localhost:",
            "localhost:99999",
            "127.0.0.1",
        ] {
            assert!(read(text).is_err_and(|e| e.contains("IP:PORT")), "{text}");
        }
    }
}
