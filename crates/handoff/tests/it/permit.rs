//! Tickets against a plain list, and sessions against a sender whose answers get lost.

use std::time::Duration;

use proptest::prelude::*;
use tandem_handoff::limits::MAX_SESSIONS;
use tandem_handoff::permit::{Sessions, Tickets};

#[derive(Debug, Clone)]
enum Do {
    Issue(u8, u64, u8, u64),
    Take(u8, u64, u8),
    Revoke(u8),
    Pass(u64),
    Expire,
}

fn any_do() -> impl Strategy<Value = Do> {
    let (secret, handoff, peer) = (0..6u8, 0..2u64, 0..2u8);
    prop_oneof![
        (secret.clone(), handoff.clone(), peer.clone(), 0..9u64)
            .prop_map(|(s, h, p, t)| Do::Issue(s, h, p, t)),
        (secret.clone(), handoff, peer).prop_map(|(s, h, p)| Do::Take(s, h, p)),
        secret.prop_map(Do::Revoke),
        (0..5u64).prop_map(Do::Pass),
        Just(Do::Expire),
    ]
}

/// Secret, handoff, peer, when it expires, what it permits.
type Listed = (u8, u64, u8, Duration, usize);

#[test]
fn debug_formats_tell_no_secret() {
    let mut tickets = Tickets::default();
    tickets.issue("5ec3e7".into(), 1, (), Duration::MAX, ());
    let mut sessions = Sessions::default();
    sessions.renew(None, "5ec3e7".into());
    let told = format!("{tickets:?} {sessions:?}");
    assert_eq!(told, "Tickets(1) Sessions(1)");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ticket_is_good_once_for_one_handoff_one_peer_and_a_time(
        actions in proptest::collection::vec(any_do(), 0..60),
    ) {
        let mut tickets: Tickets<u8, usize> = Tickets::default();
        let mut list: Vec<Listed> = Vec::new();
        let mut now = Duration::ZERO;
        for (id, action) in actions.into_iter().enumerate() {
            match action {
                Do::Issue(secret, handoff, peer, seconds) => {
                    // Secrets are new.
                    if list.iter().all(|t| t.0 != secret) {
                        let expires = now + Duration::from_secs(seconds);
                        tickets.issue(secret.to_string(), handoff, peer, expires, id);
                        list.push((secret, handoff, peer, expires, id));
                    }
                }
                Do::Take(secret, handoff, peer) => {
                    let good = |t: &Listed| (t.0, t.1, t.2) == (secret, handoff, peer) && t.3 > now;
                    let at = list.iter().position(good);
                    let expected = at.map(|at| list.remove(at).4);
                    let taken = tickets.take(&secret.to_string(), handoff, &peer, now);
                    prop_assert_eq!(taken, expected);
                }
                Do::Revoke(secret) => {
                    let at = list.iter().position(|t| t.0 == secret);
                    let expected = at.map(|at| list.remove(at).4);
                    prop_assert_eq!(tickets.revoke(&secret.to_string()), expected);
                }
                Do::Pass(seconds) => now += Duration::from_secs(seconds),
                Do::Expire => {
                    let over = list.extract_if(.., |t| t.3 <= now);
                    let mut expected: Vec<usize> = over.map(|t| t.4).collect();
                    let mut expired = tickets.expired(now);
                    expected.sort_unstable();
                    expired.sort_unstable();
                    prop_assert_eq!(expired, expected);
                }
            }
            prop_assert_eq!(tickets.len(), list.len());
            prop_assert_eq!(tickets.is_empty(), list.is_empty());
            prop_assert_eq!(tickets.next_expiry(), list.iter().map(|t| t.3).min());
        }
    }

    /// `true`: the answer gets lost. A number: how many frames the sender writes on the connection.
    #[test]
    fn the_session_that_the_sender_has_is_always_good(
        connections in proptest::collection::vec((any::<bool>(), 0..3u8), 1..40),
    ) {
        let mut sessions = Sessions::default();
        let mut has: Option<String> = None;
        let mut used: Vec<String> = Vec::new();
        for (i, (lost, frames)) in connections.into_iter().enumerate() {
            let session = format!("session {i}");
            let before: Vec<String> = sessions.all().map(str::to_owned).collect();
            let old = sessions.renew(has.as_deref(), session.clone());
            prop_assert!(old.iter().all(|o| before.contains(o)));
            for secret in &before {
                prop_assert_eq!(sessions.is_session(secret), !old.contains(secret));
            }
            prop_assert!(has.as_deref().is_none_or(|has| sessions.is_session(has)));
            prop_assert!(sessions.is_session(&session));
            prop_assert!(sessions.all().count() <= MAX_SESSIONS);
            if lost {
                continue;
            }
            used.extend(has.replace(session.clone()));
            if frames > 0 {
                used.extend(sessions.heard());
                // Nothing of the past is good any more.
                prop_assert_eq!(sessions.all().collect::<Vec<_>>(), [&session]);
            }
            for past in used.iter().filter(|_| frames > 0) {
                prop_assert!(!sessions.is_session(past));
            }
        }
    }
}
