//! Any order of events: capacity holds, nothing is lost, order is kept, the same twice.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use proptest::prelude::*;
use tandem_sched::Route;

const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];
const MODELS: [&str; 2] = ["m", "k"];

/// Role and capacity of each node; fixed, so that a status never shrinks what runs.
fn held_by(node: usize) -> (Role, [u32; 2]) {
    [
        (Role::Prefill, [2, 1]),
        (Role::Decode, [1, 3]),
        (Role::Both, [2, 2]),
        (Role::Decode, [3, 1]),
    ][node]
}

#[derive(Debug, Clone)]
enum Step {
    Up(usize),
    Down(usize, bool),
    Submit(usize, Route),
    /// The nth running request ends (or its prefill does).
    Finish(usize),
    PrefillEnded(usize, bool),
    Fail(usize, Failure, bool),
    /// The nth request ever submitted is cancelled.
    Cancel(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let route = prop_oneof![Just(Route::Auto), Just(Route::Remote), Just(Route::Local)];
    let failure = prop_oneof![
        Just(Failure::Lost),
        Just(Failure::Unreachable),
        Just(Failure::Busy),
        Just(Failure::Lacks),
        Just(Failure::Refused)
    ];
    prop_oneof![
        3 => (0..4usize).prop_map(Step::Up),
        1 => (0..4usize, any::<bool>()).prop_map(|(node, may_return)| Step::Down(node, may_return)),
        8 => (0..2usize, route).prop_map(|(m, r)| Step::Submit(m, r)),
        4 => any::<usize>().prop_map(Step::Finish),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(n, computed)| Step::PrefillEnded(n, computed)),
        2 => (any::<usize>(), failure, any::<bool>()).prop_map(|(n, f, r)| Step::Fail(n, f, r)),
        1 => any::<usize>().prop_map(Step::Cancel),
    ]
}

/// An account of what runs, kept from the actions alone.
#[derive(Default)]
struct Account {
    submitted: Vec<(String, usize, Route)>,
    plans: BTreeMap<String, (usize, Plan)>,
    waiting: BTreeSet<String>,
    ended: BTreeSet<String>,
    retried: BTreeSet<String>,
    /// Nodes that are up.
    up: BTreeSet<usize>,
    log: Vec<Action>,
}

impl Account {
    fn model_of(&self, request: &str) -> (usize, usize, Route) {
        let index = self.submitted.iter().position(|s| s.0 == request).unwrap();
        (index, self.submitted[index].1, self.submitted[index].2)
    }

    fn end(&mut self, request: &str) {
        self.plans.remove(request);
        self.waiting.remove(request);
        assert!(
            self.ended.insert(request.to_owned()),
            "{request} ended twice"
        );
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match &action {
                Action::Start { request, plan } => {
                    assert!(self.waiting.remove(request), "{request} was not waiting");
                    self.in_order(request, plan);
                    let (_, model, route) = self.model_of(request);
                    self.as_routed(route, plan);
                    self.plans.insert(request.clone(), (model, plan.clone()));
                }
                Action::Reject { request, .. } => {
                    assert!(self.waiting.contains(request), "{request} was not waiting");
                    self.end(request);
                }
                Action::Queued { request, .. } => assert!(self.waiting.contains(request)),
                Action::Pin { .. } => {}
            }
            self.log.push(action);
        }
        self.within_capacity();
    }

    /// `n0` prefills everything and decodes nothing: while it is up, nobody who asks for another node does
    /// without. Others wait for it, or not.
    fn as_routed(&self, route: Route, plan: &Plan) {
        match route {
            Route::Local => assert_eq!(plan.prefill, None),
            Route::Remote if self.up.contains(&0) => assert!(plan.prefill.is_some(), "{plan:?}"),
            Route::Remote if plan.prefill.is_none() => {
                let told = plan.notes.last().expect("a note");
                assert!(told.ends_with("prefills by itself"), "{plan:?}");
            }
            Route::Remote | Route::Auto => {}
        }
        assert!(!plan.mixed_quantisation, "nobody has permitted it");
    }

    /// Nobody with the same model and route who came earlier and was never started still waits, but for those who
    /// wait for a prefill node that this one does without.
    fn in_order(&self, request: &str, plan: &Plan) {
        let (index, model, route) = self.model_of(request);
        let alone = |note: &String| note.contains("no prefill node has room");
        if self.retried.contains(request) || plan.notes.iter().any(alone) {
            return;
        }
        for (earlier, m, r) in &self.submitted[..index] {
            let same = *m == model && *r == route && !self.retried.contains(earlier);
            assert!(
                !(same && self.waiting.contains(earlier)),
                "{request} overtook {earlier}"
            );
        }
    }

    fn within_capacity(&self) {
        for (n, node) in NODES.iter().enumerate() {
            for m in 0..MODELS.len() {
                let of_model = self.plans.values().filter(|(model, _)| *model == m);
                let used: usize = of_model
                    .map(|(_, p)| {
                        usize::from(p.decode == *node)
                            + usize::from(p.prefill.as_deref() == Some(node))
                    })
                    .sum();
                assert!(used <= held_by(n).1[m] as usize, "{node} runs {used}");
            }
        }
    }
}

