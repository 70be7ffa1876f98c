//! A rubric is made, changed, read from a file and downloaded on the pages.

use tandem_gradebook::store::{Reader, RubricVersion};

use crate::models::Models;
use crate::site::Site;
use crate::upload::{Part, send_to, take, zipped};

fn held(site: &Site, assignment: i64) -> RubricVersion {
    let read = |reader: &Reader<'_>| Ok(reader.rubric(assignment)?.unwrap());
    site.gradebook.store().read_now(read).unwrap()
}

/// The fields of the form as the page has them, ready to be sent.
async fn fields(site: &Site, path: &str) -> Vec<(String, String)> {
    fields_of(&site.get(path).await.text().await.unwrap())
}

fn fields_of(page: &str) -> Vec<(String, String)> {
    let form = page
        .split("data-checked")
        .nth(1)
        .unwrap()
        .split("</form>")
        .next()
        .unwrap();
    let plain = |text: &str| {
        let text = text
            .replace("&#60;", "<")
            .replace("&#62;", ">")
            .replace("&#34;", "\"");
        text.replace("&#39;", "'").replace("&#38;", "&")
    };
    let value = |tag: &str, name: &str| {
        let at = tag.find(&format!(" {name}=\""))? + name.len() + 3;
        Some(plain(tag[at..].split('"').next()?))
    };
    let mut fields = Vec::new();
    for part in form.split('<').skip(1) {
        let (tag, rest) = part.split_once('>').unwrap_or((part, ""));
        let Some(name) = value(tag, "name").filter(|name| name != "do") else {
            continue;
        };
        let value = match tag.split(' ').next() {
            Some("textarea") => plain(rest),
            Some("select") => String::new(),
            _ => value(tag, "value").unwrap_or_default(),
        };
        if !tag.contains("checkbox") {
            fields.push((name, value));
        }
    }
    fields
}

async fn send(
    site: &Site,
    path: &str,
    fields: &[(String, String)],
    what: &str,
) -> reqwest::Response {
    let encode =
        |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02X}")).collect() };
    let all: Vec<(String, String)> = fields
        .iter()
        .map(|(name, value)| (name.clone(), encode(value)))
        .collect();
    let mut form: Vec<(&str, &str)> = all
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    form.push(("do", what));
    site.post(path, &form).await
}

fn set(fields: &mut [(String, String)], name: &str, value: &str) {
    let field = fields.iter_mut().find(|(field, _)| field == name);
    field.unwrap_or_else(|| panic!("no {name}")).1 = value.to_owned();
}

#[tokio::test]
async fn a_rubric_is_changed_on_its_page() {
    let site = Site::new().await;
    let path = "/a/1/rubric";
    let before = held(&site, 1);
    let mut form = fields(&site, path).await;
    // Kept as it is, it is no new version.
    assert_eq!(send(&site, path, &form, "keep").await.status(), 303);
    assert_eq!(held(&site, 1).number, before.number);
    // What is wrong stays in the form, and is named by what the form calls it.
    set(&mut form, "c0-points", "four");
    set(&mut form, "task", "Sum <script>alert(1)</script> & more");
    let refused = send(&site, path, &form, "keep").await;
    assert_eq!(refused.status(), 422);
    let page = refused.text().await.unwrap();
    assert!(
        page.contains("Correct result: “four” is no number"),
        "{page}"
    );
    assert!(
        page.contains("value=\"four\"") && !page.contains("<script>alert"),
        "{page}"
    );
    set(&mut form, "c0-points", "5");
    let page = send(&site, path, &form, "keep").await.text().await.unwrap();
    assert!(
        page.contains("“Correct result”, levels: none gives the maximum of 5"),
        "{page}"
    );
    assert_eq!(held(&site, 1).number, before.number);
    // Points alone are computed anew; the words of one criterion are asked for again.
    let models = Models::default();
    site.gradebook.connect(models.serve().await);
    let mut form = fields(&site, path).await;
    set(&mut form, "c0-points", "8");
    set(&mut form, "c0-l0-points", "8");
    set(&mut form, "c3-title", "Call, and comment");
    assert_eq!(send(&site, path, &form, "keep").await.status(), 303);
    // Somebody else had the page open: what they typed stays, and nothing is kept over it unseen.
    set(&mut form, "title", "Another title");
    let late = send(&site, path, &form, "keep").await;
    assert_eq!(late.status(), 409);
    let page = late.text().await.unwrap();
    assert!(
        page.contains("Another title") && page.contains("was changed since"),
        "{page}"
    );
    let now = held(&site, 1);
    assert_eq!(
        (now.number, now.rubric.max_points.to_string().as_str()),
        (before.number + 1, "14")
    );
    assert_eq!(now.rubric.id, before.rubric.id);
    assert_eq!(now.rubric.templates, before.rubric.templates);
}

