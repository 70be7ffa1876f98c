//! Who gets in, what a form may do, and what stands on every page.

use tandem_grading::review::Decision;

use crate::site::Site;

/// Every page, with parameters. `routes_are_all_here` holds this list to the router's table.
const PAGES: &[(&str, &str)] = &[
    ("", ""),
    ("/a/{id}", "/a/1"),
    ("/a/{id}/end", "/a/1/end"),
    ("/w/{id}", "/w/1"),
    ("/w/{id}/prompt", "/w/1/prompt"),
    ("/w/{id}/record", "/w/1/record"),
    ("/try", "/try"),
    ("/new", "/new"),
    ("/a/{id}/run", "/a/1/run"),
    ("/a/{id}/export", "/a/1/export"),
    ("/a/{id}/agreement", "/a/1/agreement"),
    ("/a/{id}/delete", "/a/1/delete"),
    ("/a/{id}/rubric", "/a/1/rubric"),
    ("/w/{id}/delete", "/w/1/delete"),
    ("/r/{id}", "/r/1"),
];

#[test]
fn routes_are_all_here() {
    let table = include_str!("../../src/routes.rs");
    let named: Vec<&str> = table
        .split(".route(")
        .skip(1)
        .filter(|route| route.contains("get("))
        .filter_map(|route| route.split('"').nth(1))
        .filter(|path| path.contains('{') && !path.contains('*'))
        // Not pages: files, parts of pages, and what is there only while it is remembered.
        .filter(|path| {
            !["assets", "events", "picture", "file", "new", "{trial}"]
                .iter()
                .any(|part| path.contains(part))
        })
        .collect();
    assert!(named.len() >= 4, "{named:?}");
    for path in named {
        assert!(
            PAGES.iter().any(|(route, _)| *route == path),
            "{path} is not tried"
        );
    }
}

#[tokio::test]
async fn nobody_gets_in_without_the_token() {
    let site = Site::new().await;
    let others = ["/w/1/picture/0", "/w/1/file/0", "/new/0"];
    for path in PAGES.iter().map(|(_, path)| path).chain(&others) {
        for path in [
            (*path).to_owned(),
            format!("{path}?token=0"),
            format!("{path}?token="),
        ] {
            let answer = site.client.get(site.page(&path)).send().await;
            let answer = answer.unwrap();
            assert_eq!(answer.status(), 401, "{path}");
            assert!(answer.headers().get("set-cookie").is_none());
            assert!(
                !answer.text().await.unwrap().contains("Mean above"),
                "{path}"
            );
        }
    }
    let name = site
        .with_cookie(site.client.get(site.page("")))
        .build()
        .unwrap();
    let name = name.headers()["cookie"]
        .to_str()
        .unwrap()
        .split_once('=')
        .unwrap()
        .0
        .to_owned();
    let forged = format!("{name}=00000000000000000000000000000000");
    let answer = site
        .client
        .get(site.page(""))
        .header("cookie", forged)
        .send()
        .await;
    assert_eq!(answer.unwrap().status(), 401);
    // Where the pages are is told to nobody who was not let in.
    for path in [
        "/grading",
        "/grading/w/1",
        "/grading?token=0",
        "/",
        "/favicon.ico",
    ] {
        let answer = site
            .client
            .get(format!("{}{path}", site.base))
            .send()
            .await
            .unwrap();
        assert!(!answer.status().is_success(), "{path}");
        let told = format!(
            "{:?} {}",
            answer.headers().clone(),
            answer.text().await.unwrap()
        );
        assert!(!told.contains("/g-"), "{path}: {told}");
    }
}

/// The cookie that an address gives.
async fn cookie_of(site: &Site, address: &str) -> (String, String) {
    let entered = site.client.get(address).send().await.unwrap();
    let cookie = entered.headers()["set-cookie"].to_str().unwrap().to_owned();
    (cookie, entered.text().await.unwrap())
}

#[tokio::test]
async fn a_cookie_goes_to_the_pages_of_its_own_gradebook_alone() {
    let (one, other) = (Site::new().await, Site::new().await);
    let mut names = Vec::new();
    for site in [&one, &other] {
        let address = site.gradebook.address(&site.base).unwrap();
        let (cookie, page) = cookie_of(site, &address).await;
        let path = format!("Path={};", site.gradebook.home());
        for part in ["HttpOnly", "SameSite=Strict", &path] {
            assert!(cookie.contains(part), "{cookie}");
        }
        assert!(
            page.contains(&format!("url={}\"", site.gradebook.home())),
            "{page}"
        );
        assert!(site.gradebook.home().len() >= 20, "nobody guesses it");
        names.push(cookie.split_once('=').unwrap().0.to_owned());
        // A link of an earlier version still leads in, to the page that it names.
        let token = address.split_once("?token=").unwrap().1;
        for (old, now) in [("/grading", ""), ("/grading/a/1", "/a/1")] {
            let (cookie, page) =
                cookie_of(site, &format!("{}{old}?token={token}", site.base)).await;
            assert!(cookie.contains(&path), "{cookie}");
            let to = format!("url={}{now}\"", site.gradebook.home());
            assert!(page.contains(&to), "{page}");
        }
    }
    assert_ne!(names[0], names[1], "one browser can have both");
    // It stays where it is when the gradebook is opened again.
    assert_eq!(one.reopened().await.gradebook.home(), one.gradebook.home());
}

