//! One situation, one decision.

use super::*;
use tandem_sched::limits::{BLOCKS_PER_REQUEST, MAX_PREFIXES};

const PAIR: &[&str] = &["p0", "p1", "d0", "d1"];

/// Two prefill and two decode nodes, all up, `m` everywhere.
fn pairs(sequences: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(PAIR),
        models: vec![routes("m", &["p0", "p1"], &["d0", "d1"])],
    });
    for &node in PAIR {
        let role = if node.starts_with('p') {
            Role::Prefill
        } else {
            Role::Decode
        };
        tell(
            &mut scheduler,
            up(node, status(role, vec![held("m", sequences, "t")])),
        );
    }
    scheduler
}

/// `request@decode<prefill`, `request!why` and `request?before` for what was decided.
fn shown(actions: &[Action]) -> Vec<String> {
    let show = |action: &Action| match action {
        Action::Start { request, plan } => {
            let prefill = plan.prefill.as_deref().unwrap_or("-");
            format!("{request}@{}<{prefill}", plan.decode)
        }
        Action::Reject { request, reason } => format!("{request}!{reason}"),
        Action::Queued { request, before } => format!("{request}?{before}"),
        Action::Pin { model, .. } => format!("pin {model}"),
    };
    actions.iter().map(show).collect()
}

fn check(scheduler: &mut Scheduler, event: Event, expected: &[&str]) {
    let text = format!("{event:?}");
    assert_eq!(shown(&tell(scheduler, event)), expected, "{text}");
}

fn plan(scheduler: &mut Scheduler, request: &str, model: &str, route: Route) -> Plan {
    match tell(scheduler, submit(request, model, route)).remove(0) {
        Action::Start { plan, .. } => plan,
        other => panic!("{other:?}"),
    }
}

