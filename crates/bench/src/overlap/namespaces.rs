//! Two network namespaces with a shaped link between them: needs root, and `ip` and `tc` of iproute2.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, bail};

use crate::link::Link;
use crate::nodes::Place;

/// Addresses of both ends. The namespaces are of this process alone, so nobody else sees them.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
/// Packets that may wait for their time.
const QUEUE_PACKETS: &str = "100000";
/// What a bucket holds: that of a millisecond, and never less than a large packet.
const BUCKETS_PER_SECOND: u64 = 1000;
const SMALLEST_BUCKET: u64 = 96 << 10;
/// Longest time that a packet waits for the rate.
const QUEUE_TIME: &str = "50ms";

/// The namespaces. Dropping it removes them, and with them the link.
pub struct Namespaces {
    names: [String; 2],
    devices: [String; 2],
    delays: bool,
}

impl Namespaces {
    /// Makes both and joins them by a link of this rate and delay.
    ///
    /// # Errors
    /// If that is not permitted here, or the programs or the kernel's part of shaping are not there.
    pub fn create(link: &Link) -> anyhow::Result<Self> {
        let id = std::process::id();
        let mut made = Self {
            names: ["p", "d"].map(|end| format!("tandem-{id}-{end}")),
            devices: ["p", "d"].map(|end| format!("td{id}{end}")),
            delays: false,
        };
        // What is made up to a failure is removed when `made` is dropped.
        made.join()?;
        made.delays = made.netem_works();
        made.shape(link)?;
        Ok(made)
    }

    fn join(&self) -> anyhow::Result<()> {
        for name in &self.names {
            run("ip", &["netns", "add", name])?;
        }
        let ([a, b], [x, y]) = (&self.names, &self.devices);
        run(
            "ip",
            &[
                "link", "add", x, "netns", a, "type", "veth", "peer", "name", y, "netns", b,
            ],
        )?;
        for ((name, device), address) in self.names.iter().zip(&self.devices).zip(ADDRESSES) {
            let address = format!("{address}/30");
            run("ip", &["-n", name, "addr", "add", &address, "dev", device])?;
            run("ip", &["-n", name, "link", "set", device, "up"])?;
            run("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    fn netem_works(&self) -> bool {
        let (name, device) = (&self.names[0], &self.devices[0]);
        let delay = ["delay", "1ms"];
        let asked = self.qdisc(name, device, "netem", &delay);
        let removed = run("tc", &["-n", name, "qdisc", "del", "dev", device, "root"]);
        asked.is_ok() && removed.is_ok()
    }

    fn qdisc(&self, name: &str, device: &str, kind: &str, terms: &[&str]) -> anyhow::Result<()> {
        let mut arguments = vec!["-n", name, "qdisc", "replace", "dev", device, "root", kind];
        arguments.extend(terms);
        run("tc", &arguments)
    }

    /// False if packets can only be held back to a rate, and not delayed.
    pub const fn delays(&self) -> bool {
        self.delays
    }

    /// Where the prefill node and the decode node run.
    pub fn places(&self) -> [Place; 2] {
        let place = |i: usize| Place {
            namespace: Some(self.names[i].clone()),
            ip: ADDRESSES[i].into(),
            ..Place::here()
        };
        [place(0), place(1)]
    }

    /// Makes the link one of this rate and delay, each way.
    ///
    /// # Errors
    /// If `tc` refuses.
    pub fn shape(&self, link: &Link) -> anyhow::Result<()> {
        let rate = format!("{}bit", link.bits_per_second);
        let delay = format!("{}us", link.one_way().as_micros());
        let bucket = (link.bits_per_second / 8 / BUCKETS_PER_SECOND).max(SMALLEST_BUCKET);
        let bucket = bucket.to_string();
        for (name, device) in self.names.iter().zip(&self.devices) {
            if self.delays {
                let terms = ["delay", &delay, "rate", &rate, "limit", QUEUE_PACKETS];
                self.qdisc(name, device, "netem", &terms)?;
            } else {
                let terms = ["rate", &rate, "burst", &bucket, "latency", QUEUE_TIME];
                self.qdisc(name, device, "tbf", &terms)?;
            }
        }
        Ok(())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was not made cannot be removed.
            let _ = run("ip", &["netns", "del", name]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let done = Command::new(program).args(arguments).output();
    let done = done.with_context(|| format!("`{program}` of iproute2 cannot be run"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("`{program} {}`: {}", arguments.join(" "), said.trim());
    }
    Ok(())
}
