//! Anchors are graded blind, they alone say how far persons and models agree, and two runs are compared.

use std::collections::{BTreeMap, HashSet};

use tandem_gradebook::store::{Reader, Work};
use tandem_grading::review::Standing;
use tandem_grading::{Points, Rubric};

use crate::models::Models;
use crate::people::{invited, seen};
use crate::site::Site;

async fn text(site: &Site, path: &str) -> String {
    site.get(path).await.text().await.unwrap()
}

fn rubric(site: &Site) -> Rubric {
    let read = |reader: &Reader<'_>| Ok(reader.rubric(1)?.unwrap().rubric);
    site.gradebook.store().read_now(read).unwrap()
}

fn works(site: &Site) -> Vec<Work> {
    let read = |reader: &Reader<'_>| {
        let ids = reader.works(1)?.into_iter().map(|work| work.id);
        let whole = ids.map(|id| Ok(reader.work(id)?.unwrap()));
        whole.collect::<rusqlite::Result<Vec<_>>>()
    };
    site.gradebook.store().read_now(read).unwrap()
}

fn work(site: &Site, id: i64) -> Work {
    works(site).into_iter().find(|work| work.id == id).unwrap()
}

/// Numbers of the works that a person's queue has to grade blind.
async fn blind(site: &Site) -> Vec<i64> {
    let mut found = Vec::new();
    for one in works(site) {
        let page = text(site, &format!("/w/{}", one.id)).await;
        if page.contains("id=\"blind\"") {
            found.push(one.id);
        }
    }
    found
}

/// Gives points to all criteria of a work that is graded blind.
async fn give(site: &Site, work: i64, points: &BTreeMap<String, Points>) {
    let version = seen(site, work);
    for (criterion, points) in points {
        let points = points.to_string();
        let form = [
            ("do", "points"),
            ("version", version.as_str()),
            ("criterion", criterion.as_str()),
            ("points", points.as_str()),
        ];
        let sent = site.post(&format!("/w/{work}"), &form).await;
        assert_eq!(sent.status(), 303, "{criterion}");
    }
}

/// Sends how a person ends that a work is graded blind; the status.
async fn end(site: &Site, work: i64, act: &str) -> u16 {
    let path = format!("/w/{work}/blind");
    site.post(&path, &[("do", act)]).await.status().as_u16()
}

/// The most points of each criterion.
fn most(rubric: &Rubric) -> BTreeMap<String, Points> {
    let most = |c: &tandem_grading::Criterion| (c.id.clone(), *c.allowed().last().unwrap());
    rubric.criteria.iter().map(most).collect()
}

/// What only somebody knows who has seen the model's result: its words, and what others wrote.
fn secrets(work: &Work) -> Vec<String> {
    let graded = work.graded.as_ref().unwrap();
    let mut all: Vec<String> = graded
        .criteria
        .iter()
        .map(|one| one.rationale.clone())
        .collect();
    let feedback = graded.feedback.iter().flat_map(|text| text.lines());
    all.extend(feedback.map(|line| line.trim_start_matches(['-', '*', ' ']).to_owned()));
    all.retain(|text| text.len() > 25 && !text.contains(['`', '"', '\'', '<', '>', '&']));
    assert!(!all.is_empty(), "{graded:?}");
    all
}

/// No page of a work that the teacher grades blind tells what others gave.
async fn tells_nothing(site: &Site, work: &Work) {
    for path in [
        "",
        "?list=blind",
        "?by=correct",
        "?list=all",
        "/record",
        "/prompt",
    ] {
        let page = text(site, &format!("/w/{}{path}", work.id)).await;
        for secret in secrets(work) {
            assert!(!page.contains(&secret), "{path}: {secret}");
        }
        for mark in [
            "class=\"m\"",
            "level model",
            "class=\"quote\"",
            "as the model gave",
        ] {
            assert!(!page.contains(mark), "{path}: {mark}");
        }
    }
}

