//! What becomes of an edit that is not saved at once: it is kept until the person has decided.

use serde_json::Value;
use tandem_gradebook::store::{Reader, Work};

use crate::harness::{Browser, Site};

const CLEAN: &str = "document.getElementById('status').textContent === 'saved'";
const HELD: &str = "document.querySelectorAll('.conflict').length";

fn work(site: &Site, id: &Value) -> Work {
    let id: i64 = id.as_str().unwrap().parse().unwrap();
    let read = move |reader: &Reader<'_>| reader.work(id);
    site.gradebook.store().read_now(read).unwrap().unwrap()
}

fn correct(site: &Site, id: &Value) -> Option<String> {
    let points = work(site, id).review.points;
    points.get("correct").map(ToString::to_string)
}

/// A course of two works under review, and the work that is shown.
async fn opened(site: &Site) -> (Browser, Value) {
    let course = site.course("Saves", 2);
    let browser = Browser::open(site, &format!("/a/{course}")).await;
    let shown = browser.run("return desk.dataset.work").await;
    (browser, shown)
}

/// From here on each answer has this status, until it is healed.
async fn break_down(browser: &Browser, status: u16) {
    let script = format!(
        "window.wasFetch ??= window.fetch;
         window.fetch = async (...all) => all[1]?.method === 'POST'
            ? new Response('<h1>Broken</h1><main><p>Why.</p></main>', {{ status: {status} }})
            : window.wasFetch(...all)"
    );
    browser.run(&script).await;
}

async fn heal(browser: &Browser) {
    browser.run("window.fetch = window.wasFetch").await;
}

/// Presses one of the two buttons of the first edit that is held.
async fn decide(browser: &Browser, button: usize) {
    browser
        .run(&format!(
            "document.querySelector('.conflict').querySelectorAll('button')[{button}].click()"
        ))
        .await;
}

#[tokio::test]
async fn what_an_error_refuses_waits_and_is_sent_or_dropped_one_by_one() {
    let site = Site::new().await;
    let (browser, shown) = opened(&site).await;
    for status in [401, 404, 500, 413] {
        break_down(&browser, status).await;
        browser.press("1").await;
        browser.until(&format!("{HELD} === 1")).await;
        // What follows would stand on it, so it waits, too.
        browser.press("2").await;
        browser.until(&format!("{HELD} === 2")).await;
        let told = browser
            .run("return document.getElementById('notices').textContent")
            .await;
        let told = told.as_str().unwrap();
        assert!(
            told.contains("Broken: points: 0") && told.contains("Not sent"),
            "{told}"
        );
        heal(&browser).await;
        decide(&browser, 0).await;
        browser.until(&format!("{HELD} === 1")).await;
        assert_eq!(correct(&site, &shown).as_deref(), Some("0"), "{status}");
        decide(&browser, 1).await;
        browser.until(&format!("{HELD} === 0")).await;
        browser.press("3").await;
        browser.until(CLEAN).await;
        assert_eq!(correct(&site, &shown).as_deref(), Some("4"));
    }
}

#[tokio::test]
async fn a_browser_whose_session_ended_keeps_the_edit() {
    let site = Site::new().await;
    let (browser, shown) = opened(&site).await;
    let file = site.folder().join("g.sqlite");
    let sql = rusqlite::Connection::open(file).unwrap();
    let sessions = "UPDATE session SET created = created - 1000 * 24 * 3600 * 1000";
    sql.execute(sessions, []).unwrap();
    browser.press("1").await;
    browser.until(&format!("{HELD} === 1")).await;
    let told = browser
        .run("return document.getElementById('notices').textContent")
        .await;
    assert!(told.as_str().unwrap().contains("not let in"), "{told}");
    assert_eq!(correct(&site, &shown), None);
    sql.execute(
        "UPDATE session SET created = created + 1000 * 24 * 3600 * 1000",
        [],
    )
    .unwrap();
    decide(&browser, 0).await;
    browser.until(CLEAN).await;
    assert_eq!(correct(&site, &shown).as_deref(), Some("0"));
}

#[tokio::test]
async fn what_is_refused_after_the_person_has_gone_on_waits_at_its_work() {
    let site = Site::new().await;
    let (browser, shown) = opened(&site).await;
    browser
        .run(
            "const level = document.querySelector('.criterion.now .level');
              level.value = '3';
              level.click();
              document.querySelector('[data-go=next]').click()",
        )
        .await;
    browser
        .until("document.querySelector('#queue [data-conflict]') !== null")
        .await;
    browser
        .run("document.querySelector('#queue [data-conflict]').click()")
        .await;
    browser.until(&format!("{HELD} === 1")).await;
    let told = browser
        .run("return document.getElementById('notices').textContent")
        .await;
    assert!(
        told.as_str().unwrap().contains("does not allow 3"),
        "{told}"
    );
    decide(&browser, 1).await;
    browser.until(&format!("{HELD} === 0")).await;
    assert_eq!(work(&site, &shown).seen.review, 0);
}

#[tokio::test]
async fn a_lost_answer_is_no_second_edit() {
    let site = Site::new().await;
    let (browser, shown) = opened(&site).await;
    // The server does it, and its answer is lost once.
    browser
        .run("window.wasFetch = window.fetch;
              let lost = false;
              window.fetch = async (...all) => {
                  const answer = await window.wasFetch(...all);
                  if (!lost && all[1]?.method === 'POST') { lost = true; throw new TypeError('lost'); }
                  return answer;
              }")
        .await;
    browser.press("1").await;
    browser.until(CLEAN).await;
    browser.until(&format!("{HELD} === 0")).await;
    assert_eq!(work(&site, &shown).seen.review, 1);
}

#[tokio::test]
async fn a_text_that_is_being_written_survives_saves_and_other_works() {
    let site = Site::new().await;
    let (browser, shown) = opened(&site).await;
    browser.press("f").await;
    browser
        .until("document.activeElement.tagName === 'TEXTAREA'")
        .await;
    let field = browser.page.active_element().await.unwrap();
    field.send_keys(" Half a sent").await.unwrap();
    browser.press("Escape").await;
    browser.press("1").await;
    browser.until(CLEAN).await;
    let text = "return document.querySelector('.feedback textarea').value";
    let half = |value: Value| value.as_str().is_some_and(|t| t.contains("Half a sent"));
    assert!(half(browser.run(text).await));
    browser.press("j").await;
    browser
        .until(&format!(
            "desk.dataset.work !== '{}'",
            shown.as_str().unwrap()
        ))
        .await;
    assert!(!half(browser.run(text).await), "another work's");
    browser.press("k").await;
    browser
        .until(&format!(
            "desk.dataset.work === '{}'",
            shown.as_str().unwrap()
        ))
        .await;
    assert!(half(browser.run(text).await));
    assert_eq!(work(&site, &shown).review.text, None, "nobody sent it");
}