#[tokio::test]
async fn criteria_come_go_and_change_places() {
    let site = Site::new().await;
    let path = "/a/1/rubric";
    let mut form = fields(&site, path).await;
    for (name, value) in [
        ("c4-title", "Tests"),
        ("c4-description", "There are tests."),
        ("c4-points", "1"),
        ("c4-step", "0,5"),
        ("c4-place", "0"),
        ("c1-title", ""),
        ("c1-description", ""),
        ("c1-points", ""),
    ] {
        set(&mut form, name, value);
    }
    for (name, value) in &mut form {
        if name.starts_with("c1-l") {
            value.clear();
        }
    }
    assert_eq!(send(&site, path, &form, "keep").await.status(), 303);
    let ids: Vec<String> = held(&site, 1)
        .rubric
        .criteria
        .iter()
        .map(|c| c.id.clone())
        .collect();
    assert_eq!(ids, ["tests", "correct", "readable", "shown"]);
}

#[tokio::test]
async fn a_rubric_is_checked_and_downloaded() {
    let site = Site::new().await;
    let path = "/a/1/rubric";
    // While it is written, the answer is the part that says what is wrong.
    let part = site
        .form(path, &[("title", "x")])
        .header("sec-fetch-site", "same-origin")
        .header("x-parts", "1");
    let part = part.send().await.unwrap().text().await.unwrap();
    assert!(
        part.starts_with("<div id=\"checks\"") && part.contains("class=\"notice\""),
        "{part}"
    );
    // The file is the text that was kept.
    let file = site.get("/a/1/rubric/file").await;
    assert!(
        file.headers()["content-disposition"]
            .to_str()
            .unwrap()
            .contains("mean-above.yaml")
    );
    assert_eq!(file.text().await.unwrap(), held(&site, 1).rubric.source);
    for gone in ["/a/99/rubric", "/a/99/rubric/file", "/a/x/rubric"] {
        assert_eq!(site.get(gone).await.status(), 404, "{gone}");
    }
}

#[tokio::test]
async fn a_table_is_read_into_the_form_and_nothing_is_kept() {
    let site = Site::new().await;
    let before = held(&site, 1);
    let table = "| criterion | points |\n|---|---|\n| Result <b> | 4 |\n| Names | 2 |\n";
    let part: &[Part<'_>] = &[("file", Some("lab.md"), table.as_bytes())];
    let page = send_to(&site, "/a/1/rubric/read", part)
        .await
        .text()
        .await
        .unwrap();
    assert!(
        page.contains("6 points in 2 criteria") && page.contains("Result &#60;b&#62;"),
        "{page}"
    );
    assert!(
        page.contains("write mean_above(numbers, limit)"),
        "the task stays: {page}"
    );
    let odd: &[(&str, &[u8], &str)] = &[
        ("a.docx", b"PK\x03\x04\xff", "no text in UTF-8"),
        ("a.yaml", b"title: x", "a.yaml: rubric: file"),
        ("a.csv", b"Rubric Name,Criteria Name\n", "no criterion"),
    ];
    for (name, bytes, why) in odd {
        let refused = send_to(&site, "/a/1/rubric/read", &[("file", Some(name), bytes)]).await;
        assert_eq!(refused.status(), 422);
        let page = refused.text().await.unwrap();
        assert!(page.contains(why), "{why}: {page}");
    }
    assert_eq!(held(&site, 1).number, before.number);
}

#[tokio::test]
async fn an_assignment_begins_without_a_file_of_a_rubric() {
    let site = Site::new().await;
    let works = zipped(&[("ada.py", "x = 1"), ("ben.py", "x = 2")]);
    let course: Part<'_> = ("course", None, b"Begun");
    let files: Part<'_> = ("works", Some("w.zip"), &works);
    let (title, task): (Part<'_>, Part<'_>) =
        (("title", None, b"Lab 7"), ("task", None, b"Sum it."));
    for start in ["exercise", "notebook", "project", "reflection"] {
        let start: Part<'_> = ("start", None, start.as_bytes());
        let (_, next) = take(&site, &[course, files, start, title, task], &[]).await;
        assert!(
            next.ends_with("/rubric"),
            "a person looks at it first: {next}"
        );
    }
    let read = |reader: &Reader<'_>| Ok(reader.assignments()?[0].id);
    let id = site.gradebook.store().read_now(read).unwrap();
    assert_eq!(held(&site, id).rubric.title, "Lab 7");
    // The rubric of another assignment, with what belongs to it.
    let start: Part<'_> = ("start", None, b"1");
    let next: Part<'_> = ("course", None, b"Next year");
    take(&site, &[next, files, start], &[]).await;
    let copy = site.gradebook.store().read_now(read).unwrap();
    let (ours, theirs) = (held(&site, 1).rubric, held(&site, copy).rubric);
    assert_eq!((ours.id, ours.templates), (theirs.id, theirs.templates));
    // A table with a title and a task.
    let table: Part<'_> = (
        "rubric",
        Some("lab.md"),
        b"| criterion | points |\n|---|---|\n| Result | 4 |\n",
    );
    take(&site, &[course, files, table, title, task], &[]).await;
    for parts in [
        &[course, files, ("start", None, b"exercise")][..],
        &[course, files, ("start", None, b"none"), title, task],
        &[course, files, ("start", None, b"99"), title, task],
        &[course, files, table],
    ] {
        let refused = send_to(&site, "/new", parts).await;
        assert_eq!(refused.status(), 422, "{parts:?}");
    }
}

