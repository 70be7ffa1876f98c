//! Grades leave by the pages: what a person approved, as the preview showed it.

use tandem_gradebook::store::{By, Reader, Role, WriteError, Writer};
use tandem_grading::Points;
use tandem_grading::review::Change;

use crate::site::Site;
use crate::upload::send_to;

/// Points that a person gives to all criteria of a work of the sample, its feedback as it is; and approves them.
fn approve(site: &Site, work: i64) {
    let store = site.gradebook.store();
    let ids = store.read_now(|reader| {
        let rubric = reader.rubric(1)?.unwrap().rubric;
        let first = |c: &tandem_grading::Criterion| (c.id.clone(), c.allowed()[0]);
        Ok(rubric.criteria.iter().map(first).collect::<Vec<_>>())
    });
    let points = |(criterion, points): (String, Points)| Change::Points {
        criterion,
        points: Some(points),
    };
    let approve = Change::Approve { confirmed: true };
    let changes = ids.unwrap().into_iter().map(points).chain([approve]);
    for change in changes {
        let done = store.write_now(|writer: &Writer<'_>| {
            let by = By {
                person: writer.person(Role::Teacher)?,
                session: "s",
                key: None,
            };
            let seen = writer.work(work)?.unwrap().seen;
            writer.change((work, seen), &by, &change)
        });
        done.map_err(|e: WriteError| e.to_string()).unwrap();
    }
}

/// Names and totals of the sample's works that are approved.
fn approved(site: &Site) -> Vec<(String, String)> {
    let read = |reader: &Reader<'_>| {
        let rubric = reader.rubric(1)?.unwrap().rubric;
        let works = reader.works(1)?.into_iter().filter_map(|work| {
            let standing = work.standing(&rubric);
            let is = standing.state() == tandem_grading::review::State::Approved;
            is.then(|| (work.name.clone(), standing.total().unwrap().to_string()))
        });
        Ok(works.collect())
    };
    site.gradebook.store().read_now(read).unwrap()
}

/// A gradebook of the sample's students, in which one stands already and one has handed in nothing.
fn sheet(site: &Site, title: &str) -> String {
    let names = site.gradebook.store().read_now(|reader| {
        let works = reader.works(1)?.into_iter();
        Ok(works.map(|work| work.name).collect::<Vec<_>>())
    });
    let mut sheet =
        format!("Student,ID,SIS Login ID,Section,{title} (5)\r\n    Points Possible,,,,10.00\r\n");
    for (i, name) in names.unwrap().iter().enumerate() {
        sheet.push_str(&format!("\"Family {i}, Given\",{},{name},A,\r\n", 100 + i));
    }
    sheet.push_str("\"Absent, Abel\",999,abel,A,7.50\r\n");
    sheet
}

async fn text(site: &Site, path: &str) -> String {
    site.get(path).await.text().await.unwrap()
}

/// The value of a hidden field of the form that writes the file.
fn field(page: &str, name: &str) -> String {
    let at = page.rfind(&format!("name=\"{name}\" value=\"")).unwrap();
    let value = &page[at..];
    value.split('"').nth(3).unwrap().to_owned()
}

/// Sends the form of a preview that writes the file.
async fn download(site: &Site, shown: &str) -> reqwest::Response {
    let (digest, column) = (field(shown, "digest"), field(shown, "column"));
    let form = [
        ("to", "sheet"),
        ("digest", digest.as_str()),
        ("column", column.as_str()),
    ];
    site.post("/a/1/export", &form).await
}

#[tokio::test]
async fn a_gradebook_comes_back_as_the_preview_showed_it() {
    let site = Site::new().await;
    let title = site.gradebook.store().read_now(|r| r.assignment(1));
    let title = title.unwrap().unwrap().title;
    for work in [1, 2] {
        approve(&site, work);
    }
    let own = sheet(&site, &title);
    let page = "/a/1/export";
    let before = text(&site, page).await;
    assert!(
        before.contains("<strong class=\"num\">2</strong> approved"),
        "{before}"
    );
    let file = [("sheet", Some("Course grades.csv"), own.as_bytes())];
    let sent = send_to(&site, "/a/1/sheet", &file).await;
    assert_eq!(sent.status(), 303);
    let shown = text(&site, page).await;
    assert!(
        shown.contains("<strong class=\"num\">2</strong> cells would change"),
        "{shown}"
    );
    assert!(shown.contains("a Canvas gradebook") && shown.contains("Absent, Abel"));
    assert!(shown.contains("<strong class=\"num\">1</strong> not submitted"));
    // What is approved after the preview is in no file that the preview did not show.
    approve(&site, 3);
    let refused = download(&site, &shown).await;
    assert_eq!(refused.status(), 422);
    assert!(
        refused
            .text()
            .await
            .unwrap()
            .contains("Something changed since the preview")
    );
    let shown = text(&site, page).await;
    let written = download(&site, &shown).await;
    assert_eq!(written.status(), 200);
    let disposition = written.headers()["content-disposition"]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        disposition.starts_with("attachment; filename=\"Course grades.csv\""),
        "{disposition}"
    );
    let written = written.text().await.unwrap();
    let approved = approved(&site);
    assert_eq!(approved.len(), 3);
    let mut expected = own.clone();
    for (name, total) in &approved {
        let total: f64 = total.parse().unwrap();
        expected = expected.replace(&format!(",{name},A,\r"), &format!(",{name},A,{total:.2}\r"));
    }
    assert_eq!(written, expected);
    // The second export, into what the first one wrote, changes nothing.
    let file = [("sheet", Some("Course grades.csv"), written.as_bytes())];
    assert_eq!(send_to(&site, "/a/1/sheet", &file).await.status(), 303);
    let shown = text(&site, page).await;
    assert!(
        shown.contains("<strong class=\"num\">0</strong> cells would change"),
        "{shown}"
    );
    assert!(shown.contains("<strong class=\"num\">3</strong> grades stand there already"));
    let again = download(&site, &shown).await.text().await.unwrap();
    assert_eq!(again, expected);
    let exports = site.gradebook.store().read_now(|r| r.exports(1)).unwrap();
    assert_eq!(exports.iter().map(|e| e.grades).collect::<Vec<_>>(), [3, 3]);
}

#[tokio::test]
async fn files_of_their_own_leave_with_what_is_approved_alone() {
    let site = Site::new().await;
    approve(&site, 2);
    for to in [
        "csv",
        "feedback",
        "moodle-feedback",
        "nbgrader",
        "gradescope",
        "json",
    ] {
        let file = site.post("/a/1/export", &[("to", to)]).await;
        assert_eq!(file.status(), 200, "{to}");
        assert!(
            file.headers()["content-disposition"]
                .to_str()
                .unwrap()
                .contains("mean-above")
        );
        assert!(!file.bytes().await.unwrap().is_empty());
    }
    let table = site.post("/a/1/export", &[("to", "csv")]).await;
    let table = table.text().await.unwrap();
    let names: Vec<&str> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split(',').next())
        .collect();
    assert!(names.contains(&approved(&site)[0].0.as_str()), "{table}");
    assert_eq!(
        site.post("/a/1/export", &[("to", "sheet")]).await.status(),
        404
    );
    assert_eq!(
        site.post("/a/1/export", &[("to", "exe")]).await.status(),
        404
    );
    let bad = [("sheet", Some("a.csv"), &b"\xff\xfea"[..])];
    let refused = send_to(&site, "/a/1/sheet", &bad).await;
    assert_eq!(refused.status(), 422);
    assert!(
        refused
            .text()
            .await
            .unwrap()
            .contains("a.csv is no gradebook")
    );
}
