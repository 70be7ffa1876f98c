//! Who grades: names in the history, an assistant by a link, shares of the work.

use tandem_gradebook::store::Reader;

use crate::site::Site;

async fn text(site: &Site, path: &str) -> String {
    site.get(path).await.text().await.unwrap()
}

/// Invites somebody; their own client.
async fn invited(site: &Site, name: &str) -> Site {
    let page = site.post("/grading/people", &[("name", name)]).await;
    let page = page.text().await.unwrap();
    let token = page.split("token=").nth(1).unwrap();
    let token = token.split('"').next().unwrap();
    site.with_token(token).await.unwrap()
}

fn seen(site: &Site, work: i64) -> String {
    let read = move |reader: &Reader<'_>| reader.work(work);
    let work = site.gradebook.store().read_now(read).unwrap();
    work.unwrap().seen.to_string()
}

#[tokio::test]
async fn an_assistant_reviews_under_a_name_and_does_nothing_else() {
    let site = Site::new().await;
    site.post("/grading/me", &[("name", "Ada")]).await;
    let assistant = invited(&site, "Ben").await;
    let version = seen(&site, 1);
    let form = [("do", "second-look"), ("version", version.as_str())];
    assert_eq!(assistant.post("/grading/w/1", &form).await.status(), 303);
    let version = seen(&site, 1);
    let form = [("do", "no-second-look"), ("version", version.as_str())];
    assert_eq!(site.post("/grading/w/1", &form).await.status(), 303);
    let record = text(&assistant, "/grading/w/1/record").await;
    let (ada, ben) = (record.find("Ada").unwrap(), record.find("Ben").unwrap());
    assert!(ada < ben, "the latest first");
    for (path, form) in [
        ("/grading/a/1/run", vec![("what", "all")]),
        ("/grading/r/1/stop", vec![]),
        ("/grading/r/1/continue", vec![]),
        ("/grading/try", vec![("text", "x")]),
        ("/grading/new", vec![]),
        ("/grading/me", vec![("name", "Ada")]),
        ("/grading/people", vec![("name", "Eve")]),
        ("/grading/people/1/dismiss", vec![]),
        ("/grading/a/1/shares", vec![("divided", "yes")]),
    ] {
        assert_eq!(assistant.post(path, &form).await.status(), 403, "{path}");
    }
    assert_eq!(assistant.get("/grading/a/1/run").await.status(), 403);
    let home = text(&assistant, "/grading").await;
    assert!(home.contains("You are Ben.") && !home.contains("Invite"));
    // The link is of no use after that, nor is the browser.
    let link = home.split("/grading/people/").nth(1);
    assert_eq!(link, None);
    site.post("/grading/people/2/dismiss", &[]).await;
    assert_eq!(assistant.get("/grading").await.status(), 401);
    assert!(text(&site, "/grading/w/1/record").await.contains("Ben"));
    // Nobody dismisses the teacher.
    site.post("/grading/people/1/dismiss", &[]).await;
    assert_eq!(site.get("/grading").await.status(), 200);
    for name in ["", " ", &"x".repeat(81), "a%0Ab"] {
        let answer = site.post("/grading/me", &[("name", name)]).await;
        assert_eq!(answer.status(), 422, "{name}");
    }
}

#[tokio::test]
async fn shares_are_disjoint_cover_all_and_come_first() {
    let site = Site::new().await;
    let assistant = invited(&site, "Ben").await;
    site.post("/grading/a/1/shares", &[("divided", "yes")])
        .await;
    let read = |reader: &Reader<'_>| reader.works(1);
    let works = site.gradebook.store().read_now(read).unwrap();
    let of = |person| works.iter().filter(|w| w.share == Some(person)).count();
    assert_eq!((works.len(), of(1), of(2)), (11, 6, 5));
    for (who, person, count) in [(&site, 1, 6), (&assistant, 2, 5)] {
        let first = who.get("/grading/a/1").await;
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
    site.post("/grading/a/1/shares", &[("divided", "no")]).await;
    let works = site.gradebook.store().read_now(read).unwrap();
    assert!(works.iter().all(|work| work.share.is_none()));
}