fn rejection(scheduler: &mut Scheduler, model: &str, route: Route) -> Rejection {
    match tell(scheduler, submit("r", model, route)).remove(0) {
        Action::Reject { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn load_is_balanced_and_order_decides_ties() {
    let mut s = pairs(2);
    check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p0"]);
    check(&mut s, submit("b", "m", Route::Auto), &["b@d1<p1"]);
    check(&mut s, finished("a"), &[]);
    check(&mut s, submit("c", "m", Route::Remote), &["c@d0<p0"]);
    let prefill_ended = Event::PrefillEnded {
        request: "b".into(),
        computed: true,
    };
    check(&mut s, prefill_ended, &[]);
    check(&mut s, submit("d", "m", Route::Auto), &["d@d0<p1"]);
    check(&mut s, submit("e", "m", Route::Local), &["e@d1<-"]);
}

/// A prompt whose first blocks are of this family.
fn begins(family: u64, blocks: u64) -> Vec<u64> {
    (0..blocks).map(|i| family * 1000 + i).collect()
}

#[test]
fn the_next_turn_goes_where_the_one_before_has_been() {
    let mut s = pairs(2);
    let submit = |id: &str, prefix: &[u64]| about(submit(id, "m", Route::Auto), prefix);
    let finish = |id: &str, prefix: &[u64]| about(finished(id), prefix);
    check(&mut s, submit("a", &begins(1, 1)), &["a@d0<p0"]);
    check(&mut s, submit("b", &begins(2, 1)), &["b@d1<p1"]);
    // Its prefill has ended before it has.
    let prefill_ended = Event::PrefillEnded {
        request: "b".into(),
        computed: true,
    };
    check(&mut s, prefill_ended, &[]);
    // Of one that is cancelled some may be where it was read.
    check(&mut s, submit("x", &begins(3, 9)), &["x@d0<p1"]);
    let cancel = Event::Cancel {
        request: "x".into(),
    };
    check(&mut s, cancel, &[]);
    check(&mut s, finish("a", &begins(1, 3)), &[]);
    check(&mut s, finish("b", &begins(2, 3)), &[]);
    let reason = |actions: Vec<Action>| match &actions[..] {
        [Action::Start { plan, .. }] => plan.reason.clone(),
        other => panic!("{other:?}"),
    };
    // All are idle: order would say `d0` and `p0`.
    check(&mut s, submit("c", &begins(2, 2)), &["c@d1<p1"]);
    check(&mut s, finish("c", &begins(2, 4)), &[]);
    let told = reason(tell(&mut s, submit("d", &begins(2, 9))));
    assert_eq!(
        told,
        "decode on `d1`, where 0 sequences of the model run and the first 2048 bytes of the prompt have been \
         before; prefill on `p1`, where 0 prefills run and the first 2048 bytes of the prompt have been before"
    );
    check(&mut s, finish("d", &begins(2, 9)), &[]);
    check(&mut s, submit("e", &begins(1, 9)), &["e@d0<p0"]);
    check(&mut s, finish("e", &begins(1, 9)), &[]);
    check(&mut s, submit("f", &begins(3, 9)), &["f@d0<p1"]);
    // Nobody has seen it, or has seen it of another model.
    check(&mut s, submit("g", &begins(4, 9)), &["g@d1<p0"]);
}

/// What several share is read once: nobody waits, and the others go where it is being read.
#[test]
fn who_begins_like_a_prefill_that_goes_on_goes_there() {
    let many = u64::try_from(2 * BLOCKS_PER_REQUEST).unwrap();
    let shares = |id: &str, blocks: u64, own: u64| {
        let prefix = [begins(1, blocks), begins(own, 20)].concat();
        about(submit(id, "m", Route::Auto), &prefix)
    };
    let mut s = pairs(9);
    check(&mut s, shares("a", many, 2), &["a@d0<p0"]);
    check(&mut s, shares("b", many, 3), &["b@d1<p0"]);
    // Two more there are as much as it is worth.
    check(&mut s, shares("c", many, 4), &["c@d0<p0"]);
    check(&mut s, shares("d", many, 5), &["d@d1<p1"]);
    // These have too little of it, or nothing.
    check(&mut s, shares("e", 1, 6), &["e@d0<p1"]);
    check(&mut s, shares("f", 0, 7), &["f@d1<p1"]);
}

/// They are another pair once one of them has been away.
#[test]
fn a_refused_pair_is_not_paired_again() {
    let mut s = pairs(2);
    let refuse = |prefill: &str| Event::PairRefused {
        prefill: prefill.into(),
        decode: "d0".into(),
        model: "m".into(),
    };
    check(&mut s, refuse("p0"), &[]);
    check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p1"]);
    check(&mut s, finished("a"), &[]);
    check(&mut s, refuse("p1"), &[]);
    let alone = plan(&mut s, "b", "m", Route::Auto);
    assert_eq!((&*alone.decode, &alone.prefill), ("d0", &None));
    assert!(
        alone.notes[0].contains("do not compute the same"),
        "{alone:?}"
    );
    check(&mut s, finished("b"), &[]);
    let down = Event::NodeDown {
        node: "p1".into(),
        reason: "it has gone".into(),
        may_return: true,
    };
    check(&mut s, down, &[]);
    let back = up("p1", status(Role::Prefill, vec![held("m", 2, "t")]));
    check(&mut s, back, &[]);
    check(&mut s, submit("c", "m", Route::Auto), &["c@d0<p1"]);
}

#[test]
fn who_has_seen_a_prompt_is_preferred_up_to_a_number_of_requests() {
    let per = u64::try_from(BLOCKS_PER_REQUEST).unwrap();
    for (blocks, expected) in [(per, "n@d0<p0"), (per + 1, "n@d1<p1")] {
        let mut s = pairs(2);
        // `d1` and `p1` have seen it, and one request runs there.
        check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p0"]);
        check(&mut s, submit("b", "m", Route::Auto), &["b@d1<p1"]);
        check(&mut s, about(finished("b"), &begins(1, blocks)), &[]);
        check(&mut s, submit("c", "m", Route::Auto), &["c@d1<p1"]);
        check(&mut s, finished("a"), &[]);
        let next = about(submit("n", "m", Route::Auto), &begins(1, 99));
        check(&mut s, next, &[expected]);
    }
    // However long it is: what all share is soon where nobody else would have anything to do.
    let mut s = pairs(8);
    check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p0"]);
    check(&mut s, about(finished("a"), &begins(1, 999)), &[]);
    for (id, expected) in [
        ("b", "b@d0<p0"),
        ("c", "c@d0<p0"),
        ("d", "d@d0<p0"),
        ("e", "e@d1<p1"),
    ] {
        check(
            &mut s,
            about(submit(id, "m", Route::Auto), &begins(1, 999)),
            &[expected],
        );
    }
    // Where there is no room it does not wait.
    let mut s = pairs(1);
    check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p0"]);
    check(&mut s, about(finished("a"), &begins(1, 99)), &[]);
    let next = |id| about(submit(id, "m", Route::Auto), &begins(1, 99));
    check(&mut s, next("b"), &["b@d0<p0"]);
    check(&mut s, next("c"), &["c@d1<p1"]);
}

/// The part of a prompt in percent that the decode node may compute itself, for each way of having seen its blocks.
#[test]
fn who_has_seen_more_than_the_prefill_node_may_compute_what_is_left() {
    // (blocks the decode node has seen, blocks the prefill node has seen, blocks of the prompt, route, percent); of what is no turn
    // of a conversation 0.
    let table = [
        (0, 0, 100, Route::Auto, 0),
        (90, 90, 100, Route::Auto, 0),
        (90, 95, 100, Route::Auto, 0),
        (90, 0, 100, Route::Auto, 25),
        (90, 0, 100, Route::Remote, 0),
        (90, 0, 100, Route::Local, 100),
        (1, 0, 100, Route::Auto, 25),
        (90, 60, 100, Route::Auto, 10),
        (100, 99, 100, Route::Auto, 0),
        (3, 0, 3, Route::Auto, 25),
        (1, 0, 1, Route::Auto, 25),
    ];
    for (by_decode, by_prefill, blocks, route, percent) in table {
        let mut s = Scheduler::new(Topology {
            servers: Vec::new(),
            nodes: strings(&["p", "d"]),
            models: vec![routes("m", &["p"], &["d"])],
        });
        for (node, role) in [("p", Role::Prefill), ("d", Role::Decode)] {
            tell(&mut s, up(node, status(role, vec![held("m", 9, "t")])));
        }
        let parts = [(by_decode, Route::Local), (by_prefill, Route::Auto)];
        for (seen, route) in parts {
            tell(&mut s, submit("before", "m", route));
            tell(&mut s, about(finished("before"), &begins(1, seen)));
        }
        let next = about(submit("next", "m", route), &begins(1, blocks));
        for next in [next.clone(), begun_alike(next)] {
            let expected = match &next {
                Event::Submit { goes_on: false, .. } if percent < 100 => 0,
                _ => percent,
            };
            let found = match tell(&mut s, next).remove(0) {
                Action::Start { plan, .. } => plan,
                other => panic!("{other:?}"),
            };
            tell(&mut s, cancel("next"));
            let case = (by_decode, by_prefill, blocks, route);
            assert_eq!(found.alone_percent, expected, "{case:?}");
        }
    }
}

/// A turn whose prefill node is full waits for it, or is left to its decode node, for each way of having seen its blocks.
#[test]
fn a_turn_that_its_decode_node_would_compute_itself_waits_for_nobody() {
    // (blocks the decode node has seen, blocks the prefill node has seen, blocks of the prompt, route, how it goes on)
    let table = [
        (100, 0, 100, Route::Auto, "next@d<-"),
        (75, 0, 100, Route::Auto, "next@d<-"),
        (74, 0, 100, Route::Auto, "next?0"),
        (90, 60, 100, Route::Auto, "next@d<-"),
        (89, 60, 100, Route::Auto, "next?0"),
        (100, 100, 100, Route::Auto, "next?0"),
        (90, 0, 100, Route::Remote, "next?0"),
        (0, 0, 100, Route::Auto, "next?0"),
        (0, 0, 0, Route::Auto, "next?0"),
    ];
    for (by_decode, by_prefill, blocks, route, expected) in table {
        // With two prefill nodes the one counts that has seen more.
        for prefill in [&["p"][..], &["q", "p"], &["p", "q"]] {
            let mut s = Scheduler::new(Topology {
                servers: Vec::new(),
                nodes: strings(&["p", "d", "q"]),
                models: vec![routes("m", prefill, &["d"])],
            });
            for (node, role) in [("p", Role::Prefill), ("d", Role::Decode)] {
                let sequences = if node == "p" { 1 } else { 9 };
                tell(
                    &mut s,
                    up(node, status(role, vec![held("m", sequences, "t")])),
                );
            }
            let parts = [(by_decode, Route::Local), (by_prefill, Route::Auto)];
            for (seen, route) in parts {
                tell(&mut s, submit("before", "m", route));
                tell(&mut s, about(finished("before"), &begins(1, seen)));
            }
            tell(
                &mut s,
                up("q", status(Role::Prefill, vec![held("m", 1, "t")])),
            );
            for id in &["x", "y"][..prefill.len()] {
                tell(&mut s, submit(id, "m", Route::Auto));
            }
            let next = about(submit("next", "m", route), &begins(1, blocks));
            let case = (by_decode, by_prefill, blocks, route, prefill);
            // What begins like a prompt that was there before is no turn of a conversation.
            check(&mut s, begun_alike(next.clone()), &["next?0"]);
            tell(&mut s, cancel("next"));
            let actions = tell(&mut s, next);
            assert_eq!(shown(&actions), [expected], "{case:?}");
            if let [Action::Start { plan, .. }] = &actions[..] {
                assert!(
                    plan.notes[0].contains("no prefill node has room"),
                    "{plan:?}"
                );
                assert!((1..=25).contains(&plan.alone_percent), "{plan:?}");
            }
        }
    }
}

/// It waits for a prefill node, as it would have if nothing had been taken to be there.
#[test]
fn a_turn_of_which_its_decode_node_has_less_than_was_thought_waits() {
    let mut s = Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(&["p", "d"]),
        models: vec![routes("m", &["p"], &["d"])],
    });
    for (node, role, sequences) in [("p", Role::Prefill, 1), ("d", Role::Decode, 9)] {
        let status = status(role, vec![held("m", sequences, "t")]);
        tell(&mut s, up(node, status));
    }
    tell(&mut s, submit("before", "m", Route::Local));
    tell(&mut s, about(finished("before"), &begins(1, 9)));
    check(&mut s, submit("x", "m", Route::Auto), &["x@d<p"]);
    let next = about(submit("next", "m", Route::Auto), &begins(1, 9));
    check(&mut s, next, &["next@d<-"]);
    let lacks = || failed("next", "d", Failure::Lacks, true);
    check(&mut s, lacks(), &[]);
    // Others are decoded there all the same.
    check(&mut s, submit("y", "m", Route::Local), &["y@d<-"]);
    check(&mut s, finished("x"), &["next@d<p"]);
    // A node that says so again and again is one that cannot.
    let actions = shown(&tell(&mut s, lacks()));
    assert!(
        actions[0].starts_with("next!nobody can answer with"),
        "{actions:?}"
    );
}

#[test]
fn a_prefill_node_that_was_not_needed_has_seen_nothing() {
    for computed in [false, true] {
        let mut s = pairs(2);
        check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p0"]);
        let ended = Event::PrefillEnded {
            request: "a".into(),
            computed,
        };
        check(&mut s, ended, &[]);
        check(&mut s, about(finished("a"), &begins(1, 40)), &[]);
        // Another prompt begins at the same time.
        check(&mut s, submit("b", "m", Route::Auto), &["b@d0<p0"]);
        let next = about(submit("c", "m", Route::Auto), &begins(1, 40));
        let expected = if computed { "c@d0<p0" } else { "c@d0<p1" };
        check(&mut s, next, &[expected]);
    }
}

#[test]
fn beginnings_are_forgotten_when_there_are_too_many() {
    let mut s = pairs(2);
    check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p0"]);
    check(&mut s, submit("b", "m", Route::Auto), &["b@d1<p1"]);
    check(&mut s, about(finished("b"), &[1]), &[]);
    check(&mut s, finished("a"), &[]);
    let next = |id| about(submit(id, "m", Route::Auto), &[1]);
    check(&mut s, next("c"), &["c@d1<p1"]);
    let many: Vec<u64> = (2..MAX_PREFIXES.get() as u64 + 2).collect();
    check(&mut s, about(finished("c"), &many), &[]);
    check(&mut s, next("d"), &["d@d0<p0"]);
}

#[test]
fn the_queue_is_first_in_first_out_and_moves_when_a_request_ends() {
    let mut s = pairs(1);
    check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p0"]);
    check(&mut s, submit("b", "m", Route::Auto), &["b@d1<p1"]);
    check(&mut s, submit("c", "m", Route::Auto), &["c?0"]);
    check(&mut s, submit("d", "m", Route::Auto), &["d?1"]);
    check(&mut s, submit("e", "m", Route::Auto), &["e?2"]);
    check(&mut s, cancel("d"), &[]);
    check(&mut s, finished("b"), &["c@d1<p1"]);
    check(&mut s, cancel("a"), &["e@d0<p0"]);
    assert_eq!(s.queued("m"), 0);
    assert_eq!(running(&s), 2);
}

#[test]
fn a_full_prefill_node_is_waited_for_and_freed_when_its_prefill_ends() {
    let mut s = Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(&["p", "d"]),
        models: vec![routes("m", &["p"], &["d"])],
    });
    tell(
        &mut s,
        up("p", status(Role::Prefill, vec![held("m", 1, "t")])),
    );
    tell(
        &mut s,
        up("d", status(Role::Decode, vec![held("m", 4, "t")])),
    );
    check(&mut s, submit("a", "m", Route::Auto), &["a@d<p"]);
    check(&mut s, submit("b", "m", Route::Auto), &["b?0"]);
    check(&mut s, submit("c", "m", Route::Local), &["c@d<-"]);
    let prefill_ended = Event::PrefillEnded {
        request: "a".into(),
        computed: true,
    };
    check(&mut s, prefill_ended, &["b@d<p"]);
}