#[tokio::test]
async fn a_model_proposes_criteria_which_a_person_has_to_go_over() {
    let site = Site::new().await;
    let page = "/a/1/rubric";
    let before = held(&site, 1);
    let form = fields(&site, page).await;
    // An error keeps the form: there is no model yet.
    let mut own = form.clone();
    set(&mut own, "title", "A title of mine");
    let refused = send(&site, page, &own, "propose").await;
    assert_eq!(refused.status(), 503);
    assert!(refused.text().await.unwrap().contains("A title of mine"));
    let models = Models::default();
    site.gradebook.connect(models.serve().await);
    for points in ["", "0", "ten", "1001", "-3"] {
        let mut odd = own.clone();
        set(&mut odd, "proposal-points", points);
        assert_eq!(
            send(&site, page, &odd, "propose").await.status(),
            422,
            "{points}"
        );
    }
    models
        .are_ill
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let ill = send(&site, page, &own, "propose").await;
    assert_eq!(ill.status(), 502);
    assert!(ill.text().await.unwrap().contains("A title of mine"));
    models
        .are_ill
        .store(false, std::sync::atomic::Ordering::Relaxed);
    set(&mut own, "proposal-points", "12");
    let proposed = send(&site, page, &own, "propose").await;
    assert_eq!(proposed.status(), 200);
    let proposed = proposed.text().await.unwrap();
    assert!(proposed.contains("12 points in 3 criteria"), "{proposed}");
    // The task and the solution were sent, and no student's work.
    let asked = models.asked.lock().unwrap().last().unwrap().clone();
    assert!(
        asked.contains("A title of mine") && asked.contains("limit"),
        "{asked}"
    );
    // What keeps three levels apart, the rest by the weights 1, 2, 4 in halves; and levels in equal steps.
    for points in [
        "value=\"2\"",
        "value=\"3.5\"",
        "value=\"6.5\"",
        "value=\"1.5\"",
    ] {
        assert!(proposed.contains(points), "{points}: {proposed}");
    }
    assert_eq!(held(&site, 1).number, before.number);
    // As it is, nobody has gone over it.
    let mut form = fields_of(&proposed);
    let unread = send(&site, page, &form, "keep").await;
    assert_eq!(unread.status(), 422);
    let unread = unread.text().await.unwrap();
    assert!(unread.contains("nothing of them was changed"), "{unread}");
    form = fields_of(&unread);
    set(&mut form, "c0-description", "What the course has taught.");
    assert_eq!(send(&site, page, &form, "keep").await.status(), 303);
    let kept = held(&site, 1);
    assert_eq!(kept.number, before.number + 1);
    assert_eq!(
        (
            kept.rubric.criteria.len(),
            kept.rubric.max_points.to_string().as_str()
        ),
        (3, "12")
    );
}

