//! How long a person waits. The figures are printed; the bounds are twice the goals, as other tests run beside this one.

use std::time::{Duration, Instant};

use crate::harness::{Browser, Site};

const WORKS: usize = 1000;
const PAGE_GOAL: Duration = Duration::from_millis(100);
const NEXT_GOAL: Duration = Duration::from_millis(150);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[tokio::test]
async fn a_thousand_works_keep_nobody_waiting() {
    let site = Site::new().await;
    let course = site.course("Many", WORKS);
    let client = reqwest::Client::builder().build().unwrap();
    let path = format!("/a/{course}");
    let browser = Browser::open(&site, &path).await;
    let cookies = browser.page.get_all_cookies().await.unwrap();
    let cookie = cookies
        .iter()
        .find(|c| c.name().starts_with("tandem_"))
        .unwrap();
    let cookie = format!("{}={}", cookie.name(), cookie.value());
    let work = browser.run("return desk.dataset.work").await;
    let work = work.as_str().unwrap();
    for path in [
        "".to_owned(),
        format!("/w/{work}"),
        format!("/w/{work}?list=all"),
        format!("/w/{work}/record"),
    ] {
        let mut times = Vec::new();
        for _ in 0..9 {
            let since = Instant::now();
            let asked = client.get(site.page(&path));
            let answer = asked.header("cookie", &cookie).send().await.unwrap();
            assert_eq!(answer.status(), 200);
            answer.bytes().await.unwrap();
            times.push(since.elapsed());
        }
        let time = median(times);
        println!("{path}: {} ms", time.as_millis());
        assert!(time < PAGE_GOAL * 2, "{path}: {time:?}");
    }
    // From the key to the frame in which the next work is there.
    let script = "const done = arguments[arguments.length - 1];
        const work = desk.dataset.work;
        const since = performance.now();
        const look = () => desk.dataset.work !== work
            ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - since)))
            : setTimeout(look);
        document.querySelector('[data-key=\"a\"]').click();
        look();";
    let mut times = Vec::new();
    for _ in 0..9 {
        // A person looks at a work before deciding.
        browser
            .until("document.getElementById('status').textContent !== 'saving …'")
            .await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let ms = browser.page.execute_async(script, vec![]).await.unwrap();
        times.push(Duration::from_secs_f64(ms.as_f64().unwrap() / 1e3));
    }
    let time = median(times);
    println!("approve to next: {} ms", time.as_millis());
    assert!(time < NEXT_GOAL * 2, "approve to next: {time:?}");
}