#[test]
fn a_difference_of_contract_excludes_a_prefill_node_and_is_named() {
    let mut s = pairs(2);
    tell(
        &mut s,
        up("p0", status(Role::Prefill, vec![held("m", 2, "other")])),
    );
    let found = plan(&mut s, "a", "m", Route::Auto);
    assert_eq!(found.prefill.as_deref(), Some("p1"));
    assert!(found.notes[0].contains("`tokenizer`"), "{:?}", found.notes);
    tell(
        &mut s,
        up("p1", status(Role::Prefill, vec![held("m", 2, "other")])),
    );
    let found = plan(&mut s, "b", "m", Route::Auto);
    assert_eq!(found.prefill, None);
    assert!(found.notes.iter().any(|n| n.contains("`tokenizer`")));
    assert!(found.notes.iter().any(|n| n.contains("prefills by itself")));
    let same = plan(&mut s, "c", "m", Route::Remote);
    assert_eq!((same.prefill, same.notes.len()), (None, found.notes.len()));
}

/// A status of the model `m` in another quantisation.
/// Prefill nodes that hold the same model change nothing.
#[test]
fn a_model_that_stays_is_prefilled_where_it_decodes_and_the_plan_says_why() {
    let staying = || ModelStatus {
        stays: Some("it keeps a state".into()),
        ..held("m", 2, "t")
    };
    let mut s = pairs(2);
    for node in PAIR {
        tell(&mut s, up(node, status(Role::Both, vec![staying()])));
    }
    for (request, route) in [("a", Route::Auto), ("b", Route::Remote)] {
        let plan = plan(&mut s, request, "m", route);
        assert_eq!((plan.prefill, plan.alone_percent), (None, 100));
        let expected = [
            "KV of `m` is not handed over: it keeps a state".to_owned(),
            format!("`{}` prefills by itself", plan.decode),
        ];
        assert_eq!(plan.notes, expected);
    }
    check(&mut s, submit("c", "m", Route::Local), &["c@d0<-"]);
}