fn status_of(node: usize) -> Event {
    let (role, capacity) = held_by(node);
    let models = (0..2).map(|m| held(MODELS[m], capacity[m], "t")).collect();
    up(NODES[node], status(role, models))
}

fn event(step: &Step, account: &mut Account) -> Option<Event> {
    let nth = |n: usize, account: &Account| {
        let keys: Vec<&String> = account.plans.keys().collect();
        (!keys.is_empty()).then(|| keys[n % keys.len()].clone())
    };
    Some(match step {
        Step::Up(node) => {
            account.up.insert(*node);
            status_of(*node)
        }
        Step::Down(node, may_return) => {
            account.up.remove(node);
            Event::NodeDown {
                node: NODES[*node].into(),
                reason: "test".into(),
                may_return: *may_return,
            }
        }
        Step::Submit(model, route) => {
            let id = format!("r{:04}", account.submitted.len());
            account.submitted.push((id.clone(), *model, *route));
            account.waiting.insert(id.clone());
            about(submit(&id, MODELS[*model], *route), &begins(&id))
        }
        Step::Finish(n) => {
            let request = nth(*n, account)?;
            account.end(&request);
            about(finished(&request), &begins(&request))
        }
        Step::PrefillEnded(n, computed) => {
            let request = nth(*n, account)?;
            account.plans.get_mut(&request)?.1.prefill = None;
            Event::PrefillEnded {
                request,
                computed: *computed,
            }
        }
        Step::Fail(n, failure, retry) => {
            let request = nth(*n, account)?;
            let (_, plan) = account.plans.remove(&request)?;
            if *retry {
                account.waiting.insert(request.clone());
                account.retried.insert(request.clone());
            } else {
                account.end(&request);
            }
            failed(&request, &plan.decode, failure.clone(), *retry)
        }
        Step::Cancel(n) => {
            let count = account.submitted.len().max(1);
            let request = account.submitted.get(n % count)?.0.clone();
            if !account.ended.contains(&request) {
                account.end(&request);
            }
            Event::Cancel { request }
        }
    })
}

/// Some prompts have something in common, more or less.
fn begins(request: &str) -> Vec<u64> {
    let n: u64 = request[1..].parse().unwrap();
    (0..n % 40).map(|i| i * 3 + n % 3).collect()
}

fn run(steps: &[Step]) -> Account {
    let mut scheduler = Scheduler::new(Topology {
        servers: Vec::new(),
        nodes: strings(&NODES),
        models: vec![
            routes("m", &["n0", "n2"], &["n1", "n2", "n3"]),
            routes("k", &["n2", "n0"], &["n3", "n2", "n1"]),
        ],
    });
    let mut account = Account::default();
    for step in steps {
        if let Some(event) = event(step, &mut account) {
            let actions = tell(&mut scheduler, event);
            account.take(actions);
        }
        assert_eq!(running(&scheduler), account.plans.len());
        let queued = scheduler.queued("m") + scheduler.queued("k");
        assert_eq!(queued, account.waiting.len(), "a request was lost");
    }
    match steps.len() % 2 {
        0 => drain(&mut scheduler, &mut account),
        _ => close(&mut scheduler, &mut account),
    }
    account
}

/// With all nodes gone for good, nobody waits.
fn close(scheduler: &mut Scheduler, account: &mut Account) {
    for node in 0..NODES.len() {
        let down = event(&Step::Down(node, false), account).expect("an event");
        let actions = tell(scheduler, down);
        account.take(actions);
    }
    assert!(account.waiting.is_empty(), "{:?}", account.waiting);
}

/// With all nodes up and everything that runs finishing, nothing may be left over.
fn drain(scheduler: &mut Scheduler, account: &mut Account) {
    for node in 0..NODES.len() {
        account.up.insert(node);
        let actions = tell(scheduler, status_of(node));
        account.take(actions);
    }
    while let Some(event) = event(&Step::Finish(0), account) {
        let actions = tell(scheduler, event);
        account.take(actions);
    }
    assert_eq!(account.ended.len(), account.submitted.len());
    assert!(account.waiting.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn capacity_holds_and_every_request_ends_once(steps in prop::collection::vec(step(), 0..120)) {
        run(&steps);
    }

    #[test]
    fn the_same_events_give_the_same_actions(steps in prop::collection::vec(step(), 0..60)) {
        prop_assert_eq!(run(&steps).log, run(&steps).log);
    }
}
