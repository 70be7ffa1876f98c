//! For people with other eyes, hands and screens.

use crate::harness::{Browser, Site};

async fn check(site: &Site, size: (u32, u32), is_dark: bool) {
    let browser = Browser::start((size.0, size.1), is_dark).await;
    browser.resize(size.0, size.1).await;
    for path in [
        "",
        "/a/1",
        "/a/1/export",
        "/a/1/agreement",
        "/a/1/delete",
        "/a/1/rubric",
        "/new",
        "/w/1/delete",
        "/w/1/prompt",
        "/w/1/record",
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
    browser.enter(&site, "/a/1").await;
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
    let browser = Browser::open(&site, "/a/1").await;
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

/// What each key of the help changes, as an expression that differs afterwards.
const STATE: &str = "return JSON.stringify([
    document.querySelector('#desk h1')?.textContent, document.getElementById('end')?.textContent,
    document.querySelector('.criterion.now')?.dataset.criterion, document.querySelector('.now .val .h')?.textContent,
    document.querySelector('#desk .total')?.textContent, document.activeElement?.tagName, location.search,
    document.querySelector('dialog[open]')?.id, [...document.querySelectorAll('main.review > .show')].map((e) => e.id),
    document.getElementById('notices')?.textContent, document.querySelector('.source .lit')?.id, window.scrollY,
    document.querySelector('.source')?.scrollTop])";

#[tokio::test]
async fn each_key_of_the_help_acts_on_a_narrow_screen_too() {
    let site = Site::new().await;
    for (width, height) in [(683, 384), (360, 640)] {
        let course = site.course(&format!("Narrow {width}"), 4);
        let browser = Browser::start((width, height), false).await;
        browser.resize(width, height).await;
        browser.enter(&site, &format!("/a/{course}")).await;
        // The help itself says which there are.
        browser.press("?").await;
        let keys = browser
            .run("return [...document.querySelectorAll('dialog kbd')].map((k) => k.textContent)")
            .await;
        let keys: Vec<String> = serde_json::from_value(keys).unwrap();
        for wanted in ["a", "s", "u", "c", "f", "/", "n"] {
            assert!(keys.iter().any(|key| key == wanted), "{width}: {keys:?}");
        }
        browser.press("Escape").await;
        // From the files, where nothing of the desk is shown; `u` takes back what was done before it.
        for key in [
            "2",
            "a",
            "s",
            "u",
            "j",
            "k",
            "ArrowDown",
            "ArrowUp",
            "c",
            "c",
            "/",
            "f",
            "n",
            "]",
        ] {
            // Evidence leads from the desk to the files.
            let from = if key == "]" { "desk" } else { "work" };
            browser
                .run(&format!("document.activeElement.blur(); document.querySelector('.tabs a[href=\"#{from}\"]').click()"))
                .await;
            // The first one has none before it, the last one none behind it.
            let is_there =
                format!("return document.querySelector('[data-go][data-key=\"{key}\"]') !== null");
            if ["j", "k"].contains(&key) && browser.run(&is_there).await == false {
                continue;
            }
            let before = browser.run(STATE).await;
            browser.press(key).await;
            let changed = format!("(() => {{ {STATE} }})() !== {before}");
            browser.until(&changed).await;
            browser.press("Escape").await;
            browser
                .until("document.getElementById('status').textContent !== 'saving …'")
                .await;
        }
        // With a finger: what a key does can be touched.
        browser
            .run("document.querySelector('.tabs a[href=\"#desk\"]').click()")
            .await;
        let reach = "return ['a', 's', 'u', '?'].filter((key) => {
            const box = document.querySelector(`[data-key=\"${key}\"]`).getBoundingClientRect();
            return box.width < 24 || box.height < 24 || box.right > innerWidth + 1 || box.left < 0;
        })";
        assert_eq!(browser.run(reach).await, serde_json::json!([]), "{width}");
        assert_eq!(
            browser.accessibility().await,
            Vec::<String>::new(),
            "{width}"
        );
    }
}

#[tokio::test]
async fn who_cannot_see_is_told_who_gave_points() {
    let site = Site::new().await;
    let course = site.course("Heard", 3);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    // By the words of the elements, as a screen reader has them.
    let level = |points: &str| {
        format!(
            "return [...document.querySelectorAll('.now .level')].find((l) => l.value === '{points}').textContent"
        )
    };
    let text = browser.run(&level("4")).await;
    assert!(
        text.as_str().unwrap().contains("as the model gave"),
        "{text}"
    );
    browser.press("2").await;
    browser
        .until("document.getElementById('status').textContent === 'saved'")
        .await;
    let text = browser.run(&level("2")).await;
    assert!(
        text.as_str().unwrap().contains("as a person gave"),
        "{text}"
    );
    let text = browser
        .run("return document.querySelector('.now header').textContent")
        .await;
    let text = text.as_str().unwrap();
    assert!(
        text.contains("the model gave 4") && text.contains("a person gave 2"),
        "{text}"
    );
    let marks = browser
        .run("return [...document.querySelectorAll('.source [data-criteria] i')].every((i) => i.getAttribute('aria-label').includes('criterion'))")
        .await;
    assert_eq!(marks, true);
}

#[tokio::test]
async fn focus_stays_on_the_desk_and_what_is_announced_stays_one_element() {
    let site = Site::new().await;
    let course = site.course("Focus", 3);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    // What is announced is one element for the life of the page, and focus stays on the desk.
    browser
        .run("window.announced = document.getElementById('status')")
        .await;
    browser.press("n").await;
    browser.until("desk.contains(document.activeElement)").await;
    for key in ["s", "u", "j", "k", "a", "u"] {
        browser.press(key).await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let kept = "return [window.announced === document.getElementById('status'), desk.contains(document.activeElement)]";
        assert_eq!(
            browser.run(kept).await,
            serde_json::json!([true, true]),
            "{key}"
        );
    }
    // By Tab and Enter: the button that was pressed has the focus again.
    browser
        .run("document.querySelector('[data-key=\"a\"]').focus()")
        .await;
    let work = browser.run("return desk.dataset.work").await;
    browser.press("Enter").await;
    browser
        .until(&format!("desk.dataset.work !== {work}"))
        .await;
    assert_eq!(
        browser
            .run("return document.activeElement.dataset.key")
            .await,
        "a"
    );
}

#[tokio::test]
async fn the_queue_is_skipped_and_arrows_scroll_the_files() {
    let site = Site::new().await;
    let course = site.course("Skip", 3);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    // Two stops lead past the queue.
    browser
        .run("document.activeElement.blur(); window.scrollTo(0, 0)")
        .await;
    browser
        .run("document.querySelector('.skip a').focus()")
        .await;
    browser.press("Enter").await;
    browser
        .until("document.activeElement.matches('.source')")
        .await;
    // Arrows scroll there.
    let criterion = browser
        .run("return document.querySelector('.criterion.now').dataset.criterion")
        .await;
    let work = browser.run("return desk.dataset.work").await;
    browser.press("ArrowDown").await;
    browser.press("ArrowRight").await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(
        browser
            .run("return document.querySelector('.criterion.now').dataset.criterion")
            .await,
        criterion
    );
    assert_eq!(browser.run("return desk.dataset.work").await, work);
}
