//! Who grades: names in the history, an assistant by a link, shares of the work.

use tandem_gradebook::store::Reader;

use crate::site::Site;

async fn text(site: &Site, path: &str) -> String {
    site.get(path).await.text().await.unwrap()
}

/// Invites somebody; their own client.
pub async fn invited(site: &Site, name: &str) -> Site {
    let form = [("name", name), ("course-1", "on")];
    let page = site.post("/people", &form).await;
    let page = page.text().await.unwrap();
    let token = page.split("token=").nth(1).unwrap();
    let token = token.split('"').next().unwrap();
    site.with_token(token).await.unwrap()
}

pub fn seen(site: &Site, work: i64) -> String {
    let read = move |reader: &Reader<'_>| reader.work(work);
    let work = site.gradebook.store().read_now(read).unwrap();
    work.unwrap().seen.to_string()
}

#[tokio::test]
async fn an_assistant_reviews_under_a_name_and_does_nothing_else() {
    let site = Site::new().await;
    site.post("/me", &[("name", "Ada")]).await;
    let assistant = invited(&site, "Ben").await;
    let version = seen(&site, 1);
    let form = [("do", "second-look"), ("version", version.as_str())];
    assert_eq!(assistant.post("/w/1", &form).await.status(), 303);
    let version = seen(&site, 1);
    let form = [("do", "no-second-look"), ("version", version.as_str())];
    assert_eq!(site.post("/w/1", &form).await.status(), 303);
    let record = text(&assistant, "/w/1/record").await;
    let (ada, ben) = (record.find("Ada").unwrap(), record.find("Ben").unwrap());
    assert!(ada < ben, "the latest first");
    for (path, form) in [
        ("/a/1/run", vec![("what", "all")]),
        ("/r/1/stop", vec![]),
        ("/r/1/stop-now", vec![]),
        ("/r/1/continue", vec![]),
        ("/try", vec![("text", "x")]),
        ("/new", vec![]),
        ("/me", vec![("name", "Ada")]),
        ("/people", vec![("name", "Eve")]),
        ("/people/2/courses", vec![("course-1", "on")]),
        ("/a/1/delete", vec![("what", "course")]),
        ("/w/1/delete", vec![("what", "submission")]),
        ("/people/1/forget", vec![]),
        ("/a/1/rubric", vec![("do", "keep")]),
        ("/a/1/rubric/read", vec![]),
        ("/a/1/anchors", vec![("count", "3")]),
        ("/link", vec![]),
        ("/browsers/1/out", vec![]),
        ("/a/1/shares", vec![("divided", "yes")]),
    ] {
        assert_eq!(assistant.post(path, &form).await.status(), 403, "{path}");
    }
    for page in ["/a/1/run", "/a/1/agreement"] {
        assert_eq!(assistant.get(page).await.status(), 403);
    }
    // A run is shown to both, and only the teacher has its buttons.
    let unfinished = |writer: &tandem_gradebook::store::Writer<'_>| {
        let run = writer.start_run(1, &[1], "{}")?;
        Ok(Ok::<_, tandem_gradebook::store::StoreError>(run))
    };
    let run = site.gradebook.store().write_now(unfinished).unwrap();
    let page = format!("/r/{run}");
    let (ours, theirs) = (text(&site, &page).await, text(&assistant, &page).await);
    assert!(
        ours.contains("go-on") && theirs.contains("run 2") && !theirs.contains("go-on"),
        "{theirs}"
    );
    let home = text(&assistant, "").await;
    assert!(home.contains("You are Ben.") && !home.contains("Invite"));
    // The link is of no use after that, nor is the browser.
    let link = home.split("/people/").nth(1);
    assert_eq!(link, None);
    site.post("/people/2/dismiss", &[]).await;
    assert_eq!(assistant.get("").await.status(), 401);
    assert!(text(&site, "/w/1/record").await.contains("Ben"));
    // The name goes when somebody says so.
    assert!(text(&site, "").await.contains("/people/2/forget"));
    site.post("/people/2/forget", &[]).await;
    let record = text(&site, "/w/1/record").await;
    assert!(
        !record.contains("Ben") && record.contains("somebody who graded"),
        "{record}"
    );
    assert!(!text(&site, "").await.contains("Ben"));
    site.post("/people/1/forget", &[]).await;
    // Nobody dismisses the teacher.
    site.post("/people/1/dismiss", &[]).await;
    assert_eq!(site.get("").await.status(), 200);
    for name in ["", " ", &"x".repeat(81), "a%0Ab"] {
        let answer = site.post("/me", &[("name", name)]).await;
        assert_eq!(answer.status(), 422, "{name}");
    }
}