fn quantised(role: Role, quantisation: &str) -> Box<NodeStatus> {
    let mut status = status(role, vec![held("m", 2, "t")]);
    let contract = &mut status.models[0].contract;
    contract.quantisation = quantisation.into();
    contract.weights = quantisation.into();
    status
}

#[test]
fn another_quantisation_prefills_only_where_that_is_permitted_and_after_an_equal_one() {
    for permitted in [false, true] {
        let mut s = Scheduler::new(Topology {
            servers: Vec::new(),
            nodes: strings(&["p0", "p1", "d"]),
            models: vec![ModelRoutes {
                mixed_quantisation: permitted,
                ..routes("m", &["p0", "p1"], &["d"])
            }],
        });
        tell(
            &mut s,
            up("d", status(Role::Decode, vec![held("m", 9, "t")])),
        );
        tell(&mut s, up("p0", quantised(Role::Prefill, "q8_0")));
        let found = plan(&mut s, "a", "m", Route::Auto);
        assert_eq!(found.prefill.is_some(), permitted);
        assert_eq!(found.mixed_quantisation, permitted);
        let told = match permitted {
            true => "prefill with quantisation q8_0 on `p0`, decode with quantisation f16 on `d`",
            false => "`quantisation` differs",
        };
        assert!(found.notes[0].contains(told), "{:?}", found.notes);
        // One with the same quantisation is better, though it has more to do.
        tell(
            &mut s,
            up("p1", status(Role::Prefill, vec![held("m", 2, "t")])),
        );
        for request in ["b", "c"] {
            let found = plan(&mut s, request, "m", Route::Auto);
            assert_eq!(found.prefill.as_deref(), Some("p1"));
            assert!(!found.mixed_quantisation);
        }
        // Where there is no other one, it is as good as any.
        let next = tell(&mut s, submit("e", "m", Route::Auto)).remove(0);
        let starts = matches!(&next, Action::Start { plan, .. } if plan.mixed_quantisation);
        assert_eq!(starts, permitted, "{next:?}");
    }
}

