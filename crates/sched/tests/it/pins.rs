//! What the name of a model stands for, and which context a request needs.

use std::collections::BTreeMap;

use super::*;

/// A node with the model `m` of these weights and this quantisation, and with this context.
fn with(node: &str, weights: &str, quantisation: &str, context: u32) -> Event {
    let mut model = held("m", 4, "t");
    model.contract.weights = weights.into();
    model.contract.quantisation = quantisation.into();
    model.capacity.tokens_per_sequence = context;
    up(node, status(Role::Both, vec![model]))
}

fn scheduler(mixed_quantisation: bool, pins: Vec<Pin>) -> Scheduler {
    Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(&["a", "b"]),
        models: vec![ModelRoutes {
            mixed_quantisation,
            pins,
            ..routes("m", &[], &["a", "b"])
        }],
    })
}

fn handled(scheduler: &mut Scheduler, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    scheduler.handle(event, &mut out);
    out
}

/// Where a request goes, or why it goes nowhere; and what is pinned by that.
fn goes(scheduler: &mut Scheduler, request: &str) -> (Result<String, String>, Vec<Pin>) {
    let mut end = Err("waits".to_owned());
    let mut pinned = Vec::new();
    for action in handled(scheduler, submit(request, "m", Route::Local)) {
        match action {
            Action::Start { plan, .. } => end = Ok(plan.decode),
            Action::Reject { reason, .. } => end = Err(reason.to_string()),
            Action::Pin { pins, .. } => pinned = pins,
            Action::Queued { .. } => {}
        }
    }
    (end, pinned)
}

#[test]
fn a_name_stands_for_the_model_of_its_first_use() {
    let mut first = scheduler(false, Vec::new());
    // The order of the configuration decides, not who comes first.
    handled(&mut first, with("b", "other", "q4", 1024));
    handled(&mut first, with("a", "w", "q4", 1024));
    let odd = first.odd();
    assert_eq!(odd.len(), 1);
    for part in ["`b`", "`weights`", "other", "repin m"] {
        assert!(odd[0].contains(part), "{part}: {odd:?}");
    }
    let (end, pins) = goes(&mut first, "r");
    assert_eq!((end, pins.len()), (Ok("a".into()), 1));
    // Known already.
    assert_eq!(goes(&mut first, "s"), (Ok("a".into()), Vec::new()));

    // After a restart of the coordinator, with other weights on the first node.
    let mut later = scheduler(false, pins.clone());
    handled(&mut later, with("a", "new", "q4", 1024));
    let (end, none) = goes(&mut later, "r");
    let reason = end.unwrap_err();
    assert!(reason.contains("`weights` is new, and was w"), "{reason}");
    assert!(none.is_empty());
    handled(&mut later, with("b", "w", "q4", 1024));
    assert_eq!(goes(&mut later, "s").0, Ok("b".into()));
    // Another quantisation is another model, and so is another engine not.
    handled(&mut later, with("b", "w", "q8", 1024));
    assert!(
        later.odd()[1].contains("`quantisation`"),
        "{:?}",
        later.odd()
    );

    // What is not written down stays as it was.
    later.set_pins(&BTreeMap::new());
    assert!(goes(&mut later, "t").0.unwrap_err().contains("`weights`"));
    let meant = Pin {
        weights: "new".into(),
        ..pins[0].clone()
    };
    later.set_pins(&BTreeMap::from([("m".to_owned(), vec![meant])]));
    assert_eq!(goes(&mut later, "u").0, Ok("a".into()));
}

#[test]
fn of_mixed_quantisations_each_has_a_pin() {
    let mut mixed = scheduler(true, Vec::new());
    handled(&mut mixed, with("a", "w4", "q4", 1024));
    let (end, pins) = goes(&mut mixed, "r");
    assert_eq!((end, pins.len()), (Ok("a".into()), 1));
    handled(&mut mixed, with("b", "w8", "q8", 1024));
    assert_eq!(
        goes(&mut mixed, "s"),
        (
            Ok("b".into()),
            vec![pins[0].clone(), {
                Pin {
                    quantisation: "q8".into(),
                    weights: "w8".into(),
                    ..pins[0].clone()
                }
            }]
        )
    );
    handled(&mut mixed, with("b", "other", "q8", 1024));
    assert!(
        mixed.odd()[0].contains("`weights` is other, and was w8"),
        "{:?}",
        mixed.odd()
    );
}

#[test]
fn what_is_too_long_for_one_node_goes_to_one_with_a_longer_context() {
    let mut scheduler = scheduler(false, Vec::new());
    handled(&mut scheduler, with("a", "w", "q4", 1024));
    handled(&mut scheduler, with("b", "w", "q4", 4096));
    assert_eq!(goes(&mut scheduler, "r").0, Ok("a".into()));
    let too_long = |node: &str| Event::DecodeFailed {
        request: "r".into(),
        node: node.into(),
        failure: Failure::TooLong,
        retry: true,
    };
    let next = handled(&mut scheduler, too_long("a"));
    assert!(
        matches!(&next[..], [Action::Start { plan, .. }] if plan.decode == "b"),
        "{next:?}"
    );
    let last = handled(&mut scheduler, too_long("b"));
    assert!(matches!(&last[..], [Action::Reject { .. }]), "{last:?}");
}
