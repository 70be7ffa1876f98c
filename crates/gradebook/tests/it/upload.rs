//! An assignment that a browser sends: a zip, a rubric, a solution.

use std::io::Write;

use tandem_gradebook::store::{Reader, Work};

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

/// Sends an upload, looks at what was found, and takes it in but for these; the page, and where that leads.
pub async fn take(site: &Site, parts: &[Part<'_>], left_out: &[(&str, &str)]) -> (String, String) {
    let place =
        |answer: &reqwest::Response| answer.headers()["location"].to_str().unwrap().to_owned();
    let sent = send(site, parts).await;
    assert_eq!(sent.status(), 303, "{}", sent.text().await.unwrap());
    let found = place(&sent);
    let page = site.get(&found).await.text().await.unwrap();
    let taken = site.post(&found, left_out).await;
    assert_eq!(taken.status(), 303);
    let runs = place(&taken);
    // What was taken in is not taken in twice: a second click leads to the same page.
    let again = site.post(&found, left_out).await;
    assert_eq!(
        (again.status().as_u16(), place(&again)),
        (303, runs.clone())
    );
    assert_eq!(place(&site.get(&found).await), runs);
    (page, runs)
}

pub fn zipped(files: &[(&str, &str)]) -> Vec<u8> {
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
    let (shown, taken) = take(&site, parts, &[]).await;
    assert!(
        shown.contains("4 students, 1 to grade by hand, 1 with nothing written: is this right?"),
        "{shown}"
    );
    let page = site.get(&taken).await.text().await.unwrap();
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
    let (shown, _) = take(&site, parts, &[]).await;
    assert!(shown.contains("is there already"), "{shown}");
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
    take(&site, parts, &[]).await;
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
    take(&site, parts, &[]).await;
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

/// What was handed in to the latest assignment.
fn works(site: &Site) -> Vec<Work> {
    let read = |reader: &Reader<'_>| reader.works(reader.assignments()?[0].id);
    site.gradebook.store().read_now(read).unwrap()
}

/// Where something stands in a page.
fn place(page: &str, text: &str) -> usize {
    page.find(text)
        .unwrap_or_else(|| panic!("no {text} in {page}"))
}

#[tokio::test]
async fn a_course_comes_with_its_gradebook() {
    let site = Site::new().await;
    let zip = zipped(&[
        ("doejane_222_5001_a.py", "x = 1"),
        ("doejane_222_5002_b.py", "x = 2"),
        ("roejim_LATE_223_5003_a.py", "x = 3"),
        ("ghost_999_5004_a.py", "x = 4"),
        ("leekim_224_5005_report.pdf", "%PDF-1.7 no text"),
        ("README.md", "# Lab"),
    ]);
    let sheet = "Student,ID,SIS Login ID,Section,Sum (1)\n    Points Possible,,,,10\n\
        \"Doe, Jane\",222,jane,S,\n\"Roe, Jim\",223,jim,S,\n\"Lee, Kim\",224,kim,S,\n\"Zorn, Zed\",225,zed,S,\n";
    let parts: &[Part<'_>] = &[
        ("course", None, b"Canvas"),
        ("works", Some("submissions.zip"), &zip),
        ("sheet", Some("grades.csv"), sheet.as_bytes()),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
    ];
    let sent = send(&site, parts).await;
    let found = sent.headers()["location"].to_str().unwrap().to_owned();
    let page = site.get(&found).await.text().await.unwrap();
    for text in [
        "5 students, 1 with several files, 1 late, 1 to grade by hand, 1 who handed nothing in: is this right?",
        "The names come from Canvas.",
        "Zorn, Zed",
        "the file has no such student",
        "to be graded by hand",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    // Who wants a look stands first: an unknown student, one to grade by hand, and what is no student's.
    let others = place(&page, "All others");
    for name in ["ghost", "Lee, Kim", "README"] {
        assert!(place(&page, name) < others, "{name}");
    }
    assert!(place(&page, "Doe, Jane") > others);
    assert!(
        works(&site).iter().all(|work| work.name != "Doe, Jane"),
        "nothing is kept yet"
    );
    let readme = page[..place(&page, "README is no student")]
        .rfind("leave-")
        .unwrap();
    let field: String = page[readme..].chars().take_while(|c| *c != '"').collect();
    let taken = site.post(&found, &[(&field, "on")]).await;
    assert_eq!(taken.status(), 303);
    let kept = works(&site);
    let names: Vec<&str> = kept.iter().map(|work| work.name.as_str()).collect();
    assert_eq!(names, ["Doe, Jane", "Roe, Jim", "Lee, Kim", "ghost"]);
    // The gradebook is there for the way out.
    let read = |reader: &Reader<'_>| reader.sheet(reader.assignments()?[0].id);
    let kept_sheet = site.gradebook.store().read_now(read).unwrap().unwrap();
    assert_eq!(kept_sheet.bytes, sheet.as_bytes());
    // Without the gradebook the same course is the same, and nobody is called otherwise.
    let without: Vec<Part<'_>> = parts
        .iter()
        .copied()
        .filter(|part| part.0 != "sheet")
        .collect();
    let (page, _) = take(&site, &without, &[(&field, "on")]).await;
    assert_eq!(page.matches("is there already").count(), 4, "{page}");
    let again: Vec<(i64, String)> = works(&site).into_iter().map(|w| (w.id, w.name)).collect();
    let before: Vec<(i64, String)> = kept.into_iter().map(|w| (w.id, w.name)).collect();
    assert_eq!(again, before);
}

#[tokio::test]
async fn files_are_kept_as_they_came_and_opened_by_another_program() {
    let site = Site::new().await;
    let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(
        Vec::new(),
        flate2::Compression::fast(),
    ));
    let pdf: &[u8] = b"%PDF-1.7\n\xff\x00<script>alert(1)</script>";
    for (name, bytes) in [
        ("course/anna/report.pdf", pdf),
        ("course/anna/main.py", b"x = 1\n"),
        ("course/ben/main.py", b"x = 2\n"),
        ("course/ben/node_modules/x/index.js", b"1"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, bytes).unwrap();
    }
    let tar = tar.into_inner().unwrap().finish().unwrap();
    let parts: &[Part<'_>] = &[
        ("course", None, b"Tar"),
        ("works", Some("course.tar.gz"), &tar),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
    ];
    take(&site, parts, &[]).await;
    let kept = works(&site);
    assert_eq!(
        kept.iter().map(|w| w.name.as_str()).collect::<Vec<_>>(),
        ["anna", "ben"]
    );
    let page = site
        .get(&format!("/w/{}", kept[0].id))
        .await
        .text()
        .await
        .unwrap();
    let link = format!("/w/{}/file/1", kept[0].id);
    assert!(
        page.contains(&link) && page.contains("report.pdf"),
        "{page}"
    );
    let file = site.get(&link).await;
    let header = |name: &str| file.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "application/octet-stream");
    assert!(header("content-disposition").starts_with("attachment; filename=\"report.pdf\""));
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(file.bytes().await.unwrap(), pdf);
    let read = |reader: &Reader<'_>| reader.originals(kept[1].id);
    let of_ben = site.gradebook.store().read_now(read).unwrap();
    assert_eq!(of_ben, [("main.py".to_owned(), Some(6))]);
    for gone in ["/w/1/file/99", "/w/999/file/0", "/w/1/file/x", "/new/0123"] {
        assert!(site.get(gone).await.status().is_client_error(), "{gone}");
    }
}

#[tokio::test]
async fn a_folder_of_the_browser_is_a_course() {
    let site = Site::new().await;
    let parts: &[Part<'_>] = &[
        ("course", None, b"Folder"),
        ("folder", Some("lab/anna/a.py"), b"x = 1"),
        ("folder", Some("lab/anna/b/a.py"), b"x = 2"),
        ("folder", Some("lab/ben/a.py"), b"x = 3"),
        ("folder", Some("lab/Eve: Bell/part 1:2.py"), b"x = 5"),
        ("folder", Some("lab/.git/config"), b"[core]"),
        ("folder", Some("lab/../../evil.py"), b"x = 4"),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
    ];
    let (page, _) = take(&site, parts, &[]).await;
    assert!(page.contains("3 students, 1 with several files"), "{page}");
    let kept = works(&site);
    assert_eq!(
        kept.iter().map(|w| w.name.as_str()).collect::<Vec<_>>(),
        ["Eve: Bell", "anna", "ben"]
    );
}

#[tokio::test]
async fn an_upload_without_a_student_makes_no_assignment() {
    let site = Site::new().await;
    // Two of one name are told apart by their numbers.
    let works = zipped(&[
        ("lovelaceada_1_11_main.py", "x = 1\n"),
        ("lovelaceada_2_12_main.py", "x = 2\n"),
    ]);
    let sheet = "Student,ID,SIS Login ID,Section,Sum (1)\n\"Lovelace, Ada\",1,a,A,\n\"Lovelace, Ada\",2,b,A,\n";
    let parts: &[Part<'_>] = &[
        ("course", None, b"Nobody"),
        ("sheet", Some("grades.csv"), sheet.as_bytes()),
        ("works", Some("submissions.zip"), &works),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
    ];
    let sent = send(&site, parts).await;
    let found = sent.headers()["location"].to_str().unwrap().to_owned();
    let page = site.get(&found).await.text().await.unwrap();
    for number in ["Canvas: 1<", "Canvas: 2<"] {
        assert!(page.contains(number), "{number}: {page}");
    }
    let count = || {
        site.gradebook
            .store()
            .read_now(|r| Ok(r.assignments()?.len()))
            .unwrap()
    };
    let before = count();
    let none = site
        .post(&found, &[("leave-0", "on"), ("leave-1", "on")])
        .await;
    assert_eq!((none.status().as_u16(), count()), (422, before));
    // The upload is still there.
    assert_eq!(site.post(&found, &[("leave-0", "on")]).await.status(), 303);
    assert_eq!(count(), before + 1);
}

#[tokio::test]
async fn files_that_students_started_from_are_one_template() {
    let site = Site::new().await;
    let works = zipped(&[
        ("ada/A.py", "a = 1\n"),
        ("ada/B.py", "b = 1\n"),
        ("ben/A.py", "a = 1\n"),
        ("ben/B.py", "b = 2\n"),
    ]);
    let parts: &[Part<'_>] = &[
        ("course", None, b"Started"),
        ("works", Some("works.zip"), &works),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
        ("template", Some("A.py"), b"a = 1\n"),
        ("template", Some("B.py"), b"b = 1\n"),
        ("template", Some("picture.png"), b"\x89PNG\0"),
    ];
    let (shown, _) = take(&site, parts, &[]).await;
    assert!(
        shown.contains("equal to the template") && shown.contains("1 with nothing written"),
        "{shown}"
    );
    let read = |reader: &Reader<'_>| Ok(reader.rubric(reader.assignments()?[0].id)?.unwrap());
    let held = site.gradebook.store().read_now(read).unwrap();
    assert_eq!(held.rubric.templates.len(), 1);
    assert_eq!(held.rubric.templates[0].files().len(), 2);
}

/// Results of tests that the teacher ran stand beside the work. They may come later: that is the same work, which keeps its
/// points, and is graded anew where nobody has settled it.
#[tokio::test]
async fn results_of_tests_are_facts_beside_the_same_work() {
    const FAILED: &str =
        r#"<testsuite><testcase name="t"><failure message="boom"/></testcase></testsuite>"#;
    const PASSED: &str = r#"<testsuite><testcase name="t"/></testsuite>"#;
    let site = Site::new().await;
    let works = zipped(&[("ada.py", "x = 1\n"), ("ben.py", "x = 2\n")]);
    let tests = zipped(&[("ada/TEST-a.xml", FAILED), ("zoe/b.xml", PASSED)]);
    let parts: [Part<'_>; 4] = [
        ("course", None, b"Tested"),
        ("works", Some("works.zip"), &works),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
        ("tests", Some("tests.zip"), &tests),
    ];
    let lines = |site: &Site, name: &str| {
        let read = |reader: &Reader<'_>| {
            let all = reader.works(reader.assignments()?[0].id)?;
            let work = all.iter().find(|work| work.name == name).unwrap().id;
            Ok((work, reader.submission(work)?.unwrap()))
        };
        let (work, submission) = site.gradebook.store().read_now(read).unwrap();
        let tests = submission.files.into_iter().filter(|file| file.is_tests);
        (work, tests.flat_map(|file| file.lines).collect::<Vec<_>>())
    };
    let (shown, _) = take(&site, &parts, &[]).await;
    assert!(
        shown.contains("for <strong class=\"num\">1</strong> student."),
        "{shown}"
    );
    assert!(shown.contains("zoe/b.xml: of no student") && !shown.contains("with several files"));
    let (ada, found) = lines(&site, "ada");
    assert_eq!(found, ["1 test, 1 failed", "failed: t: boom"]);
    let page = site.get(&format!("/w/{ada}")).await.text().await.unwrap();
    assert!(page.contains("failed: t: boom"), "{page}");

    // Without them what was there stays; others come in their place; neither makes another work.
    take(&site, &parts[..3], &[]).await;
    assert_eq!(lines(&site, "ada"), (ada, found.clone()));
    // What somebody has settled keeps those that they saw.
    let version = crate::people::seen(&site, ada);
    let settle = [("do", "without-points"), ("version", version.as_str())];
    site.post(&format!("/w/{ada}"), &settle).await;
    let other = zipped(&[("ada.xml", PASSED)]);
    let mut settled = parts;
    settled[3].2 = &other;
    take(&site, &settled, &[]).await;
    assert_eq!(lines(&site, "ada"), (ada, found));
    let version = crate::people::seen(&site, ada);
    let reopen = [("do", "reopen"), ("version", version.as_str())];
    site.post(&format!("/w/{ada}"), &reopen).await;
    let tests = zipped(&[("ada.xml", PASSED), ("ben.xml", FAILED)]);
    let mut again = parts;
    again[3].2 = &tests;
    take(&site, &again, &[]).await;
    let passed = ["1 test, 1 passed".to_owned(), "passed: t".to_owned()];
    assert_eq!(lines(&site, "ada"), (ada, passed.to_vec()));
    assert_eq!(lines(&site, "ben").1.len(), 2);
    assert_eq!(self::works(&site).len(), 2);
    // What is no result is said before anything is taken in.
    let other = zipped(&[("ada.xml", "<html/>")]);
    again[3].2 = &other;
    let (shown, _) = take(&site, &again, &[]).await;
    assert!(shown.contains("it has no test suites of JUnit"), "{shown}");
}
