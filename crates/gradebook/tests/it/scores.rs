//! No page shows points for what was not graded, whatever models and persons did.

use proptest::prelude::*;
use tandem_gradebook::store::{By, Kept, Role, WriteError};
use tandem_grading::review::Change;
use tandem_grading::{Criterion, CriterionResult, Graded, Rubric, Status, Submission};

use crate::site::Site;

/// What a model made of a work, and what a person did then: points for some criteria, and whether it is without points.
type Made = (Option<Option<[usize; 4]>>, [Option<usize>; 4], bool);

fn made() -> impl Strategy<Value = Made> {
    let place = 0..3usize;
    let four = [place.clone(), place.clone(), place.clone(), place.clone()];
    let some = proptest::option::of(place);
    let given = [some.clone(), some.clone(), some.clone(), some];
    let model = proptest::option::of(proptest::option::of(four));
    (model, given, proptest::bool::weighted(0.2))
}

/// The total that pages may show: by the rules alone, without the code of the pages.
fn expected(rubric: &Rubric, (model, given, is_without): &Made) -> String {
    let value = |i: usize| {
        let allowed = rubric.criteria[i].allowed();
        let place = given[i].or(model.flatten().map(|m| m[i]))?;
        Some(allowed[place].as_f64())
    };
    let all: Option<f64> = (0..4).map(value).sum();
    match (all, is_without) {
        (Some(sum), false) => sum.to_string(),
        _ => "–".to_owned(),
    }
}

/// Puts a work into the sample's assignment; its number.
fn put(site: &Site, rubric: &Rubric, name: &str, (model, given, is_without): &Made) -> i64 {
    let criterion = |(i, of): (usize, &Criterion), places: &[usize; 4]| CriterionResult {
        id: of.id.clone(),
        title: of.title.clone(),
        evidence: vec![],
        rationale: "Seen.".into(),
        level: None,
        points: of.allowed()[places[i]],
        max_points: of.max_points,
    };
    let store = site.gradebook.store();
    let submission = Submission::of_text(&format!("{name}.py"), "x = 1");
    let written: Result<i64, WriteError> = store.write_now(|writer| {
        let person = writer.person(Role::Teacher)?;
        let work = writer.hand_in(1, &submission)?.id();
        if let Some(places) = model {
            let run = writer.start_run(1, &[work], "{}")?;
            let criteria = places.as_ref().map(|places| {
                let all = rubric.criteria.iter().enumerate();
                all.map(|one| criterion(one, places)).collect::<Vec<_>>()
            });
            let score = criteria
                .as_ref()
                .map(|all| all.iter().map(|c| c.points.as_f64()).sum());
            let graded = Graded {
                name: name.into(),
                status: if score.is_some() {
                    Status::Graded
                } else {
                    Status::Failed
                },
                reasons: vec![],
                score,
                max_score: 10.0,
                criteria: criteria.unwrap_or_default(),
                feedback: None,
                flags: vec![],
                notes: vec![],
                jobs: vec![],
            };
            let of = Kept {
                run,
                work,
                inputs: None,
            };
            writer.keep_result(&of, &graded)?;
        }
        let by = By {
            person,
            session: "s",
            key: None,
        };
        let change = |change: &Change| {
            let seen = writer.work(work)?.unwrap().seen;
            writer.change((work, seen), &by, change)
        };
        for (place, of) in given.iter().zip(&rubric.criteria) {
            let Some(place) = place else { continue };
            let points = Some(of.allowed()[*place]);
            change(&Change::Points {
                criterion: of.id.clone(),
                points,
            })?
            .unwrap();
        }
        if *is_without {
            change(&Change::WithoutPoints)?.unwrap();
        }
        Ok(Ok(work))
    });
    written.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_page_shows_points_for_what_was_not_graded(all in proptest::collection::vec(made(), 1..6)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let site = Site::new().await;
            let held = site.gradebook.store().read_now(|reader| reader.rubric(1)).unwrap().unwrap();
            let works: Vec<(i64, String)> = all
                .iter()
                .enumerate()
                .map(|(i, made)| (put(&site, &held.rubric, &format!("new-{i}"), made), expected(&held.rubric, made)))
                .collect();
            for (work, expected) in &works {
                let page = site.get(&format!("/w/{work}?list=all")).await.text().await.unwrap();
                let total = page.split("<div class=\"total\">").nth(1).unwrap();
                let total = total.split("<strong class=\"num\">").nth(1).unwrap();
                assert_eq!(total.split('<').next().unwrap(), expected);
                for (other, expected) in &works {
                    let entry = page.split(&format!("data-work=\"{other}\"")).nth(1).unwrap();
                    let points = entry.split("<span class=\"num\">").nth(1).unwrap();
                    assert_eq!(points.split('<').next().unwrap(), expected);
                }
            }
        });
    }
}
