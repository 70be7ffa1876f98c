//! For people with other eyes, hands and screens.

use crate::harness::{Browser, Site};

async fn check(site: &Site, size: (u32, u32), is_dark: bool) {
    let browser = Browser::start((size.0, size.1), is_dark).await;
    browser.resize(size.0, size.1).await;
    for path in [
        "/grading",
        "/grading/a/1",
        "/grading/w/1/prompt",
        "/grading/w/1/record",
    ] {
        browser.enter(site, path).await;
        let found = browser.accessibility().await;
        assert!(
            found.is_empty(),
            "{path} {size:?} dark {is_dark}: {found:#?}"
        );
        let overflow = "return document.documentElement.scrollWidth > innerWidth + 1";
        assert_eq!(
            browser.run(overflow).await,
            false,
            "{path} is wider than {size:?}"
        );
    }
    let dark = "return matchMedia('(prefers-color-scheme: dark)').matches";
    assert_eq!(browser.run(dark).await, is_dark);
}

#[tokio::test]
async fn pages_have_no_serious_finding_in_the_light() {
    check(&Site::new().await, (1366, 768), false).await;
}

#[tokio::test]
async fn pages_have_no_serious_finding_in_the_dark() {
    check(&Site::new().await, (1366, 768), true).await;
}

#[tokio::test]
async fn pages_fit_a_telephone() {
    check(&Site::new().await, (500, 800), false).await;
    let site = Site::new().await;
    let browser = Browser::start((500, 800), false).await;
    browser.enter(&site, "/grading/a/1").await;
    let visible = "return ['queue', 'work', 'desk'].filter((id) => document.getElementById(id).getClientRects().length > 0).join()";
    assert_eq!(browser.run(visible).await, "desk");
    browser
        .run("document.querySelector('.tabs a').click()")
        .await;
    assert_eq!(browser.run(visible).await, "queue");
}

#[tokio::test]
async fn keys_can_be_seen_and_turned_off() {
    let site = Site::new().await;
    let browser = Browser::open(&site, "/grading/a/1").await;
    browser.press("?").await;
    browser
        .until("document.querySelector('dialog[open]').textContent.includes('Approve, next')")
        .await;
    let work = browser.run("return desk.dataset.work").await;
    browser.press("j").await;
    assert_eq!(
        browser.run("return desk.dataset.work").await,
        work,
        "behind a dialog"
    );
    browser
        .run("document.getElementById('keys-on').click()")
        .await;
    browser.press("Escape").await;
    browser
        .until("document.querySelector('dialog[open]') === null")
        .await;
    browser.press("j").await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(
        browser.run("return desk.dataset.work").await,
        work,
        "keys are off"
    );
}
