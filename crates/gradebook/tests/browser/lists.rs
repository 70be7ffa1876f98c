//! Working through a course: one criterion through all works, works with the same level, one student.

use serde_json::Value;

use crate::harness::{Browser, Site};

const CLEAN: &str = "document.getElementById('status').textContent === 'saved'";

async fn shown(browser: &Browser) -> Value {
    browser.run("return desk.dataset.work").await
}

async fn open_criterion(browser: &Browser) -> Value {
    browser
        .run("return document.querySelector('.criterion.now').dataset.criterion")
        .await
}

#[tokio::test]
async fn one_criterion_stays_open_through_all_works_until_each_has_a_persons_points() {
    let site = Site::new().await;
    let course = site.course("One by one", 3);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    browser.press("ArrowDown").await;
    assert_eq!(open_criterion(&browser).await, "empty");
    browser.press("c").await;
    browser.until("location.search.includes('by=empty')").await;
    assert_eq!(open_criterion(&browser).await, "empty");
    assert_eq!(browser.accessibility().await, Vec::<String>::new());
    for left in [2, 1] {
        let work = shown(&browser).await;
        browser.press("2").await;
        browser.until(CLEAN).await;
        browser
            .until(&format!("queue.textContent.includes('Open {left}')"))
            .await;
        browser.press("n").await;
        browser
            .until(&format!(
                "desk.dataset.work !== '{}'",
                work.as_str().unwrap()
            ))
            .await;
        assert_eq!(open_criterion(&browser).await, "empty");
    }
    // Those with the same points, from any of them.
    browser
        .until(
            "document.querySelector('.criterion.now .more').textContent.includes('2 others have')",
        )
        .await;
    browser
        .run("document.querySelector('.criterion.now .more a').click()")
        .await;
    browser
        .until("queue.textContent.includes('3 with 1 points here')")
        .await;
    assert_eq!(
        browser
            .run("return document.querySelectorAll('#queue li').length")
            .await,
        3
    );
    // An edit leaves the list as it is.
    browser.press("1").await;
    browser.until(CLEAN).await;
    browser
        .until("queue.textContent.includes('2 with 1 points here')")
        .await;
    browser.press("c").await;
    browser.until("!location.search.includes('by=')").await;
    browser.until("queue.textContent.includes('Open 3')").await;
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_student_is_found_and_no_key_fires_in_the_search() {
    let site = Site::new().await;
    let course = site.course("Find", 12);
    let browser = Browser::open(&site, &format!("/a/{course}")).await;
    browser.press("/").await;
    browser
        .until("document.activeElement.name === 'find'")
        .await;
    let field = browser.page.active_element().await.unwrap();
    field.send_keys("K-0007\u{E007}").await.unwrap();
    browser
        .until("desk.textContent.includes('work-0007') && location.search.includes('find')")
        .await;
    assert_eq!(
        browser
            .run("return document.querySelectorAll('#queue li').length")
            .await,
        1
    );
    browser
        .run("[...document.querySelectorAll('.seg a')].find((a) => a.textContent === 'Open').click()")
        .await;
    browser
        .until("document.querySelectorAll('#queue li').length === 12")
        .await;
    browser.press("/").await;
    let field = browser.page.active_element().await.unwrap();
    field.send_keys("nobody\u{E007}").await.unwrap();
    browser
        .until("queue.textContent.includes('0 with “nobody” in the name')")
        .await;
}
