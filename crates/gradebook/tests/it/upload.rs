//! An assignment that a browser sends: a zip, a rubric, a solution.

use std::io::Write;

use tandem_gradebook::store::Reader;

use crate::site::Site;

const RUBRIC: &str = include_str!("../../../../examples/intro-course/rubric.yaml");

/// A part of a form: its name, a file's name, and what is in it.
pub type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

async fn send(site: &Site, parts: &[Part<'_>]) -> reqwest::Response {
    send_to(site, "/new", parts).await
}

pub async fn send_to(site: &Site, path: &str, parts: &[Part<'_>]) -> reqwest::Response {
    let mut body = Vec::new();
    for (name, file, text) in parts {
        let file = file
            .map(|file| format!("; filename=\"{file}\""))
            .unwrap_or_default();
        let head =
            format!("--cut\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend(head.as_bytes());
        body.extend(*text);
        body.extend(b"\r\n");
    }
    body.extend(b"--cut--\r\n");
    let request = site
        .client
        .post(site.page(path))
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "multipart/form-data; boundary=cut")
        .body(body);
    site.with_cookie(request).send().await.unwrap()
}

fn zipped(files: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in files {
        zip.start_file(*name, zip::write::SimpleFileOptions::default())
            .unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[tokio::test]
async fn a_zip_and_a_rubric_become_an_assignment() {
    let site = Site::new().await;
    let works = zipped(&[
        ("ada.py", "x = 1"),
        ("ben/a.py", "x = 2"),
        ("eve.pdf", "no text"),
        ("start.py", "# here\n"),
    ]);
    let parts: &[Part<'_>] = &[
        ("course", None, b"Uploaded"),
        ("works", Some("C:\\\\works.zip"), &works),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
        ("template", Some("start.py"), b"# here\n"),
        (
            "solution",
            Some("best.py"),
            b"def mean_above(): return 'the best'\n",
        ),
        ("solution", Some(""), b""),
    ];
    let taken = send(&site, parts).await;
    assert_eq!(taken.status(), 303);
    let page = taken.headers()["location"].to_str().unwrap().to_owned();
    let page = site.get(&page).await.text().await.unwrap();
    assert!(
        page.contains("2 that no model is asked about") && page.contains("equal to the template"),
        "{page}"
    );
    let read = |reader: &Reader<'_>| {
        let assignment = reader.assignments()?[0].clone();
        Ok((
            reader.works(assignment.id)?,
            reader.rubric(assignment.id)?.unwrap(),
            assignment,
        ))
    };
    let (works, held, assignment) = site.gradebook.store().read_now(read).unwrap();
    assert_eq!((works.len(), assignment.course.as_str()), (4, "Uploaded"));
    assert_eq!(held.rubric.solutions[0].files()[0].name, "best.py");
    let work = works.iter().find(|w| w.name == "ada").unwrap();
    let page = site
        .get(&format!("/w/{}", work.id))
        .await
        .text()
        .await
        .unwrap();
    assert!(page.contains("A solution, for you alone: best.py"));
    // The same once more changes nothing.
    assert_eq!(send(&site, parts).await.status(), 303);
    let (again, same, _) = site.gradebook.store().read_now(read).unwrap();
    assert_eq!((again.len(), same.number), (4, 1));
}

#[tokio::test]
async fn what_cannot_be_taken_is_said_and_nothing_is_kept() {
    let site = Site::new().await;
    let works = zipped(&[("ada.py", "x = 1")]);
    let rubric = RUBRIC.as_bytes();
    let course: Part<'_> = ("course", None, b"Bad");
    let good_works: Part<'_> = ("works", Some("w.zip"), &works);
    let table: &[(&[Part<'_>], &str)] = &[
        (&[good_works, ("rubric", Some("r"), rubric)], "needs a name"),
        (&[course, good_works], "There is no rubric"),
        (&[course, ("rubric", Some("r"), rubric)], "none found"),
        (
            &[
                course,
                ("works", Some("a/m.py"), b"1"),
                ("works", Some("b/m.py"), b"2"),
            ],
            "Two files are called “m.py”",
        ),
        (
            &[course, good_works, ("rubric", Some("r"), b"id: x")],
            "title",
        ),
        (
            &[
                course,
                ("works", Some("w.zip"), b"no zip"),
                ("rubric", Some("r"), rubric),
            ],
            "w.zip",
        ),
    ];
    for (parts, expected) in table {
        let answer = send(&site, parts).await;
        assert_eq!(answer.status(), 422, "{expected}");
        let page = answer.text().await.unwrap();
        assert!(
            page.contains(expected) && !page.contains("/tmp"),
            "{expected}: {page}"
        );
    }
    let read = |reader: &Reader<'_>| Ok(reader.assignments()?.len());
    assert_eq!(site.gradebook.store().read_now(read).unwrap(), 1);
}

#[tokio::test]
async fn a_rubric_from_the_page_opens_nothing_but_what_came_with_it() {
    let site = Site::new().await;
    let secret = tempfile::tempdir().unwrap();
    std::fs::write(secret.path().join("secret.py"), "the_secret = 1").unwrap();
    let inside = secret.path().display().to_string();
    let works = zipped(&[("ada.py", "x = 1")]);
    let named = |field: &str, name: &str| format!("{RUBRIC}\n{field}: [\"{name}\"]\n");
    let up = "../".repeat(12);
    for (name, expected) in [
        (format!("{inside}/secret.py"), "leads out"),
        (inside.clone(), "leads out"),
        (format!("{up}{}", &inside[1..]), "leads out"),
        ("a/../../secret.py".to_owned(), "leads out"),
        (r"..\\secret.py".to_owned(), "leads out"),
        (r"C:\\secret.py".to_owned(), "leads out"),
        ("secret.py".to_owned(), "was not sent"),
        (".".to_owned(), "was not sent"),
        (String::new(), "was not sent"),
    ] {
        for field in ["template", "solution"] {
            let rubric = named(field, &name);
            let parts: &[Part<'_>] = &[
                ("course", None, b"Paths"),
                ("works", Some("w.zip"), &works),
                ("rubric", Some("r.yaml"), rubric.as_bytes()),
                // What came for the one is not what the other names.
                ("template", Some("start.py"), b"# here\n"),
            ];
            let answer = send(&site, parts).await;
            assert_eq!(answer.status(), 422, "{field} {name}");
            let page = answer.text().await.unwrap();
            assert!(
                page.contains(expected) && page.contains(field),
                "{field} {name}: {page}"
            );
        }
    }
    // What is named and came is taken, once; it may be an archive, with files of equal names in its folders.
    let project = zipped(&[("a/x.py", "# here"), ("b/x.py", "# there")]);
    let rubric = named("template", "start.py");
    let parts: &[Part<'_>] = &[
        ("course", None, b"Paths"),
        ("works", Some("w.zip"), &works),
        ("rubric", Some("r.yaml"), rubric.as_bytes()),
        ("template", Some("start.py"), b"# here\n"),
        ("solution", Some("best.zip"), &project),
    ];
    assert_eq!(send(&site, parts).await.status(), 303);
    let read = |reader: &Reader<'_>| Ok(reader.rubric(reader.assignments()?[0].id)?.unwrap());
    let held = site.gradebook.store().read_now(read).unwrap();
    assert_eq!(held.rubric.templates.len(), 1);
    let names: Vec<&str> = held.rubric.solutions[0]
        .files()
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    assert_eq!(names, ["a/x.py", "b/x.py"]);
}

#[cfg(unix)]
#[tokio::test]
async fn what_is_uploaded_lies_where_nobody_else_looks_and_is_swept() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new().await;
    let works = zipped(&[("ada.py", "x = 1")]);
    let parts: &[Part<'_>] = &[
        ("course", None, b"Swept"),
        ("works", Some("w.zip"), &works),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
    ];
    assert_eq!(send(&site, parts).await.status(), 303);
    let folder = site.folder().join("g.sqlite.uploads");
    assert_eq!(
        folder.metadata().unwrap().permissions().mode() & 0o777,
        0o700
    );
    let left = || -> Vec<String> {
        let entries = std::fs::read_dir(&folder).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "lock").collect()
    };
    assert_eq!(left(), Vec::<String>::new(), "gone with the upload");
    // What a killed process left is gone at the next start.
    std::fs::create_dir(folder.join("x")).unwrap();
    std::fs::write(folder.join("x/ada.py"), "x = 1").unwrap();
    drop(site.reopened().await);
    assert_eq!(left(), Vec::<String>::new());
}