#[tokio::test]
async fn what_is_graded_blind_shows_nothing_that_others_gave() {
    let site = Site::new().await;
    let ben = invited(&site, "Ben").await;
    // Who was shown a suggestion is no witness.
    assert_eq!(site.get("/w/1").await.status(), 200);
    let drawn = site.post("/a/1/anchors", &[("count", "3")]).await;
    assert_eq!(drawn.status(), 303);
    let to = drawn.headers()["location"].to_str().unwrap().to_owned();
    assert!(to.ends_with("?list=blind"), "{to}");
    let first = to.split("/w/").nth(1).unwrap();
    let first: i64 = first.split('?').next().unwrap().parse().unwrap();
    // Somebody else grades it and writes in it; that is hidden, too.
    let (rubric, held) = (rubric(&site), work(&site, first));
    let own = most(&rubric);
    assert_eq!(end(&ben, first, "show").await, 303);
    let version = seen(&site, first);
    let note = [
        ("do", "note"),
        ("version", version.as_str()),
        ("text", "a-note-of-ben"),
    ];
    assert_eq!(ben.post(&format!("/w/{first}"), &note).await.status(), 303);
    let shown = text(&ben, &format!("/w/{first}")).await;
    let hidden = text(&site, &format!("/w/{first}")).await;
    assert!(shown.contains("a-note-of-ben") && !hidden.contains("a-note-of-ben"));
    for secret in secrets(&held) {
        assert!(shown.contains(&secret), "{secret}");
    }
    tells_nothing(&site, &held).await;
    // Nothing is decided before the points are saved, and not before there are all.
    let version = seen(&site, first);
    for act in ["approve", "without-points", "reset", "model-text", "note"] {
        let form = [
            ("do", act),
            ("version", version.as_str()),
            ("text", "x"),
            ("confirmed", "y"),
        ];
        let refused = site.post(&format!("/w/{first}"), &form).await;
        assert_eq!(refused.status(), 422, "{act}");
        assert!(refused.text().await.unwrap().contains("save them first"));
    }
    assert_eq!(end(&site, first, "save").await, 422);
    give(&site, first, &own).await;
    assert!(
        works(&site)
            .iter()
            .all(|work| work.review.points.is_empty())
    );
    assert_eq!(end(&site, first, "save").await, 303);
    // Now both are shown, and the points are the person's.
    let page = text(&site, &format!("/w/{first}")).await;
    for secret in secrets(&held) {
        assert!(page.contains(&secret), "{secret}");
    }
    assert_eq!(work(&site, first).review.points, own);
    assert_eq!(blind(&site).await.len(), 2);
    // It is saved once.
    assert_eq!(end(&site, first, "save").await, 404);
}

#[tokio::test]
async fn only_those_become_anchors_that_nobody_has_seen() {
    let site = Site::new().await;
    for count in ["0", "x", "101", "-1", ""] {
        let refused = site.post("/a/1/anchors", &[("count", count)]).await;
        assert_eq!(refused.status(), 422, "{count}");
    }
    let all: Vec<i64> = works(&site).iter().map(|work| work.id).collect();
    let looked: HashSet<i64> = all.iter().copied().take(3).collect();
    for work in &looked {
        site.get(&format!("/w/{work}")).await;
    }
    assert_eq!(
        site.post("/a/1/anchors", &[("count", "100")])
            .await
            .status(),
        303
    );
    let blind: HashSet<i64> = blind(&site).await.into_iter().collect();
    assert!(blind.is_disjoint(&looked) && !blind.is_empty());
    // All the others, but for those that no model is asked about.
    for one in works(&site).iter().filter(|work| !blind.contains(&work.id)) {
        let is_asked = one
            .graded
            .as_ref()
            .is_some_and(|graded| graded.score.is_some());
        assert!(looked.contains(&one.id) || !is_asked, "{}", one.name);
    }
    let again = site.post("/a/1/anchors", &[("count", "5")]).await;
    assert_eq!(again.status(), 422);
    // Who wants to see what others gave is no witness, and is not asked again.
    let one = *blind.iter().next().unwrap();
    site.post(&format!("/w/{one}/blind"), &[("do", "show")])
        .await;
    assert!(
        !text(&site, &format!("/w/{one}"))
            .await
            .contains("id=\"blind\"")
    );
    assert_eq!(
        site.post(&format!("/w/{one}/blind"), &[("do", "save")])
            .await
            .status(),
        404
    );
    assert!(
        text(&site, "/a/1/agreement")
            .await
            .contains("<strong class=\"num\">0</strong> graded blind")
    );
}

