//! From the last approval to the file that goes back, with keys and buttons alone.

use fantoccini::Locator;

use crate::harness::{Browser, Site};

/// As Canvas gives it, of the students of a course that [`Site::course`] makes.
fn sheet(title: &str) -> String {
    let mut sheet = format!(
        "Student,ID,SIS Login ID,Section,{title} (77),Final Score\r\n    Points Possible,,,,10.00,(read only)\r\n"
    );
    for i in 0..3 {
        sheet.push_str(&format!(
            "\"Student {i}\",{},work-{i:04},\"A, B\",,12.5\r\n",
            500 + i
        ));
    }
    sheet.push_str("\"Nobody, Nora\",599,nora,A,3.00,12.5\r\n");
    sheet
}

/// Approves all three of a course with a key, and goes on from the last page.
async fn way_out(site: &Site, course: i64) -> Browser {
    let browser = Browser::open(site, &format!("/a/{course}")).await;
    for _ in 0..3 {
        let work = browser
            .run("return document.getElementById('desk').dataset.work")
            .await;
        browser.press("a").await;
        let gone = "document.getElementById('end') || document.getElementById('desk').dataset.work";
        browser.until(&format!("({gone}) !== {work}")).await;
    }
    browser.until("document.getElementById('end')").await;
    let heading = browser.run("return document.querySelector('h1').textContent + document.querySelector('#end h1').textContent");
    assert!(
        heading
            .await
            .as_str()
            .unwrap()
            .contains("All submissions are settled")
    );
    browser.press("e").await;
    browser.until("document.getElementById('export')").await;
    browser
}

/// Gives the page a gradebook, and waits for what would change.
async fn give(browser: &Browser, own: &std::path::Path) {
    let field = browser
        .page
        .find(Locator::Css("input[name=sheet]"))
        .await
        .unwrap();
    field.send_keys(own.to_str().unwrap()).await.unwrap();
    browser
        .run("document.querySelector('form[enctype] button').click()")
        .await;
    browser.until("document.getElementById('summary')").await;
}

#[tokio::test]
async fn the_last_page_leads_out_and_the_second_export_changes_nothing() {
    let site = Site::new().await;
    let course = site.course("Out", 3);
    let browser = way_out(&site, course).await;
    // Nobody read them: the export says so, once it is seen.
    let counts = "return document.getElementById('counts').textContent";
    let counts = browser.run(counts).await.as_str().unwrap().to_owned();
    assert!(counts.contains("3 approved within two seconds"), "{counts}");
    let title = "return document.querySelectorAll('header a')[1].textContent";
    let title = browser.run(title).await.as_str().unwrap().to_owned();
    let own = site.folder().join("Grades of the course.csv");
    std::fs::write(&own, sheet(&title)).unwrap();
    give(&browser, &own).await;
    let summary = "return document.getElementById('summary').textContent";
    let text = |value: serde_json::Value| value.as_str().unwrap().to_owned();
    let said = text(browser.run(summary).await);
    assert_eq!(said, "3 cells would change, 0 grades stand there already.");
    let after = "return [...document.querySelectorAll('#changes tbody tr')].map((row) => row.lastElementChild.textContent)";
    let after = browser.run(after).await;
    let grades: Vec<&str> = after
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g.as_str().unwrap())
        .collect();
    browser
        .run("document.getElementById('write').click()")
        .await;
    let written = browser.downloaded("Grades of the course.csv").await;
    let mut expected = sheet(&title);
    for (i, grade) in grades.iter().enumerate() {
        let (before, filled) = (
            format!("work-{i:04},\"A, B\",,"),
            format!("work-{i:04},\"A, B\",{grade},"),
        );
        assert_eq!(expected.matches(&before).count(), 1);
        expected = expected.replace(&before, &filled);
    }
    assert_eq!(String::from_utf8(written).unwrap(), expected);
    std::fs::write(&own, &expected).unwrap();
    browser.enter(&site, &format!("/a/{course}/export")).await;
    give(&browser, &own).await;
    let said = text(browser.run(summary).await);
    assert_eq!(said, "0 cells would change, 3 grades stand there already.");
    browser
        .run("document.getElementById('write').click()")
        .await;
    let again = browser.downloaded("Grades of the course.csv").await;
    assert_eq!(String::from_utf8(again).unwrap(), expected);
    browser.enter(&site, &format!("/a/{course}/export")).await;
    browser
        .run("document.querySelector('button[value=csv]').click()")
        .await;
    let table = browser.downloaded("mean-above-grades.csv").await;
    assert_eq!(
        String::from_utf8(table)
            .unwrap()
            .matches("work-000")
            .count(),
        3
    );
}