#[tokio::test]
async fn shares_are_disjoint_cover_all_and_come_first() {
    let site = Site::new().await;
    let assistant = invited(&site, "Ben").await;
    site.post("/a/1/shares", &[("divided", "yes")]).await;
    let read = |reader: &Reader<'_>| reader.works(1);
    let works = site.gradebook.store().read_now(read).unwrap();
    let of = |person| works.iter().filter(|w| w.share == Some(person)).count();
    assert_eq!((works.len(), of(1), of(2)), (11, 6, 5));
    for (who, person, count) in [(&site, 1, 6), (&assistant, 2, 5)] {
        let first = who.get("/a/1").await;
        let to = first.headers()["location"].to_str().unwrap().to_owned();
        assert!(to.ends_with("?list=mine"), "{to}");
        let page = text(who, &to).await;
        assert!(page.contains(&format!("Mine {count}")));
        for work in &works {
            let is_listed = page.contains(&format!("data-work=\"{}\"><span>", work.id))
                || page.contains(&format!("data-work=\"{}\" aria-current", work.id));
            assert_eq!(is_listed, work.share == Some(person), "{}", work.name);
        }
    }
    site.post("/a/1/shares", &[("divided", "no")]).await;
    let works = site.gradebook.store().read_now(read).unwrap();
    assert!(works.iter().all(|work| work.share.is_none()));
}

#[tokio::test]
async fn the_teachers_link_is_made_anew_and_browsers_are_let_out() {
    let site = Site::new().await;
    let old = site.gradebook.address(&site.base).unwrap();
    let old = old.split_once("?token=").unwrap().1;
    let second = site.with_token(old).await.unwrap();
    let page = site.post("/link", &[]).await.text().await.unwrap();
    let address = site.gradebook.address(&site.base).unwrap();
    assert!(page.contains(&address), "{page}");
    assert!(site.with_token(old).await.is_none(), "the old link is dead");
    let new = address.split_once("?token=").unwrap().1;
    assert!(site.with_token(new).await.is_some());
    // Who opens the link once more is the same browser.
    let known = site.get(&format!("?token={new}")).await;
    assert_eq!(known.status(), 200);
    assert!(!known.headers().contains_key("set-cookie"));
    // Browsers that came by the old one stay until they are let out, one by one.
    assert_eq!(second.get("").await.status(), 200);
    let home = text(&second, "").await;
    let rows: Vec<&str> = home
        .split("<tr>")
        .filter(|row| row.contains("/browsers/"))
        .collect();
    assert_eq!(rows.len(), 3, "{home}");
    let own: Vec<&&str> = rows.iter().filter(|row| row.contains("this one")).collect();
    assert_eq!(own.len(), 1);
    let path = own[0]
        .split("action=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    assert_eq!(site.post(path, &[]).await.status(), 303);
    assert_eq!(second.get("").await.status(), 401);
    assert_eq!(site.get("").await.status(), 200);
}

/// A course beside the sample's, with a run: a work and the run.
fn second_course(site: &Site) -> (i64, i64) {
    let mut rubric = tandem_grading::Rubric::parse(include_str!(
        "../../../../examples/intro-course/rubric.yaml"
    ))
    .unwrap();
    "Other".clone_into(&mut rubric.title);
    let works = [tandem_grading::Submission::of_text("zoe.py", "x = 1\n")];
    site.gradebook
        .hand_in("Secret course", &rubric, &works, None)
        .unwrap();
    let run = |writer: &tandem_gradebook::store::Writer<'_>| {
        let works = writer.works(2)?;
        let run = writer.start_run(2, &[works[0].id], "{}")?;
        Ok(Ok::<_, tandem_gradebook::store::StoreError>((
            works[0].id,
            run,
        )))
    };
    site.gradebook.store().write_now(run).unwrap()
}

