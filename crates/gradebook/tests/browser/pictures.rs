//! The pictures of `docs/grading.md`. They are always taken; with `TANDEM_PICTURES=docs` they are put there.

use std::path::Path;
use std::sync::atomic::Ordering;

use tandem_gradebook::store::{SheetFile, StoreError};

use crate::harness::{Browser, Site};
use crate::models::Models;

pub async fn take(browser: &Browser, name: &str) {
    let picture = browser.page.screenshot().await.unwrap();
    assert!(
        picture.starts_with(b"\x89PNG") && picture.len() > 10_000,
        "{name}"
    );
    if let Ok(folder) = std::env::var("TANDEM_PICTURES") {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::write(root.join(folder).join(name), picture).unwrap();
    }
}

#[tokio::test]
async fn the_documents_show_the_pages_as_they_are() {
    let site = Site::new().await;
    let models = Models::default();
    models.pause_ms.store(60, Ordering::Relaxed);
    site.gradebook.connect(models.serve().await);
    let browser = Browser::open(&site, "/a/1").await;
    browser.press("2").await;
    browser
        .until("document.querySelector('.chip.warn') !== null")
        .await;
    take(&browser, "review.png").await;
    browser.enter(&site, "/try").await;
    browser
        .run("document.getElementById('text').value = 'def mean_above(numbers, limit):\\n    total = 0\\n    count = 0\\n    for n in numbers:\\n        if n >= limit:\\n            total += n\\n            count += 1\\n    return total / count\\n'; document.getElementById('name').value = 'mean.py'; document.querySelector('#try .primary').click()")
        .await;
    browser
        .until("document.querySelectorAll('.answer b').length >= 3")
        .await;
    take(&browser, "try.png").await;
    let (rubric, pattern, _) = site.pattern();
    let works: Vec<_> = (0..30)
        .map(|i| {
            let mut work = pattern.clone();
            work.name = format!("work-{i}");
            work.files[0].lines.push(format!("# {i}"));
            work
        })
        .collect();
    let path = site
        .gradebook
        .hand_in("Intro course", &rubric, &works, None)
        .unwrap();
    models.pause_ms.store(15, Ordering::Relaxed);
    browser.enter(&site, &path).await;
    browser
        .run("document.querySelector('button[value=all]').click()")
        .await;
    browser
        .until("/^1[0-9] of 30$/.test(document.getElementById('done').textContent)")
        .await;
    take(&browser, "run.png").await;
    of_export(&site, &browser).await;
}

/// Of a course of which a part is approved, and its gradebook is there.
async fn of_export(site: &Site, browser: &Browser) {
    let course = site.course("Intro course, spring", 12);
    let mut own = "Student,ID,SIS Login ID,Section,Mean above a limit (4711)\r\n    Points Possible,,,,10.00\r\n".to_owned();
    for i in 0..12 {
        own.push_str(&format!(
            "\"Family {i}, Given\",{},work-{i:04},A,\r\n",
            300 + i
        ));
    }
    let sheet = SheetFile {
        name: "grades.csv".to_owned(),
        bytes: own.into_bytes(),
    };
    let kept: Result<(), StoreError> = site
        .gradebook
        .store()
        .write_now(|writer| writer.keep_sheet(course, &sheet).map(Ok));
    kept.unwrap();
    browser.enter(site, &format!("/a/{course}")).await;
    for i in 1..=7 {
        let work = browser
            .run("return document.getElementById('desk').dataset.work")
            .await;
        browser.press("a").await;
        browser
            .until(&format!(
                "document.getElementById('desk').dataset.work !== {work} &&
                 document.getElementById('head').textContent.includes('{i} of 12 settled')"
            ))
            .await;
    }
    browser.enter(site, &format!("/a/{course}/export")).await;
    take(browser, "export.png").await;
}
