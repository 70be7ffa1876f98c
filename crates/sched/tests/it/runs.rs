//! Runs of a course, step by step, beside the formulas of one request and of an even flow.

use proptest::prelude::*;
use tandem_sched::plan::{self, Ran, Setup, Wanted, Way, Workload};
use tandem_sched::profile::{Catalogue, Machine};

const CHUNK: f64 = 2048.0;
const NAMES: [&str; 4] = ["spark", "m3-ultra", "m4-max", "m2-ultra"];

struct Case {
    prompt: f64,
    answer: f64,
    works: u32,
    batch: u32,
    /// The machine that prefills, if not the one that decodes.
    prefill: Option<usize>,
    decode: usize,
}

fn ran(all: &Catalogue, case: &Case) -> Ran {
    let model = all.model("qwen3-coder-30b").unwrap();
    let workload = Workload {
        model,
        prompt: case.prompt,
        shared: 0.0,
        answer: case.answer,
    };
    let setup = Setup {
        machines: NAMES.map(|name| all.machine(name).unwrap()).to_vec(),
        link: all.link("10gbit").unwrap(),
        workloads: vec![workload],
        prefill: vec![case.prefill.into_iter().collect()],
        decode: vec![vec![case.decode]],
        works: case.works,
        batch: case.batch,
        chunk: CHUNK,
    };
    plan::run(&setup).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// One request takes what its formula says; a course takes no less than the best even flow, holds no more places than
    /// there are, and loses no request.
    #[test]
    fn a_run_agrees_with_the_formulas(
        decode in 0_usize..4, other in 0_usize..4, prompt in 100.0..20_000.0_f64, answer in 20.0..600.0_f64,
        works in 1_u32..12, batch in 1_u32..9,
    ) {
        let all = Catalogue::built_in().unwrap();
        let (prompt, answer) = (prompt.round(), answer.round());
        let prefill = (other != decode).then_some(other);
        let one = ran(&all, &Case { prompt, answer, works: 1, batch, prefill, decode });
        let machines: Vec<&Machine> = prefill.into_iter().chain([decode]).map(|m| all.machine(NAMES[m]).unwrap()).collect();
        let (link, model) = (all.link("10gbit").unwrap(), all.model("qwen3-coder-30b").unwrap());
        let workload = Workload { model, prompt, shared: 0.0, answer };
        let speeds: Vec<_> = machines.iter().map(|m| tandem_sched::cost::Speed::new(m, model).unwrap()).collect();
        let expected = match speeds.as_slice() {
            [p, d] => plan::served_by_pair([p, d], link, &workload, CHUNK),
            [d, ..] => plan::served_alone(d, &workload, 1.0),
            [] => unreachable!(),
        };
        prop_assert!((one.end_s / expected.end_s - 1.0).abs() < 0.02, "{} {}", one.end_s, expected.end_s);
        let first = one.requests[0].first_token_s;
        prop_assert!((first / expected.first_token_s - 1.0).abs() < 0.05, "{first} {}", expected.first_token_s);

        let course = ran(&all, &Case { prompt, answer, works, batch, prefill, decode });
        let mut served: Vec<u32> = course.requests.iter().map(|r| r.work).collect();
        served.sort_unstable();
        prop_assert_eq!(served, (0..works).collect::<Vec<_>>());
        for r in &course.requests {
            let at_once = course.requests.iter().filter(|o| o.begins_s <= r.begins_s && r.begins_s < o.end_s);
            prop_assert!(at_once.count() <= usize::try_from(batch).unwrap());
        }
        let wanted = Wanted { workloads: vec![workload], works: f64::from(works), batch: f64::from(batch) };
        let way = if prefill.is_some() { Way::Pair } else { Way::Servers };
        let best = plan::course(&machines, link, &wanted);
        let known = best.iter().filter_map(plan::Judged::known);
        let best = known.filter(|c| c.way == way || c.way == Way::Alone).map(|c| c.per_hour).fold(0.0, f64::max);
        let least = f64::from(works) * 3600.0 / best;
        prop_assert!(course.end_s >= least * 0.99, "{} {least}", course.end_s);
    }
}

/// Works that share their beginning have it computed once, and two jobs share the time of a machine.
#[test]
fn what_is_shared_is_computed_once_and_a_machine_has_one_time() {
    let all = Catalogue::built_in().unwrap();
    let machine = all.machine("m4-max").unwrap();
    let end = |models: &[&str], shared: f64| {
        let workloads = models.iter().map(|model| Workload {
            model: all.model(model).unwrap(),
            prompt: 5000.0,
            shared,
            answer: 100.0,
        });
        let setup = Setup {
            machines: vec![machine],
            link: all.link("10gbit").unwrap(),
            workloads: workloads.collect(),
            prefill: vec![vec![]; models.len()],
            decode: vec![vec![0]; models.len()],
            works: 6,
            batch: 1,
            chunk: CHUNK,
        };
        plan::run(&setup).unwrap().end_s
    };
    let (code, words) = ("qwen3-coder-30b", "gpt-oss-120b");
    let (alone, other) = (end(&[code], 0.0), end(&[words], 0.0));
    let both = end(&[code, words], 0.0);
    assert!(
        (both / (alone + other) - 1.0).abs() < 0.01,
        "{both} {alone} {other}"
    );
    let speed = tandem_sched::cost::Speed::new(machine, all.model(code).unwrap()).unwrap();
    let saved = 5.0 * (speed.prefill_s(0.0, 4999.0) - speed.prefill_s(4000.0, 999.0));
    let less = alone - end(&[code], 4000.0);
    assert!((less / saved - 1.0).abs() < 0.01, "{less} {saved}");
}
