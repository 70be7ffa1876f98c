//! What a page says of a student is true of the files beside it, and can be read whole.

use std::time::Duration;

use serde_json::Value;
use tandem_gradebook::store::Reader;
use tandem_grading::review::Decision;
use tandem_grading::{CriterionResult, Points, Rubric};

use crate::harness::{Browser, Site};

const CLEAN: &str = "document.getElementById('status').textContent === 'saved'";

/// Whose name stands on the desk, if tab, queue and files say the same; else what they say.
const WHO: &str = "
    const end = document.getElementById('end');
    if (end) return end.querySelector('h1').textContent;
    const name = desk.querySelector('h1').textContent;
    const entry = document.querySelector('#queue [aria-current] span')?.textContent;
    const file = document.getElementById('work').querySelector('.source').textContent.match(/# (work-\\d+)/)?.[1];
    const tab = document.title.split(':')[0];
    const ids = [desk.dataset.work, document.getElementById('work').dataset.work];
    const isOne = [tab, entry].every((other) => other === name) && ids[0] === ids[1]
        && (file === name || name.startsWith('P-'));
    return isOne ? name : `desk ${name}, queue ${entry}, tab ${tab}, files ${file}, ids ${ids}`";

async fn who(browser: &Browser) -> String {
    browser.run(WHO).await.as_str().unwrap().to_owned()
}

fn is_one(who: &str) -> bool {
    let is_name = who.starts_with("work-") || who.starts_with("P-");
    (is_name && !who.contains(' ')) || who.starts_with("All ") || who.contains("of this list")
}

/// Presses a key, and looks at the page again and again for a while.
async fn press_and_watch(browser: &Browser, key: &str, pause: Duration) {
    browser.press(key).await;
    let since = std::time::Instant::now();
    loop {
        // A page that is just being left answers nothing.
        if let Ok(Value::String(found)) = browser.page.execute(WHO, vec![]).await {
            assert!(is_one(&found), "after {key}: {found}");
        }
        if since.elapsed() >= pause {
            return;
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
}

#[tokio::test]
async fn name_tab_queue_and_files_are_one_students_after_each_key_up_to_the_last_and_back() {
    let site = Site::new().await;
    let browser = Browser::open(&site, "/a/1").await;
    for (i, (pause, keys)) in [
        (0, "aaa"),
        (150, "aaa"),
        (700, "aaa"),
        (0, "jajakaunaa"),
        (150, "ananakjua"),
        (0, "2j2k1naaaa"),
    ]
    .into_iter()
    .enumerate()
    {
        let course = site.course(&format!("Names {i}"), 3);
        for list in ["", "?list=all"] {
            browser.enter(&site, &format!("/a/{course}")).await;
            browser
                .run(&format!("location.href = location.pathname + '{list}'"))
                .await;
            browser
                .until("document.readyState === 'complete' && document.title")
                .await;
            for key in keys.chars() {
                press_and_watch(&browser, &key.to_string(), Duration::from_millis(pause)).await;
            }
            press_and_watch(&browser, "u", Duration::from_millis(600)).await;
        }
    }
}

#[tokio::test]
async fn the_last_approval_leads_to_the_end_and_the_undo_there_leads_back() {
    let site = Site::new().await;
    let course = site.course("End", 3);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    let mut names = Vec::new();
    for _ in 0..3 {
        let name = who(&browser).await;
        browser.press("a").await;
        browser
            .until(&format!(
                "document.getElementById('end') || desk.querySelector('h1').textContent !== '{name}'"
            ))
            .await;
        names.push(name);
    }
    browser.until("document.getElementById('end')").await;
    assert_eq!(who(&browser).await, "All submissions are settled");
    assert_eq!(browser.accessibility().await, Vec::<String>::new());
    let all = |site: &Site| {
        let read = move |reader: &Reader<'_>| reader.works(course);
        site.gradebook.store().read_now(read).unwrap()
    };
    assert!(
        all(&site)
            .iter()
            .all(|w| w.review.decision == Decision::Approved)
    );
    assert_eq!(names.len(), 3);
    // The assignment begins at its end from now on.
    browser
        .page
        .goto(&site.page(&format!("/a/{course}")))
        .await
        .unwrap();
    browser.until("document.getElementById('end')").await;
    browser.press("u").await;
    browser.until("document.getElementById('desk')").await;
    assert_eq!(who(&browser).await, names[2], "what was done last");
    let open = all(&site)
        .iter()
        .filter(|w| w.review.decision == Decision::Open)
        .count();
    assert_eq!(open, 1);
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

/// A rubric with many values, and texts as long as they may be.
fn long_rubric() -> Rubric {
    let long = "Every value is looked at, and none of them twice. ".repeat(12);
    Rubric::parse(&format!(
        "id: long\ntitle: Long\ntask: Do it.\ncriteria:\n  - id: many\n    title: Many\n    description: {long}\n    max_points: 20\n    step: 1\n  - id: answer\n    title: Answer\n    description: {long}\n    kind: reflection\n    question: {long}\n    answer: {long}\n    max_points: 2\n    step: 1\n"
    ))
    .unwrap()
}

/// A course of one, in which the model gave these points for the first criterion.
fn long_course(site: &Site, given: Option<f64>) -> i64 {
    let rubric = long_rubric();
    let (_, submission, pattern) = site.pattern();
    let mut graded = pattern;
    let result = |i: usize, points: f64| CriterionResult {
        id: rubric.criteria[i].id.clone(),
        title: rubric.criteria[i].title.clone(),
        evidence: graded.criteria[0].evidence.clone(),
        rationale: "Because of what is written there, line by line. ".repeat(14),
        level: None,
        points: Points::from_f64(points).unwrap(),
        max_points: rubric.criteria[i].max_points,
    };
    let criteria = given.map_or_else(Vec::new, |points| vec![result(0, points), result(1, 1.0)]);
    graded.score = given.map(|points| points + 1.0);
    graded.criteria = criteria;
    let page = site
        .gradebook
        .keep_run("Long", &rubric, &[submission], &[graded], ("", ""))
        .unwrap();
    page.rsplit('/').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn many_values_begin_at_what_holds_and_are_typed() {
    let site = Site::new().await;
    let course = long_course(&site, Some(4.0));
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    let field = "return document.querySelector('.now [name=points]').value";
    assert_eq!(browser.run(field).await, "4");
    let person = "return document.querySelector('.now .val .h')?.textContent ?? ''";
    browser
        .run("document.querySelector('.now .levels button').click()")
        .await;
    browser.until(CLEAN).await;
    assert_eq!(browser.run(person).await, "4", "what was shown is given");
    for (keys, points) in [("17", "17"), ("0", "0"), ("20", "20")] {
        for key in keys.chars() {
            browser.press(&key.to_string()).await;
        }
        assert_eq!(browser.run(field).await, points);
        browser.press("Enter").await;
        browser
            .until(&format!(
                "document.querySelector('.now .val .h').textContent === '{points}'"
            ))
            .await;
        browser.press("Escape").await;
    }
    // What the rubric does not have is refused, and said.
    browser.press("7").await;
    browser.press("7").await;
    browser.press("Enter").await;
    browser
        .until("document.querySelector('.notice').textContent.includes('does not allow 77 points')")
        .await;
    assert_eq!(browser.run(person).await, "20");
}

#[tokio::test]
async fn no_text_of_the_desk_is_cut() {
    let site = Site::new().await;
    let course = long_course(&site, Some(4.0));
    for size in [(1366, 768), (683, 700), (360, 700)] {
        let browser = Browser::start(size, false).await;
        browser.resize(size.0, size.1).await;
        browser.enter(&site, &format!("/a/{course}")).await;
        for _ in 0..2 {
            browser
                .run("document.querySelectorAll('.now details').forEach((d) => { d.open = true })")
                .await;
            let cut = "return [...desk.querySelectorAll('*:not(.unseen)')].filter((e) => {
                const style = getComputedStyle(e);
                const hides = (how) => how === 'hidden' || how === 'clip';
                return e.getClientRects().length > 0 && !e.closest('svg')
                    && ((hides(style.overflowY) && e.scrollHeight > e.clientHeight + 1)
                        || (hides(style.overflowX) && e.scrollWidth > e.clientWidth + 1));
            }).map((e) => e.outerHTML.slice(0, 120))";
            assert_eq!(browser.run(cut).await, Value::Array(vec![]), "{size:?}");
            let shown = browser
                .run("return document.querySelector('.criterion.now').innerText")
                .await;
            let shown = shown.as_str().unwrap();
            for text in ["none of them twice", "line by line"] {
                assert!(shown.contains(text), "{size:?} {text}: {shown}");
            }
            browser.press("ArrowDown").await;
        }
        assert_eq!(
            browser.accessibility().await,
            Vec::<String>::new(),
            "{size:?}"
        );
    }
}