#[test]
fn the_remote_route_avoids_a_decode_node_without_prefill() {
    let mut s = pairs(2);
    // The same model in another engine, which takes no KV of the others.
    let mut other = held("m", 2, "t");
    other.contract.engine = "other".into();
    tell(&mut s, up("d0", status(Role::Decode, vec![other])));
    assert_eq!(plan(&mut s, "a", "m", Route::Remote).decode, "d1");
    assert_eq!(plan(&mut s, "b", "m", Route::Auto).decode, "d0");
    // It is waited for, and gets its turn before what came later.
    assert_eq!(plan(&mut s, "c", "m", Route::Remote).decode, "d1");
    check(&mut s, submit("d", "m", Route::Remote), &["d?0"]);
    assert_eq!(plan(&mut s, "e", "m", Route::Auto).decode, "d0");
    check(&mut s, submit("f", "m", Route::Auto), &["f?1"]);
    check(&mut s, finished("c"), &["d@d1<p1"]);
}

#[test]
fn refusals_say_why() {
    let mut s = pairs(1);
    let reason = rejection(&mut s, "x", Route::Auto);
    assert_eq!(reason.to_string(), "the model `x` is not configured");
    let down = |node: &str| Event::NodeDown {
        node: node.into(),
        reason: "connection refused".into(),
        may_return: false,
    };
    tell(&mut s, down("p0"));
    tell(&mut s, down("p1"));
    let found = plan(&mut s, "a", "m", Route::Remote);
    assert_eq!((&*found.decode, &found.prefill), ("d0", &None));
    let notes = found.notes.join("; ");
    assert!(
        notes.contains("`p1` is down: connection refused"),
        "{notes}"
    );
    assert!(notes.contains("`d0` prefills by itself"), "{notes}");
    tell(&mut s, finished("a"));
    assert!(s.unavailable().is_empty());
    tell(&mut s, down("d0"));
    tell(
        &mut s,
        up("d1", status(Role::Prefill, vec![held("m", 1, "t")])),
    );
    let reason = rejection(&mut s, "m", Route::Auto).to_string();
    assert!(
        reason.contains("`d0` is down: connection refused"),
        "{reason}"
    );
    assert!(reason.contains("`d1` does not decode"), "{reason}");
    assert_eq!(s.unavailable().len(), 1);
    tell(
        &mut s,
        up("d1", status(Role::Decode, vec![held("other", 1, "t")])),
    );
    let reason = rejection(&mut s, "m", Route::Local).to_string();
    assert!(reason.contains("`d1` does not hold `m`"), "{reason}");
}