/// The cells of a row of the first table, by the title of its criterion.
fn row(page: &str, title: &str) -> Vec<String> {
    let row = page.split(&format!("<tr><td>{title}</td>")).nth(1).unwrap();
    let row = row.split("</tr>").next().unwrap();
    row.split("<td class=\"num\">")
        .skip(1)
        .map(|cell| cell.split('<').next().unwrap().to_owned())
        .collect()
}

/// The plot of a criterion has these pairs, in words, too.
fn plots(page: &str, title: &str, mut pairs: Vec<(f64, f64)>) {
    let plot = format!("aria-label=\"{title}: ");
    let plot = page.split(&plot).nth(1).unwrap().split('"').next().unwrap();
    for part in plot.split("; ") {
        let (points, count) = part.rsplit_once(": ").unwrap();
        let points = points.strip_prefix("you ").unwrap();
        let (you, model) = points.split_once(", the model ").unwrap();
        let pair: (f64, f64) = (you.parse().unwrap(), model.parse().unwrap());
        let before = pairs.len();
        pairs.retain(|one| *one != pair);
        assert_eq!(
            before - pairs.len(),
            count.parse::<usize>().unwrap(),
            "{plot}"
        );
    }
    assert!(pairs.is_empty(), "{plot}: {pairs:?}");
}

#[tokio::test]
async fn only_what_was_graded_blind_tells_how_far_both_agree() {
    let site = Site::new().await;
    let ben = invited(&site, "Ben").await;
    site.post("/a/1/anchors", &[("count", "4")]).await;
    let (rubric, anchors) = (rubric(&site), blind(&site).await);
    assert_eq!(anchors.len(), 4);
    // One more is changed by a person who has seen it: it does not count.
    let other = works(&site)
        .into_iter()
        .find(|w| !anchors.contains(&w.id) && w.graded.as_ref().is_some_and(|g| g.score.is_some()));
    let other = other.unwrap().id;
    let first = &rubric.criteria[0];
    let version = seen(&site, other);
    let top = first.allowed().last().unwrap().to_string();
    let form = [
        ("do", "points"),
        ("version", version.as_str()),
        ("criterion", first.id.as_str()),
        ("points", top.as_str()),
    ];
    site.post(&format!("/w/{other}"), &form).await;
    // The teacher always gives most; Ben grades two of them, as the model did.
    let all = most(&rubric);
    let mut models = Vec::new();
    for (i, id) in anchors.iter().enumerate() {
        let held = work(&site, *id);
        let alone = Standing::of_model(&rubric, held.graded.as_ref());
        let model = alone.all_points();
        give(&site, *id, &all).await;
        assert_eq!(end(&site, *id, "save").await, 303);
        if i < 2 {
            give(&ben, *id, &model).await;
            assert_eq!(end(&ben, *id, "save").await, 303);
        }
        models.push(model);
    }
    let page = text(&site, "/a/1/agreement").await;
    assert!(
        page.contains("<strong class=\"num\">4</strong> graded blind by 2 people"),
        "{page}"
    );
    for criterion in &rubric.criteria {
        let of = |points: &BTreeMap<String, Points>| points[&criterion.id].as_f64();
        let top = of(&all);
        // Six pairs: two of them are Ben's, and equal.
        let given: Vec<f64> = models.iter().map(of).collect();
        let equal = 2 + given.iter().filter(|points| **points == top).count();
        let bias = given.iter().map(|points| points - top).sum::<f64>() / 6.0;
        let cells = row(&page, &criterion.title);
        assert_eq!(
            (cells[0].as_str(), cells[1].as_str()),
            ("6", equal.to_string().as_str())
        );
        assert_eq!(cells[3], format!("{bias:+.2}"), "{}", criterion.title);
        let own = given[..2].iter().map(|points| (*points, *points));
        plots(
            &page,
            &criterion.title,
            given.iter().map(|m| (top, *m)).chain(own).collect(),
        );
        // Persons beside each other: the second table.
        let human = page.split("Persons beside each other").nth(1).unwrap();
        let equal = given[..2].iter().filter(|points| **points == top).count();
        let cells = row(human, &criterion.title);
        assert_eq!(
            (cells[0].as_str(), cells[1].as_str()),
            ("2", equal.to_string().as_str())
        );
    }
}

