//! Models at work: one submission live, and a run that is watched, stopped and continued.

use std::sync::atomic::Ordering;

use serde_json::Value;

use tandem_grading::Submission;

use crate::harness::{Browser, Site};
use crate::models::Models;

#[tokio::test]
async fn one_submission_is_graded_live_by_two_models() {
    let site = Site::new().await;
    let models = Models::default();
    models.pause_ms.store(80, Ordering::Relaxed);
    models.tell_alone.store(true, Ordering::Relaxed);
    site.gradebook.connect(models.serve().await);
    let browser = Browser::open(&site, "/try").await;
    assert_eq!(browser.accessibility().await, Vec::<String>::new());
    browser
        .run("document.getElementById('text').value = 'def mean_above(numbers, limit):\\n    return 1\\n'; document.getElementById('name').value = 'mean.py'")
        .await;
    browser
        .run("document.querySelector('#try .primary').click()")
        .await;
    browser
        .until("document.querySelectorAll('.answer.writing').length === 2")
        .await;
    // Both grow beside each other.
    let lengths =
        "return [...document.querySelectorAll('.answer')].map((a) => a.textContent.length)";
    let before = browser.run(lengths).await;
    browser
        .until(&format!(
            "[...document.querySelectorAll('.answer')].every((a, i) => a.textContent.length > {before}[i])"
        ))
        .await;
    assert_eq!(browser.accessibility().await, Vec::<String>::new());
    browser
        .until("document.getElementById('total') !== null")
        .await;
    assert_eq!(
        browser
            .run("return document.getElementById('total').textContent")
            .await,
        "10 of 10"
    );
    let text = browser
        .run("return document.getElementById('live').textContent")
        .await;
    let text = text.as_str().unwrap();
    for part in [
        "Correct result: 4 of 4",
        "line 1 · def mean_above",
        "Try an empty list.",
        "reads",
        "writes",
        "m4-max alone would take 9.2 s by its profile: this was 1.15 times as fast",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The feedback knew of no points.
    let asked = models.asked.lock().unwrap();
    assert!(
        asked.len() == 2
            && asked
                .iter()
                .all(|p| !p.contains("Assessment, for you alone"))
    );
    // Nothing of it is in the store.
    let read = |reader: &tandem_gradebook::store::Reader<'_>| Ok(reader.works(1)?.len());
    assert_eq!(site.gradebook.store().read_now(read).unwrap(), 11);
}

/// So many works, each a little otherwise than the pattern.
fn works(pattern: &Submission, count: usize) -> Vec<Submission> {
    let one = |i| {
        let mut work = pattern.clone();
        work.name = format!("work-{i}");
        work.files[0].lines.push(format!("# {i}"));
        work
    };
    (0..count).map(one).collect()
}

#[tokio::test]
async fn a_run_is_watched_stopped_and_continued() {
    let site = Site::new().await;
    let models = Models::default();
    models.pause_ms.store(8, Ordering::Relaxed);
    site.gradebook.connect(models.serve().await);
    let (rubric, pattern, _) = site.pattern();
    let works = works(&pattern, 12);
    let path = site.gradebook.hand_in("Course", &rubric, &works, None);
    let path = path.unwrap();
    let browser = Browser::open(&site, &path).await;
    assert_eq!(browser.accessibility().await, Vec::<String>::new());
    let primary = "return document.querySelector('form .primary').textContent";
    assert_eq!(browser.run(primary).await, "Try on 5");
    browser
        .run("document.querySelector('form .primary').click()")
        .await;
    browser
        .until("document.getElementById('done').textContent === '5 of 5'")
        .await;
    // The time for all is known from the five.
    browser.enter(&site, &path).await;
    let all = browser.run(primary).await;
    assert!(all.as_str().unwrap().starts_with("All 7 (about "), "{all}");
    models.pause_ms.store(30, Ordering::Relaxed);
    browser
        .run("document.querySelector('form .primary').click()")
        .await;
    browser
        .until("document.querySelectorAll('.lane rect').length > 2")
        .await;
    assert_eq!(browser.accessibility().await, Vec::<String>::new());
    browser
        .until("/^[1-5] of 7$/.test(document.getElementById('done').textContent)")
        .await;
    browser.run("document.getElementById('stop').click()").await;
    browser
        .until("document.getElementById('go-on') !== null")
        .await;
    let stopped = browser
        .run("return document.getElementById('done').textContent")
        .await;
    assert_ne!(stopped, "7 of 7");
    models.pause_ms.store(1, Ordering::Relaxed);
    browser
        .run("document.getElementById('go-on').click()")
        .await;
    browser
        .until("document.getElementById('done').textContent === '7 of 7'")
        .await;
    // Nobody was asked twice.
    let answered = models.answered.lock().unwrap().clone();
    assert_eq!(answered.len(), 24);
    assert!(
        answered.values().all(|n| *n == 1),
        "{:?}",
        answered.values()
    );
    browser
        .run("document.querySelector('header a.primary').click()")
        .await;
    browser
        .until("head.textContent.includes('0 of 12 settled')")
        .await;
    let values: Value = browser
        .run("return document.querySelector('.total strong').textContent")
        .await;
    assert_eq!(values, "10");
}

#[tokio::test]
async fn failures_are_counted_apart_and_tried_again() {
    let site = Site::new().await;
    let models = Models::default();
    models.are_ill.store(true, Ordering::Relaxed);
    site.gradebook.connect(models.serve().await);
    let (rubric, pattern, _) = site.pattern();
    let works: Vec<_> = (0..3)
        .map(|i| {
            let mut work = pattern.clone();
            work.name = format!("work-{i}");
            work
        })
        .collect();
    let path = site
        .gradebook
        .hand_in("Course", &rubric, &works, None)
        .unwrap();
    let browser = Browser::open(&site, &path).await;
    browser
        .run("document.querySelector('form .primary').click()")
        .await;
    browser
        .until("document.querySelector('.facts').textContent.includes('3failed') && document.querySelector('table') !== null")
        .await;
    let table = browser
        .run("return document.querySelector('table').textContent")
        .await;
    // With the cause, in the machine's words.
    for words in ["failed: no answer", "status 500: out of memory"] {
        assert!(table.as_str().unwrap().contains(words), "{table}");
    }
    models.are_ill.store(false, Ordering::Relaxed);
    browser
        .run("document.querySelector('form.inline button').click()")
        .await;
    browser
        .until("document.getElementById('done').textContent === '3 of 3' && document.querySelector('.facts').textContent.includes('0failed')")
        .await;
}

#[tokio::test]
async fn a_text_for_other_points_is_written_anew_by_one_key_but_never_a_persons() {
    let site = Site::new().await;
    let models = Models::default();
    site.gradebook.connect(models.serve().await);
    let course = site.course("Anew", 2);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    let marked = "document.querySelector('.feedback .chip.warn') !== null";
    browser.press("1").await;
    browser.until(marked).await;
    browser.press("w").await;
    browser
        .until("document.querySelector('.feedback').textContent.includes('It says what it does')")
        .await;
    browser.until(&format!("!({marked})")).await;
    let prompt = models.asked.lock().unwrap().last().unwrap().clone();
    assert!(
        prompt.contains("correct: 0 of 4. The teacher gave these points."),
        "{prompt}"
    );
    // It is no person's, so it may be written once more.
    browser.press("3").await;
    browser
        .until("document.querySelector('[data-key=w]') !== null")
        .await;
    // From here on it is.
    browser
        .run(
            "document.querySelector('.feedback summary').click();
              const area = document.querySelector('.feedback textarea');
              area.value = 'My own words.'; area.form.requestSubmit()",
        )
        .await;
    browser
        .until("document.querySelector('.feedback .chip.ok') !== null")
        .await;
    browser.press("1").await;
    browser.until(marked).await;
    assert_eq!(
        browser
            .run("return document.querySelector('[data-key=w]')")
            .await,
        Value::Null
    );
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}