#[tokio::test]
async fn a_form_counts_only_from_a_page_of_this_server() {
    let site = Site::new().await;
    let form = [("do", "second-look"), ("version", "0.1.1")];
    let host = site.base.trim_start_matches("http://").to_owned();
    let refused: &[&[(&str, &str)]] = &[
        &[],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "none")],
        &[("origin", "http://127.0.0.1:1")],
        &[("origin", "null")],
    ];
    for headers in refused {
        let mut request = site.form("/w/1", &form);
        for (name, value) in *headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 403, "{headers:?}");
    }
    let own = format!("http://{host}");
    let request = site.form("/w/1", &form).header("origin", own);
    assert_eq!(request.send().await.unwrap().status(), 303);
}

#[tokio::test]
async fn every_page_has_the_same_guard_and_words_that_a_teacher_knows() {
    let site = Site::new().await;
    for (_, path) in PAGES {
        let mut answer = site.get(path).await;
        if answer.status() == 303 {
            let to = answer.headers()["location"].to_str().unwrap().to_owned();
            answer = site.get(&to).await;
        }
        assert_eq!(answer.status(), 200, "{path}");
        let headers = answer.headers().clone();
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert_eq!(
            policy,
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        );
        assert_eq!(headers["cache-control"], "no-store");
        // With "no-referrer" a browser would not say that a form comes from here.
        assert_eq!(headers["referrer-policy"], "same-origin");
        let page = answer.text().await.unwrap();
        for forbidden in [
            " style=", "<style", " onclick", " onload", "<script>", "http://", "https://",
        ] {
            assert!(!page.contains(forbidden), "{path}: {forbidden}");
        }
        // What was sent to a model is shown as it was.
        if path.ends_with("/prompt") {
            continue;
        }
        let words = page.to_lowercase();
        let words: Vec<&str> = words
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect();
        for forbidden in ["schema", "node", "hash", "finish_reason", "json"] {
            assert!(!words.contains(&forbidden), "{path}: {forbidden}");
        }
    }
}

#[tokio::test]
async fn forms_work_without_a_script() {
    let site = Site::new().await;
    let path = |path: &str| format!("{}{path}", site.gradebook.home());
    let form = |version| {
        [
            ("do", "points"),
            ("version", version),
            ("criterion", "correct"),
            ("points", "2"),
        ]
    };
    let done = site.post("/w/1", &form("0.1.1")).await;
    assert_eq!(
        (done.status().as_u16(), &done.headers()["location"]),
        (303, &path("/w/1").parse().unwrap())
    );
    // The same version again: somebody else's, by now.
    let late = site.post("/w/1", &form("0.1.1")).await;
    assert_eq!(late.status(), 409);
    let page = late.text().await.unwrap();
    assert!(page.contains("Yours was: 2 points") && page.contains("Take mine"));
    let bad = [
        ("points", "3"),
        ("points", "-1"),
        ("points", "x"),
        ("points", "NaN"),
        ("criterion", "other"),
        ("version", "x"),
        ("do", "nothing"),
    ];
    for (name, value) in bad {
        let mut form = form("1.1.1").to_vec();
        form.retain(|(field, _)| *field != name);
        form.push((name, value));
        let answer = site.post("/w/1", &form).await;
        assert_eq!(answer.status(), 422, "{name}={value}");
    }
    let approve = [
        ("do", "approve"),
        ("version", "1.1.1"),
        ("confirmed", "yes"),
    ];
    let done = site.post("/w/1", &approve).await;
    let next = done.headers()["location"].to_str().unwrap();
    assert!(
        done.status() == 303 && next != path("/w/1"),
        "the next open one: {next}"
    );
    let undone = site.post("/a/1/undo", &[]).await;
    assert_eq!(undone.headers()["location"], path("/w/1"));
    let read = |reader: &tandem_gradebook::store::Reader<'_>| reader.work(1);
    let work = site.gradebook.store().read_now(read).unwrap().unwrap();
    assert_eq!(
        (work.review.decision, work.seen.review),
        (Decision::Open, 3)
    );
    assert_eq!(work.review.points["correct"].to_string(), "2");
    let missing = site.get("/w/999").await;
    assert_eq!(missing.status(), 404);
}

#[tokio::test]
async fn names_can_be_hidden() {
    let site = Site::new().await;
    let page = site.get("/w/1").await.text().await.unwrap();
    assert!(page.contains("s01-complete"));
    let done = site.post("/names", &[]).await;
    let cookie = done.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap();
    let request = site.client.get(site.page("/w/1"));
    let page = site.with_cookie(request).header("cookie", cookie);
    let page = page.send().await.unwrap().text().await.unwrap();
    let desk = page.split("<nav class=\"queue\"").nth(1).unwrap();
    let queue = desk.split("</nav>").next().unwrap();
    assert!(!queue.contains("s0") && queue.contains("P-"), "{queue}");
}
