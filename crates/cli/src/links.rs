//! What a link between machines carries, beside what it should.

use std::fmt::Write as _;

use tandem_proto::LinkReport;
use tandem_sched::profile::{Catalogue, Link};

/// A link that carries this part of what it should is as it should be: other work takes some.
const ENOUGH: f64 = 0.8;
/// One direction that carries so many times the other is odd.
const UNEVEN: f64 = 1.5;
/// Bytes of a packet on usual Ethernet.
const USUAL_MTU: u32 = 1500;
/// A longer round trip is not one of a local network, in milliseconds.
const LONG_MS: f64 = 2.0;

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
