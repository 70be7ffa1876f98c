//! A person's own words: comments on lines, used again, and points beside the rubric; a student reads them.

use tandem_gradebook::store::Reader;

use crate::people::seen;
use crate::site::Site;

async fn act(site: &Site, work: i64, fields: &[(&str, &str)]) -> u16 {
    let version = seen(site, work);
    let form = [&[("version", version.as_str())], fields].concat();
    let sent = site.post(&format!("/w/{work}"), &form).await;
    sent.status().as_u16()
}

/// A comment on a line of the first file.
fn comment<'a>(line: &'a str, text: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("do", "comment"),
        ("index", "0"),
        ("line", line),
        ("text", text),
    ]
}

async fn text(site: &Site, path: &str) -> String {
    site.get(path).await.text().await.unwrap()
}

/// The feedback of all that is approved, as one text.
async fn feedback(site: &Site) -> String {
    let zip = site.post("/a/1/export", &[("to", "feedback")]).await;
    let bytes = zip.bytes().await.unwrap().to_vec();
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    let mut all = String::new();
    for i in 0..zip.len() {
        all += &std::io::read_to_string(zip.by_index(i).unwrap()).unwrap();
    }
    all
}

#[tokio::test]
async fn a_line_is_commented_on_and_the_student_reads_it() {
    let site = Site::new().await;
    assert_eq!(act(&site, 1, &comment("3", "Why 3?")).await, 303);
    assert_eq!(act(&site, 1, &comment("1", "A <good> start")).await, 303);
    // Lines that are not there, and comments without a text.
    for (line, said) in [
        ("0", "x"),
        ("9999", "x"),
        ("-1", "x"),
        ("", "x"),
        ("1e0", "x"),
        ("2", ""),
        ("2", "+"),
    ] {
        assert_eq!(
            act(&site, 1, &comment(line, said)).await,
            422,
            "{line} {said}"
        );
    }
    let odd = [
        ("do", "comment"),
        ("index", "7"),
        ("line", "1"),
        ("text", "x"),
    ];
    assert_eq!(act(&site, 1, &odd).await, 422);
    let page = text(&site, "/w/1").await;
    let (first, second) = (page.find("A &#60;good&#62; start"), page.find("Why 3?"));
    assert!(first.is_some() && first < second, "by their lines: {page}");
    assert!(page.contains("href=\"#f0l3\""), "{page}");
    // Another submission gets it again, and it is written anew there.
    let again = [
        ("do", "comment"),
        ("index", "0"),
        ("line", "2"),
        ("text", ""),
        ("again", "Why 3?"),
    ];
    assert!(
        text(&site, "/w/2")
            .await
            .contains("<option>Why 3?</option>")
    );
    assert_eq!(act(&site, 2, &again).await, 303);
    let other = [
        ("do", "recomment"),
        ("index", "0"),
        ("was", "Why 3?"),
        ("text", "Why 2?"),
    ];
    assert_eq!(act(&site, 2, &other).await, 303);
    assert_eq!(
        act(&site, 2, &other).await,
        422,
        "it says something else now"
    );
    let gone = [
        ("do", "recomment"),
        ("index", "0"),
        ("was", "Why 2?"),
        ("text", ""),
    ];
    assert_eq!(act(&site, 2, &gone).await, 303);
    let kept = site.gradebook.store().read_now(|reader: &Reader<'_>| {
        Ok([1, 2].map(|id| reader.work(id).unwrap().unwrap().review.comments.len()))
    });
    assert_eq!(kept.unwrap(), [2, 0]);
}

#[tokio::test]
async fn an_approved_work_has_its_comments_and_another_one_opens_it() {
    let site = Site::new().await;
    for (line, text) in [("3", "Why 3?"), ("1", "A <good> start")] {
        assert_eq!(act(&site, 1, &comment(line, text)).await, 303);
    }
    // Approved, and opened again by another comment.
    let approve = [("do", "approve"), ("confirmed", "y")];
    assert_eq!(act(&site, 1, &approve).await, 303);
    let read = feedback(&site).await;
    for part in [
        "## On single lines",
        ", line 1: A",
        ", line 3: Why 3?",
        "<h2>On single lines</h2>",
    ] {
        assert!(read.contains(part), "{part}: {read}");
    }
    assert!(!read.contains("<good>"), "{read}");
    assert_eq!(act(&site, 1, &comment("2", "And this")).await, 303);
    assert!(text(&site, "/w/1").await.contains("And this"));
    assert!(
        text(&site, "/a/1/export")
            .await
            .contains("Nothing is approved yet")
    );
}

#[tokio::test]
async fn points_beside_the_rubric_need_a_reason() {
    let site = Site::new().await;
    let total = async || {
        let page = text(&site, "/w/1").await;
        let total = page.split("<strong class=\"num\">").nth(1).unwrap();
        total.split('<').next().unwrap().to_owned()
    };
    let before: f64 = total().await.parse().unwrap();
    let adjust = |points, why| [("do", "adjust"), ("points", points), ("text", why)];
    for (points, why) in [
        ("%2B1", ""),
        ("x", "why"),
        ("1.0001", "why"),
        ("--1", "why"),
    ] {
        let status = act(&site, 1, &adjust(points, why)).await;
        assert!(status == 422 || points == "--1", "{points} {why}: {status}");
    }
    assert_eq!(
        act(&site, 1, &adjust("%2B1,5", "A bonus in class")).await,
        303
    );
    assert_eq!(total().await, (before + 1.5).to_string());
    assert_eq!(act(&site, 1, &adjust("-0.5", "Copied a line")).await, 303);
    assert_eq!(total().await, (before - 0.5).to_string());
    assert_eq!(
        act(&site, 1, &[("do", "approve"), ("confirmed", "y")]).await,
        303
    );
    let read = feedback(&site).await;
    assert!(
        read.contains("- Copied a line: −0.5") && !read.contains("A bonus"),
        "{read}"
    );
    assert_eq!(act(&site, 1, &adjust("", "")).await, 303);
    assert_eq!(total().await, before.to_string());
    assert!(
        text(&site, "/w/1/record")
            .await
            .contains("beside the rubric: −0.5, Copied a line")
    );
}