/// A zip of Canvas with one submission in time and one late, by a rubric with rules; the pages of both, by name.
async fn with_rules(site: &Site) -> Vec<(String, i64)> {
    let works = zipped(&[
        ("lovelaceada_1_11_main.py", "x = 1\n"),
        ("boolegeorge_LATE_2_12_main.py", "x = 2\n"),
    ]);
    let source = include_str!("../../../../examples/intro-course/rubric.yaml");
    let rules = "late: {percent: 10, title: Zu spät}\npenalties:\n  - {id: name, title: No name, points: 0.5}\n";
    let rubric = format!("{source}\n{rules}");
    let parts: &[Part<'_>] = &[
        ("course", None, b"Rules"),
        ("works", Some("submissions.zip"), &works),
        ("rubric", Some("r.yaml"), rubric.as_bytes()),
    ];
    take(site, parts, &[]).await;
    let read = |reader: &Reader<'_>| {
        let assignment = reader.assignments()?[0].id;
        let works = reader.works(assignment)?.into_iter();
        Ok(works.map(|work| (work.name, work.id)).collect())
    };
    site.gradebook.store().read_now(read).unwrap()
}

#[tokio::test]
async fn rules_are_applied_in_code_and_a_person_has_the_last_word() {
    let site = Site::new().await;
    let works = with_rules(&site).await;
    let id = |name: &str| {
        works
            .iter()
            .find(|(known, _)| known.contains(name))
            .unwrap()
            .1
    };
    let (ada, george) = (id("lovelace"), id("boole"));
    let criteria = held(&site, 2).rubric.criteria;
    let act = async |work: i64, fields: &[(&str, &str)]| {
        let version = crate::people::seen(&site, work);
        let form = [&[("version", version.as_str())], fields].concat();
        let sent = site.post(&format!("/w/{work}"), &form).await;
        assert_eq!(sent.status(), 303, "{fields:?}");
    };
    for work in [ada, george] {
        for one in &criteria {
            let most = one.allowed().last().unwrap().to_string();
            act(
                work,
                &[("do", "points"), ("criterion", &one.id), ("points", &most)],
            )
            .await;
        }
    }
    let total = async |work: i64| {
        let page = site.get(&format!("/w/{work}")).await.text().await.unwrap();
        let total = page.split("<strong class=\"num\">").nth(1).unwrap();
        (total.split('<').next().unwrap().to_owned(), page.clone())
    };
    assert_eq!(total(ada).await.0, "10");
    let (late, page) = total(george).await;
    assert!(
        late == "9" && page.contains("as the learning system says"),
        "{page}"
    );
    act(george, &[("do", "penalty"), ("criterion", "name")]).await;
    assert_eq!(total(george).await.0, "8.5");
    act(george, &[("do", "not-late")]).await;
    let (passed, page) = total(george).await;
    assert!(
        passed == "9.5" && page.contains("you let it pass"),
        "{page}"
    );
    act(george, &[("do", "late")]).await;
    act(george, &[("do", "no-penalty"), ("criterion", "name")]).await;
    assert_eq!(total(george).await.0, "9");
    act(ada, &[("do", "late")]).await;
    assert_eq!(total(ada).await.0, "9");
    // The form has the rules, and another share is computed anew.
    let mut form = fields(&site, "/a/2/rubric").await;
    set(&mut form, "late", "50%");
    set(&mut form, "p0-points", "2,5");
    form.push(("c3-bonus".to_owned(), "on".to_owned()));
    assert_eq!(
        send(&site, "/a/2/rubric", &form, "keep").await.status(),
        303
    );
    let now = held(&site, 2).rubric;
    assert_eq!(now.max_points.to_string(), "8");
    assert_eq!(now.late.as_ref().unwrap().points.to_string(), "4");
    assert_eq!(now.late.unwrap().title, "Zu spät");
    assert_eq!(now.penalties[0].points.to_string(), "2.5");
    assert_eq!(total(george).await.0, "6");
}

#[tokio::test]
async fn a_penalty_that_no_rubric_has_is_refused() {
    let site = Site::new().await;
    let (_, work) = with_rules(&site).await.remove(0);
    for (act, id) in [("penalty", "other"), ("penalty", "")] {
        let version = crate::people::seen(&site, work);
        let form = [
            ("do", act),
            ("version", version.as_str()),
            ("criterion", id),
        ];
        assert_eq!(site.post(&format!("/w/{work}"), &form).await.status(), 422);
    }
    // The sample's rubric has no rule for late ones.
    let version = crate::people::seen(&site, 1);
    let form = [("do", "late"), ("version", version.as_str())];
    assert_eq!(site.post("/w/1", &form).await.status(), 422);
}
