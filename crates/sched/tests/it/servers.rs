//! Servers beside nodes and in place of them.

use super::*;

/// Two servers and a pair of nodes; `m` is served by all, `n` by the servers only.
fn scheduler() -> Scheduler {
    let mut scheduler = Scheduler::new(Topology {
        nodes: strings(&["p", "d"]),
        servers: strings(&["s0", "s1"]),
        models: vec![
            routes("m", &["p"], &["d", "s0", "s1"]),
            routes("n", &[], &["s0", "s1"]),
        ],
    });
    tell(
        &mut scheduler,
        up("p", status(Role::Prefill, vec![held("m", 4, "t")])),
    );
    tell(
        &mut scheduler,
        up("d", status(Role::Decode, vec![held("m", 1, "t")])),
    );
    for server in ["s0", "s1"] {
        tell(&mut scheduler, serves(server, 2, &["m", "n"]));
    }
    scheduler
}

fn serves(server: &str, parallel: u32, models: &[&str]) -> Event {
    Event::ServerUp {
        server: server.into(),
        serves: Serves {
            parallel,
            models: strings(models),
        },
    }
}

/// Where a request goes: `node<prefill`, why it goes nowhere, or nothing if it waits.
fn goes(scheduler: &mut Scheduler, event: Event) -> Vec<String> {
    let actions = tell(scheduler, event);
    let show = |action: &Action| match action {
        Action::Start { plan, .. } => {
            let prefill = plan.prefill.as_deref().unwrap_or("-");
            Some(format!("{}<{prefill}", plan.decode))
        }
        Action::Reject { reason, .. } => Some(reason.to_string()),
        Action::Queued { .. } | Action::Pin { .. } => None,
    };
    actions.iter().filter_map(show).collect()
}

#[test]
fn equal_servers_and_nodes_share_the_load() {
    let mut s = scheduler();
    let mut asks = |request: &str, route| goes(&mut s, submit(request, "m", route));
    assert_eq!(asks("a", Route::Auto), ["d<p"]);
    assert_eq!(asks("b", Route::Auto), ["s0<-"]);
    assert_eq!(asks("c", Route::Auto), ["s1<-"]);
    // The node has room for one only, and a route is nothing that a server knows.
    assert_eq!(asks("d", Route::Remote), Vec::<String>::new());
    assert_eq!(asks("e", Route::Local), ["s0<-"]);
    assert_eq!(goes(&mut s, finished("a")), ["d<p"]);
}

#[test]
fn a_server_has_one_limit_for_all_of_its_models() {
    let mut s = scheduler();
    for (request, model, expected) in [
        ("a", "n", "s0<-"),
        ("b", "n", "s1<-"),
        ("c", "n", "s0<-"),
        ("d", "n", "s1<-"),
    ] {
        assert_eq!(
            goes(&mut s, submit(request, model, Route::Auto)),
            [expected]
        );
    }
    assert!(goes(&mut s, submit("e", "n", Route::Auto)).is_empty());
    assert_eq!(goes(&mut s, submit("f", "m", Route::Auto)), ["d<p"]);
    assert!(goes(&mut s, submit("g", "m", Route::Auto)).is_empty());
    let views = s.servers();
    assert_eq!(views.iter().map(|v| v.requests).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(s.nodes().len(), 2);
    assert_eq!(goes(&mut s, finished("b")), ["s1<-"]);
}

#[test]
fn a_server_that_fails_is_avoided_and_named() {
    let failed = |request: &str, node: &str, failure| Event::DecodeFailed {
        request: request.into(),
        node: node.into(),
        failure,
        retry: true,
    };
    for failure in [
        Failure::Lost,
        Failure::Refused,
        Failure::TooLong,
        Failure::Busy,
    ] {
        let mut s = scheduler();
        assert_eq!(goes(&mut s, submit("a", "n", Route::Auto)), ["s0<-"]);
        assert_eq!(goes(&mut s, failed("a", "s0", failure)), ["s1<-"]);
    }
    let mut s = scheduler();
    tell(&mut s, serves("s0", 2, &["m"]));
    assert_eq!(goes(&mut s, submit("a", "n", Route::Auto)), ["s1<-"]);
    let told = goes(&mut s, failed("a", "s1", Failure::Refused));
    for part in ["`s0` does not serve `n`", "`s1` failed this request"] {
        assert!(told[0].contains(part), "{told:?}");
    }
    for server in ["s0", "s1"] {
        let down = Event::NodeDown {
            node: server.into(),
            reason: "has no key".into(),
            may_return: false,
        };
        tell(&mut s, down);
    }
    let unavailable: Vec<String> = s.unavailable().iter().map(ToString::to_string).collect();
    assert!(
        unavailable.len() == 1 && unavailable[0].contains("`s0` is down: has no key"),
        "{unavailable:?}"
    );
}