#[tokio::test]
async fn two_runs_are_compared_and_what_is_blind_stays_so() {
    let site = Site::new().await;
    let models = Models::default();
    site.gradebook.connect(models.serve().await);
    let form = [
        ("what", "all"),
        ("analysis", "code"),
        ("feedback", "words"),
        ("mode", "after"),
    ];
    // The sample's results are of an earlier run; what is stale is graded anew.
    assert_eq!(site.post("/a/1/run", &form).await.status(), 303);
    for _ in 0..400 {
        let ended = site
            .gradebook
            .store()
            .read_now(|r| Ok(r.runs(1)?[0].ended.is_some()));
        if ended.unwrap() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    let read = |reader: &Reader<'_>| {
        let runs = reader.runs(1)?;
        let (last, before) = (runs[0].id, runs[1].id);
        Ok((
            last,
            before,
            reader.points_after(1, before)?,
            reader.points_after(1, last)?,
        ))
    };
    let (last, before, first, second) = site.gradebook.store().read_now(read).unwrap();
    assert!(!first.is_empty() && first != second);
    let page = text(
        &site,
        &format!("/a/1/agreement?first={before}&second={last}"),
    )
    .await;
    let both = first.keys().filter(|work| second.contains_key(work));
    let equal = both
        .clone()
        .filter(|work| first[work] == second[work])
        .count();
    let expected = format!(
        "<strong class=\"num\">{equal}</strong> of <strong class=\"num\">{}</strong> keep the same points",
        both.count()
    );
    assert!(page.contains(&expected), "{expected}: {page}");
    // Of one that is graded blind, nothing is told.
    site.post("/a/1/anchors", &[("count", "100")]).await;
    let page = text(
        &site,
        &format!("/a/1/agreement?first={before}&second={last}"),
    )
    .await;
    for work in blind(&site).await {
        assert!(!page.contains(&format!("/w/{work}\"")), "{work}");
    }
    assert!(!page.contains("Points by criterion"));
    // The same by itself changes nothing.
    let page = text(&site, &format!("/a/1/agreement?first={last}&second={last}")).await;
    assert!(
        page.contains("changes by <strong class=\"num\">+0.00") && !page.contains("id=\"changes\"")
    );
}

#[tokio::test]
async fn what_was_given_blind_is_carried_to_another_version_of_the_rubric() {
    let site = Site::new().await;
    site.post("/a/1/anchors", &[("count", "1")]).await;
    let (rubric, id) = (rubric(&site), blind(&site).await[0]);
    let all = most(&rubric);
    give(&site, id, &all).await;
    assert_eq!(end(&site, id, "save").await, 303);
    let course = site
        .gradebook
        .store()
        .read_now(|r| Ok(r.assignment(1)?.unwrap().course));
    let (course, title) = (course.unwrap(), rubric.title.clone());
    // Twice the points of each level, in two steps.
    let mut source = rubric.source.clone();
    for step in ["First", "Second"] {
        source = source.replacen(&title, &format!("{title} {step}"), 1);
        let mut next = Rubric::parse(&source).unwrap();
        next.templates.clone_from(&rubric.templates);
        let keep = site.gradebook.store().write_now(|writer| {
            writer
                .keep_assignment(&course, &next)
                .map(Ok::<_, tandem_gradebook::store::StoreError>)
        });
        assert_eq!(keep.unwrap(), 1);
    }
    let read = |reader: &Reader<'_>| reader.blind_readings(1);
    let readings = site.gradebook.store().read_now(read).unwrap();
    assert_eq!(readings.len(), 1);
    assert_eq!(readings[0].points, all);
}