#[test]
fn the_queue_has_a_limit_and_ids_are_unique() {
    let mut s = pairs(1);
    for i in 0..limits::MAX_QUEUED + 2 {
        tell(&mut s, submit(&format!("r{i}"), "m", Route::Auto));
    }
    let reason = rejection(&mut s, "m", Route::Auto);
    assert!(matches!(reason, Rejection::QueueFull { limit: 256, .. }));
    let mut s = pairs(1);
    tell(&mut s, submit("r", "m", Route::Auto));
    let reason = rejection(&mut s, "m", Route::Auto);
    assert!(matches!(reason, Rejection::DuplicateRequest { .. }));
}

#[test]
fn a_lost_decode_node_is_left_alone_until_its_next_status() {
    let mut s = pairs(1);
    check(&mut s, submit("a", "m", Route::Auto), &["a@d0<p0"]);
    check(&mut s, failed("a", "d0", Failure::Lost, true), &["a@d1<p0"]);
    check(&mut s, submit("b", "m", Route::Auto), &["b?0"]);
    let d0 = || up("d0", status(Role::Decode, vec![held("m", 1, "t")]));
    check(&mut s, d0(), &["b@d0<p1"]);
    // A report about a plan that is no longer in force changes nothing.
    check(&mut s, failed("a", "d0", Failure::Lost, true), &[]);
    let both = "a!nobody can answer with `m`: `d0` failed this request; `d1` failed this request";
    check(&mut s, failed("a", "d1", Failure::Lost, true), &[both]);
}

