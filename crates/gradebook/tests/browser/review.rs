//! A person reviews.

use serde_json::Value;
use tandem_gradebook::store::Reader;
use tandem_grading::review::Decision;

use crate::harness::{Browser, Site};

const CLEAN: &str = "document.getElementById('status').textContent === 'saved'";

/// A work of an assignment as the store has it.
fn works(site: &Site, assignment: i64) -> Vec<tandem_gradebook::store::Work> {
    let read = move |reader: &Reader<'_>| reader.works(assignment);
    site.gradebook.store().read_now(read).unwrap()
}

#[tokio::test]
async fn the_sample_course_opens_graded_is_changed_approved_and_undone() {
    let site = Site::new().await;
    let browser = Browser::open(&site, "/a/1").await;
    browser
        .until("document.querySelectorAll('.source .open').length > 0")
        .await;
    let first = browser.run("return desk.dataset.work").await;
    // Everything that matters is on the screen.
    let hidden = "const hidden = [];
        for (const e of document.querySelectorAll('.criterion > header, .total strong, .now .level, .now .quote, .do .primary, .feedback h2')) {
            const box = e.getBoundingClientRect();
            const list = document.querySelector('.criteria').getBoundingClientRect();
            const end = e.closest('.criteria') ? Math.min(innerHeight, list.bottom + 1) : innerHeight;
            if (box.bottom > end || box.top < 0) hidden.push(e.textContent);
        }
        return hidden";
    assert_eq!(browser.run(hidden).await, Value::Array(vec![]));
    // A level by its key: the text was written for other points then.
    browser.press("3").await;
    browser.until(CLEAN).await;
    browser
        .until("document.querySelector('.chip.warn').textContent.includes('other points')")
        .await;
    let person = "return document.querySelector('.now .val .h').textContent";
    assert_eq!(browser.run(person).await, "4");
    // Asked once, then approved, and the next one is there.
    browser.press("a").await;
    browser
        .until("document.querySelector('.notice').textContent.includes('written for other points')")
        .await;
    browser.press("a").await;
    browser
        .until(&format!(
            "desk.dataset.work !== '{}'",
            first.as_str().unwrap()
        ))
        .await;
    let id: i64 = first.as_str().unwrap().parse().unwrap();
    let decision = |site: &Site| {
        let works = works(site, 1);
        let work = works.iter().find(|w| w.id == id).unwrap();
        work.review.decision
    };
    assert_eq!(decision(&site), Decision::Approved);
    browser
        .until("head.textContent.includes('1 of 11 settled')")
        .await;
    // Taken back, and there again.
    browser.press("u").await;
    browser
        .until(&format!(
            "desk.dataset.work === '{id}' && head.textContent.includes('0 of 11')"
        ))
        .await;
    assert_eq!(decision(&site), Decision::Open);
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

#[tokio::test]
async fn fifty_edits_with_next_in_the_same_tick_are_all_kept() {
    let site = Site::new().await;
    let course = site.course("Fifty", 51);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    // What is chosen depends on the work, so that another one's would show.
    let tick = "const work = desk.dataset.work;
        const buttons = document.querySelectorAll('.criterion.now .level');
        buttons[Number(work) % buttons.length].click();
        document.querySelector('[data-go=\"next\"]').click();
        return [work, buttons[Number(work) % buttons.length].value]";
    let mut given = Vec::new();
    for _ in 0..50 {
        let done = browser.run(tick).await;
        given.push((done[0].as_str().unwrap().to_owned(), done[1].clone()));
        let last = &given.last().unwrap().0;
        browser
            .until(&format!("desk.dataset.work !== '{last}'"))
            .await;
        let strange = "return document.querySelectorAll('#desk .val .h').length";
        assert_eq!(browser.run(strange).await, 0, "another one's points");
    }
    browser.until(CLEAN).await;
    let works = works(&site, course);
    for (id, points) in given {
        let work = works.iter().find(|w| w.id.to_string() == id).unwrap();
        let kept = work.review.points["correct"].to_string();
        assert_eq!(Value::String(kept), points, "work {id}");
        assert_eq!(work.seen.review, 1, "one change, once");
    }
}

#[tokio::test]
async fn the_second_of_two_persons_sees_both_values_and_decides() {
    let site = Site::new().await;
    let course = site.course("Two", 2);
    let one = Browser::open(&site, &format!("/a/{course}")).await;
    let two = Browser::open(&site, &format!("/a/{course}")).await;
    one.press("1").await;
    one.until(CLEAN).await;
    two.press("2").await;
    two.until("document.querySelector('.conflict') !== null")
        .await;
    let notice = two
        .run("return document.querySelector('.conflict').textContent")
        .await;
    assert!(notice.as_str().unwrap().contains("Yours was: 2 points"));
    let shown = "return document.querySelector('.now .val .h').textContent";
    assert_eq!(two.run(shown).await, "0", "theirs");
    // Away and back: it still waits for a decision.
    two.press("j").await;
    two.until("document.querySelector('.conflict') === null")
        .await;
    two.press("k").await;
    two.until("document.querySelector('.conflict') !== null")
        .await;
    two.run("document.querySelector('.conflict button').click()")
        .await;
    two.until("document.querySelector('.now .val .h').textContent === '2'")
        .await;
    two.until("document.querySelector('.conflict') === null")
        .await;
    let kept = works(&site, course);
    let points = |w: &tandem_gradebook::store::Work| w.review.points.get("correct").copied();
    assert!(
        kept.iter()
            .any(|w| points(w).is_some_and(|p| p.to_string() == "2"))
    );
}

#[tokio::test]
async fn twenty_works_take_at_most_thirty_keys() {
    let site = Site::new().await;
    let course = site.course("Twenty", 20);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    let mut keys = 0;
    for i in 0..20 {
        let work = browser.run("return desk.dataset.work").await;
        let work = work.as_str().unwrap().to_owned();
        if i % 7 == 3 {
            browser.press("2").await;
            browser.until(CLEAN).await;
            browser.press("a").await;
            browser
                .until("document.querySelector('.notice') !== null")
                .await;
            keys += 2;
        }
        browser.press("a").await;
        keys += 1;
        if i < 19 {
            browser
                .until(&format!("desk.dataset.work !== '{work}'"))
                .await;
        }
    }
    browser
        .until("head.textContent.includes('20 of 20 settled')")
        .await;
    assert!(keys <= 30, "{keys}");
    let all = works(&site, course);
    let approved = all
        .iter()
        .filter(|w| w.review.decision == Decision::Approved);
    assert_eq!(approved.count(), 20);
    // The model gave all of them the same.
    let changed = all
        .iter()
        .filter(|w| w.review.points["correct"].to_string() != "4");
    assert_eq!(changed.count(), 3);
}

#[tokio::test]
async fn a_text_is_written_item_by_item_and_no_key_fires_meanwhile() {
    let site = Site::new().await;
    let course = site.course("Text", 2);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    browser.press("f").await;
    browser
        .until("document.activeElement.tagName === 'TEXTAREA'")
        .await;
    let work = browser.run("return desk.dataset.work").await;
    // Letters that are keys elsewhere.
    let field = browser.page.active_element().await.unwrap();
    field.clear().await.unwrap();
    field.send_keys("a just, jaunty u 1").await.unwrap();
    // Ctrl and Enter.
    field.send_keys("\u{E009}\u{E007}").await.unwrap();
    browser.until(CLEAN).await;
    assert_eq!(browser.run("return desk.dataset.work").await, work);
    browser
        .until("document.querySelector('.feedback summary').textContent === 'a just, jaunty u 1'")
        .await;
    let kept = works(&site, course);
    let written = kept.iter().find(|w| w.review.text.is_some()).unwrap();
    assert_eq!(written.review.decision, Decision::Open);
    assert_eq!(
        written.review.text.as_ref().unwrap()[0].text,
        "a just, jaunty u 1"
    );
}

#[tokio::test]
async fn a_click_on_the_number_of_a_line_begins_a_comment() {
    let site = Site::new().await;
    let browser = Browser::open(&site, "/a/1").await;
    browser
        .until("document.querySelectorAll('.source [id] > b').length > 3")
        .await;
    browser
        .run("document.querySelectorAll('.source [id] > b')[2].click()")
        .await;
    let filled = "return [comment.elements.line.value, document.activeElement.name].join()";
    assert_eq!(browser.run(filled).await, "3,text");
    browser
        .run("comment.elements.text.value = 'Say why.'; comment.querySelector('button').click()")
        .await;
    browser
        .until(
            "comments.textContent.includes('line 3') && comments.textContent.includes('Say why.')",
        )
        .await;
    // It opens, and by its key; what is written is saved as all else.
    let kept = works(&site, 1);
    assert_eq!(
        kept.iter().map(|w| w.review.comments.len()).sum::<usize>(),
        1
    );
    assert_eq!(browser.accessibility().await, Vec::<String>::new());
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}