#[tokio::test]
async fn what_was_looked_at_elsewhere_is_seen_too() {
    let site = Site::new().await;
    for path in ["/w/4/record", "/w/5/prompt"] {
        assert_eq!(site.get(path).await.status(), 200);
    }
    site.post("/a/1/anchors", &[("count", "100")]).await;
    let blind = blind(&site).await;
    assert!(!blind.contains(&4) && !blind.contains(&5), "{blind:?}");
    // The run says nothing of what is wrong with those.
    let run = text(&site, "/r/1").await;
    for work in &blind {
        assert!(!run.contains(&format!("/w/{work}\"")), "{work}: {run}");
    }
}

#[tokio::test]
async fn a_reading_that_goes_on_is_carried_to_the_next_version() {
    let site = Site::new().await;
    site.post("/a/1/anchors", &[("count", "2")]).await;
    let (rubric, anchors) = (rubric(&site), blind(&site).await);
    let all = most(&rubric);
    for work in &anchors {
        give(&site, *work, &all).await;
    }
    assert_eq!(end(&site, anchors[0], "save").await, 303);
    let first = &rubric.criteria[0];
    let source = rubric.source.replace(
        &format!("points: {}", first.max_points),
        &format!("points: {}", first.max_points.as_f64() * 2.0),
    );
    let source = source.replace(
        "max_points: 10",
        &format!("max_points: {}", 10.0 + first.max_points.as_f64()),
    );
    let mut next = Rubric::parse(&source).unwrap();
    next.templates.clone_from(&rubric.templates);
    let course = site
        .gradebook
        .store()
        .read_now(|r| Ok(r.assignment(1)?.unwrap().course))
        .unwrap();
    let keep = site.gradebook.store().write_now(|writer| {
        writer
            .keep_assignment(&course, &next)
            .map(Ok::<_, tandem_gradebook::store::StoreError>)
    });
    keep.unwrap();
    assert_eq!(end(&site, anchors[1], "save").await, 303);
    let readings = site
        .gradebook
        .store()
        .read_now(|reader: &Reader<'_>| reader.blind_readings(1))
        .unwrap();
    for reading in readings {
        assert_eq!(reading.points, most(&next), "{}", reading.work);
    }
}

#[tokio::test]
async fn a_blind_click_is_nobody_elses_time_and_an_export_shows_no_value() {
    let site = Site::new().await;
    let ben = invited(&site, "Ben").await;
    site.post("/a/1/anchors", &[("count", "1")]).await;
    let (rubric, work) = (rubric(&site), blind(&site).await[0]);
    give(&ben, work, &most(&rubric)).await;
    assert_eq!(end(&ben, work, "save").await, 303);
    let version = seen(&site, work);
    let form = [
        ("do", "approve"),
        ("version", version.as_str()),
        ("confirmed", "y"),
        ("key", "k1"),
        ("shown", "500000"),
    ];
    assert_eq!(ben.post(&format!("/w/{work}"), &form).await.status(), 303);
    let one = &rubric.criteria[0];
    let (points, version) = (one.allowed()[0].to_string(), seen(&site, work));
    let form = [
        ("do", "points"),
        ("version", version.as_str()),
        ("criterion", one.id.as_str()),
        ("points", points.as_str()),
        ("key", "k2"),
        ("shown", "10"),
    ];
    assert_eq!(site.post(&format!("/w/{work}"), &form).await.status(), 303);
    let quick = site
        .gradebook
        .store()
        .read_now(|reader: &Reader<'_>| reader.quick_approvals(1, 2000));
    assert_eq!(quick.unwrap(), Vec::<i64>::new());
    let name = self::work(&site, work).name;
    let sheet =
        format!("Student,ID,SIS Login ID,Section,Mean above a limit (1)\n\"A, B\",1,{name},A,\n");
    let file = [("sheet", Some("g.csv"), sheet.as_bytes())];
    assert_eq!(
        crate::upload::send_to(&site, "/a/1/sheet", &file)
            .await
            .status(),
        303
    );
    let page = text(&site, "/a/1/export?column=4").await;
    assert!(
        page.contains("hidden until then") && !page.contains("10.00"),
        "{page}"
    );
}
