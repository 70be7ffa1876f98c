//! A teacher grades some submissions blind, by keys, and reads how far both agree.

use tandem_gradebook::store::Reader;

use crate::harness::{Browser, Site};
use crate::pictures::take;

#[tokio::test]
async fn submissions_are_graded_blind_by_keys() {
    let site = Site::new().await;
    let course = site.course("Blind", 30);
    let browser = Browser::open(&site, &format!("/a/{course}/agreement")).await;
    browser
        .run("document.querySelector('input[name=count]').value = '3'; document.querySelector('form[action$=anchors] button').click()")
        .await;
    browser
        .until("document.getElementById('blind') !== null && document.querySelector('.seg [aria-current]')?.textContent === 'Blind 3'")
        .await;
    let criteria = browser
        .run("return document.querySelectorAll('.criterion').length")
        .await;
    let criteria = criteria.as_u64().unwrap();
    for left in (0..3).rev() {
        let work = browser.run("return desk.dataset.work").await;
        let work = work.as_str().unwrap();
        let seen = "return document.querySelectorAll('.val .m, .level.model, .quote, .source .open, .feedback').length";
        assert_eq!(browser.run(seen).await, 0);
        // All in one go: what is saved last waits for the points.
        for _ in 0..criteria {
            browser.press("1").await;
            browser.press("ArrowDown").await;
        }
        browser.press("a").await;
        browser
            .until(&format!(
                "desk.dataset.work === '{work}' && document.getElementById('blind') === null && document.querySelectorAll('.val .m').length > 0"
            ))
            .await;
        assert!(browser.run(seen).await.as_u64().unwrap() > 0);
        if left > 0 {
            browser.press("n").await;
            browser
                .until("document.getElementById('blind') !== null")
                .await;
        }
    }
    browser.press("n").await;
    browser
        .until("document.getElementById('end') !== null")
        .await;
    let readings = site
        .gradebook
        .store()
        .read_now(|reader: &Reader<'_>| reader.blind_readings(course))
        .unwrap();
    assert_eq!(readings.len(), 3);
    assert!(
        readings
            .iter()
            .all(|one| one.points.len() as u64 == criteria)
    );
    browser
        .enter(&site, &format!("/a/{course}/agreement"))
        .await;
    browser
        .until("document.getElementById('anchors').textContent.includes('3 graded blind')")
        .await;
    assert!(browser.accessibility().await.is_empty());
    take(&browser, "agreement.png").await;
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}
