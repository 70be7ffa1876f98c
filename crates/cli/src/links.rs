//! What a link between machines carries, beside what it should.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Context;
use tandem_coordinator::{Calls, Config, ModelConfig};
use tandem_proto::{LinkReport, LinkRequest};
use tandem_sched::profile::{Catalogue, Link};

/// A link that carries this part of what it should is as it should be: other work takes some.
const ENOUGH: f64 = 0.8;
/// One direction that carries so many times the other is odd.
const UNEVEN: f64 = 1.5;
/// Bytes of a packet on usual Ethernet.
const USUAL_MTU: u32 = 1500;
/// A longer round trip is not one of a local network, in milliseconds.
const LONG_MS: f64 = 2.0;

/// The nodes of each link over which KV goes: who prefills, then who decodes.
pub fn pairs<'a>(models: impl Iterator<Item = &'a ModelConfig>) -> BTreeSet<(&'a str, &'a str)> {
    let of_model = |model: &'a ModelConfig| {
        let decode = |from: &'a String| model.decode.iter().map(move |to| (&**from, &**to));
        model.prefill.iter().flat_map(decode)
    };
    models.flat_map(of_model).filter(|(a, b)| a != b).collect()
}

/// Has one node of a configuration try its link to another.
///
/// # Errors
/// If there are no such nodes, one does not answer, or the link breaks.
pub async fn tried(
    calls: &Calls,
    config: &Config,
    (from, to): (&str, &str),
) -> anyhow::Result<LinkReport> {
    let find = |name: &str| {
        let node = config.nodes.iter().find(|node| node.name == name);
        node.with_context(|| format!("there is no node `{name}`"))
    };
    let (near, far) = (find(from)?, find(to)?);
    // Who is there is learnt of their status.
    let near_status = calls.status(&near.address).await;
    near_status.with_context(|| format!("node `{from}`"))?;
    let far_status = calls.status(&far.address).await;
    let request = LinkRequest {
        to: far.address.clone(),
        peer: far_status.with_context(|| format!("node `{to}`"))?.identity,
    };
    Ok(calls.link(&near.address, &request).await?)
}

/// What was found.
pub struct Verdict {
    /// The figures, and what they are like.
    pub found: String,
    /// What is wrong; nothing if all is as it should be.
    pub faults: Vec<String>,
}

/// Judges a link beside one that it should be; without that the one that it is nearest to is named.
pub fn judge(report: &LinkReport, catalogue: &Catalogue, expected: Option<&Link>) -> Verdict {
    let [there, back] = [report.there, report.back].map(|rate| rate / 1e9);
    let slower = there.min(back);
    let (_, _, links) = catalogue.all();
    let distance = |link: &Link| (slower / link.goodput_gb_s).ln().abs();
    let nearest = links.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let mtu = report
        .mtu
        .map_or(String::new(), |mtu| format!(", packets of {mtu} bytes"));
    let mut found = format!(
        "{} there, {} back, round trip {:.2} ms{mtu}",
        rate(there),
        rate(back),
        report.round_trip_ms
    );
    let mut faults = Vec::new();
    if let Some(link) = expected {
        if slower < link.goodput_gb_s * ENOUGH {
            let should = rate(link.goodput_gb_s);
            faults.push(format!(
                "slower than {}, which should give {should}",
                link.title
            ));
        }
    } else if let Some(link) = nearest {
        let (title, gives) = (&link.title, rate(link.goodput_gb_s));
        let _ = write!(found, "; nearest to {title} ({gives})");
    }
    if there.max(back) > slower * UNEVEN {
        faults.push("one direction is much slower than the other".to_owned());
    }
    if report.mtu.is_some_and(|mtu| mtu < USUAL_MTU) {
        faults.push(format!(
            "packets are smaller than the {USUAL_MTU} bytes of Ethernet, as in a tunnel"
        ));
    }
    if report.round_trip_ms > LONG_MS {
        faults.push("the round trip is longer than in a local network".to_owned());
    }
    Verdict { found, faults }
}

fn rate(gb_s: f64) -> String {
    match gb_s < 0.1 {
        true => format!("{:.1} MB/s", gb_s * 1e3),
        false => format!("{gb_s:.2} GB/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(there: f64, back: f64) -> LinkReport {
        LinkReport {
            there: there * 1e9,
            back: back * 1e9,
            round_trip_ms: 0.4,
            mtu: Some(1500),
        }
    }

    /// Each link of the profiles is found as itself, and one that carries two thirds of what it should is not.
    #[test]
    fn a_link_is_told_from_a_slow_one() {
        let all = Catalogue::built_in().unwrap();
        let (_, _, links) = all.all();
        for link in links {
            let good = link.goodput_gb_s;
            let verdict = judge(&report(good * 0.95, good), &all, Some(link));
            assert!(verdict.faults.is_empty(), "{}", link.name);
            let verdict = judge(&report(good, good * 0.7), &all, Some(link));
            assert!(verdict.faults[0].contains(&link.title), "{}", link.name);
            let verdict = judge(&report(good, good), &all, None);
            assert!(verdict.found.contains(&link.title), "{}", verdict.found);
        }
        let ten = all.link("10gbit").unwrap();
        let uneven = judge(&report(1.17, 0.5), &all, Some(ten));
        assert_eq!(uneven.faults.len(), 2, "{:?}", uneven.faults);
        let far = LinkReport {
            round_trip_ms: 20.0,
            mtu: Some(1400),
            ..report(1.17, 1.17)
        };
        assert_eq!(judge(&far, &all, Some(ten)).faults.len(), 2);
    }
}