/// An assistant sees the courses that they were invited to; of others there is no page, no number and no name.
#[tokio::test]
async fn an_assistant_sees_no_other_course() {
    let site = Site::new().await;
    let (work, run) = second_course(&site);
    // Nobody is invited to nothing.
    let nowhere = site.post("/people", &[("name", "Eve")]).await;
    assert_eq!(nowhere.status(), 422);
    let missing = [("name", "Eve"), ("course-77", "on")];
    assert!(!site.post("/people", &missing).await.status().is_success());
    let ben = invited(&site, "Ben").await;
    let home = text(&ben, "").await;
    assert!(
        home.contains("Sample course") && !home.contains("Secret course"),
        "{home}"
    );
    let paths = [
        "/a/2".to_owned(),
        "/a/2/end".to_owned(),
        format!("/w/{work}"),
        format!("/w/{work}/record"),
        format!("/w/{work}/prompt"),
        format!("/w/{work}/file/0"),
        format!("/w/{work}/picture/0"),
        format!("/r/{run}"),
        format!("/r/{run}/events"),
        "/w/%31".to_owned(),
        format!("/w/0{work}"),
        format!("/w/+{work}"),
        "/w/99".to_owned(),
        "/w".to_owned(),
    ];
    for path in &paths {
        let page = ben.get(path).await;
        assert_eq!(page.status(), 404, "{path}");
        assert!(!page.text().await.unwrap().contains("zoe"), "{path}");
    }
    let form = [("do", "second-look"), ("version", "0")];
    for path in [
        format!("/w/{work}"),
        format!("/w/{work}/blind"),
        format!("/w/{work}/rewrite"),
        format!("/w/{work}/bare"),
        "/a/2/undo".to_owned(),
    ] {
        assert_eq!(ben.post(&path, &form).await.status(), 404, "{path}");
    }
    // Nor is a share of it theirs.
    site.post("/a/2/shares", &[("divided", "yes")]).await;
    let share = |reader: &Reader<'_>| Ok(reader.works(2)?[0].share);
    assert_eq!(site.gradebook.store().read_now(share).unwrap(), Some(1));
    // Until the teacher lets them see it, and no longer.
    let both = [("course-1", "on"), ("course-2", "on")];
    assert_eq!(site.post("/people/2/courses", &both).await.status(), 303);
    assert!(text(&ben, "").await.contains("Secret course"));
    assert_eq!(ben.get(&format!("/w/{work}")).await.status(), 200);
    site.post("/a/2/shares", &[("divided", "yes")]).await;
    site.post("/a/1/shares", &[("divided", "yes")]).await;
    site.post("/people/2/courses", &[("course-2", "on")]).await;
    assert_eq!(ben.get("/w/1").await.status(), 404);
    let shares = |reader: &Reader<'_>| {
        let works = reader.works(1)?.into_iter().chain(reader.works(2)?);
        Ok(works.filter(|work| work.share == Some(2)).count())
    };
    assert!(site.gradebook.store().read_now(shares).unwrap() <= 1);
    assert_eq!(ben.get(&format!("/w/{work}")).await.status(), 200);
    // A course that is deleted leaves nothing behind.
    let gone = tandem_gradebook::Scope::Assignment(2);
    site.gradebook.erase(gone).unwrap();
    assert!(!text(&ben, "").await.contains("Secret course"));
    let left = |reader: &Reader<'_>| reader.courses_of(2);
    assert_eq!(site.gradebook.store().read_now(left).unwrap(), [0; 0]);
}