/// Requests wait for the only node that can serve them, as long as it may come back.
#[test]
fn a_node_that_has_just_gone_is_waited_for() {
    let mut s = Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(&["d"]),
        models: vec![routes("m", &[], &["d"])],
    });
    let status = || up("d", status(Role::Both, vec![held("m", 2, "t")]));
    let down = |may_return| Event::NodeDown {
        node: "d".into(),
        reason: "connection refused".into(),
        may_return,
    };
    tell(&mut s, status());
    check(&mut s, submit("a", "m", Route::Auto), &["a@d<-"]);
    // It has not been there, so it may go there again.
    check(&mut s, failed("a", "d", Failure::Unreachable, true), &[]);
    check(&mut s, down(true), &[]);
    check(&mut s, submit("b", "m", Route::Auto), &["b?1"]);
    assert_eq!(s.unavailable().len(), 1);
    check(&mut s, status(), &["a@d<-", "b@d<-"]);
    // One that may have killed it does not wait for it.
    let killed = "a!nobody can answer with `m`: `d` failed this request";
    check(&mut s, down(true), &[]);
    check(&mut s, failed("a", "d", Failure::Lost, true), &[killed]);
    check(&mut s, submit("c", "m", Route::Auto), &["c?0"]);
    let gone = "c!nobody can answer with `m`: `d` is down: connection refused";
    check(&mut s, down(false), &[gone]);
}

#[test]
fn a_busy_node_is_asked_again_after_its_next_status() {
    let mut s = Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(&["d"]),
        models: vec![routes("m", &[], &["d"])],
    });
    let status = || up("d", status(Role::Both, vec![held("m", 2, "t")]));
    tell(&mut s, status());
    check(&mut s, submit("a", "m", Route::Auto), &["a@d<-"]);
    check(&mut s, failed("a", "d", Failure::Busy, true), &[]);
    check(&mut s, submit("b", "m", Route::Auto), &["b?1"]);
    check(&mut s, status(), &["a@d<-", "b@d<-"]);
    for _ in 1..limits::MAX_BUSY_RETRIES {
        check(&mut s, failed("a", "d", Failure::Busy, true), &[]);
        check(&mut s, status(), &["a@d<-"]);
    }
    let given_up = "a!gave up on `m` after 601 attempts";
    check(&mut s, failed("a", "d", Failure::Busy, true), &[given_up]);
}

#[test]
fn a_request_that_starts_over_keeps_its_turn() {
    let mut s = pairs(1);
    for (request, expected) in [
        ("a", "a@d0<p0"),
        ("b", "b@d1<p1"),
        ("c", "c?0"),
        ("d", "d?1"),
    ] {
        check(&mut s, submit(request, "m", Route::Auto), &[expected]);
    }
    check(&mut s, failed("b", "d1", Failure::Busy, true), &[]);
    check(&mut s, failed("a", "d0", Failure::Busy, true), &[]);
    let status = |node: &str| up(node, status(Role::Decode, vec![held("m", 1, "t")]));
    check(&mut s, status("d1"), &["a@d1<p0"]);
    check(&mut s, status("d0"), &["b@d0<p1"]);
    check(&mut s, finished("a"), &["c@d1<p0"]);
}

#[test]
fn attempts_have_a_limit() {
    let nodes = ["d0", "d1", "d2", "d3"];
    let mut s = Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(&nodes),
        models: vec![routes("m", &[], &nodes)],
    });
    for node in nodes {
        tell(
            &mut s,
            up(node, status(Role::Decode, vec![held("m", 1, "t")])),
        );
    }
    tell(&mut s, submit("a", "m", Route::Auto));
    tell(&mut s, failed("a", "d0", Failure::Refused, true));
    tell(&mut s, failed("a", "d1", Failure::Refused, true));
    let given_up = "a!gave up on `m` after 3 attempts";
    check(
        &mut s,
        failed("a", "d2", Failure::Refused, true),
        &[given_up],
    );
}

#[test]
fn a_node_hands_kv_to_itself_only_if_told_to_and_alone() {
    let mut s = Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(&["n"]),
        models: vec![
            routes("m", &["n"], &["n"]),
            routes("one", &["n"], &["n"]),
            routes("alone", &[], &["n"]),
        ],
    });
    let models = vec![
        held("m", 3, "t"),
        held("one", 1, "t"),
        held("alone", 9, "t"),
    ];
    tell(&mut s, up("n", status(Role::Both, models)));
    let found = plan(&mut s, "a", "m", Route::Auto);
    assert_eq!((found.prefill, found.notes), (None, Vec::new()));
    let found = plan(&mut s, "b", "m", Route::Remote);
    assert_eq!(found.prefill.as_deref(), Some("n"));
    assert!(found.notes[0].contains("to itself"));
    check(&mut s, submit("c", "m", Route::Local), &["c?0"]);
    for (id, model, why) in [
        ("d", "alone", "no other node is configured for it"),
        ("e", "one", "a handoff to itself needs 2"),
    ] {
        let found = plan(&mut s, id, model, Route::Remote);
        assert_eq!(found.prefill, None, "{model}");
        assert!(found.notes[0].ends_with(why), "{:?}", found.notes);
        assert_eq!(found.notes[1], "`n` prefills by itself");
    }
}
