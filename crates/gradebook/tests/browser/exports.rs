//! From the last approval to the file that goes back, with keys and buttons alone.

use std::io::Write;
use std::path::Path;

use fantoccini::Locator;

use crate::harness::{Browser, Site};
use crate::models::Models;
use crate::pictures;

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

/// Chooses a file in a form.
async fn choose(browser: &Browser, field: &str, file: &Path) {
    let selector = format!("input[name={field}]");
    let field = browser.page.find(Locator::Css(&selector)).await.unwrap();
    field.send_keys(file.to_str().unwrap()).await.unwrap();
}

/// Gives the page a gradebook, and waits for what would change.
async fn give(browser: &Browser, own: &Path) {
    choose(browser, "sheet", own).await;
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

/// A course as a learning system gives it out.
struct Course {
    /// Names and texts in the archive.
    members: &'static [(&'static str, &'static str)],
    sheet: &'static str,
    /// What the page says was found.
    found: &'static str,
    picture: &'static str,
}

/// Four students, one of them late, one with two files, one who is not in the gradebook.
const CANVAS: Course = Course {
    members: &[
        (
            "doejane_222_5001_mean.py",
            "def mean_above(numbers, limit):\n    return 1\n",
        ),
        ("doejane_222_5002_call.py", "print(mean_above([1], 0))\n"),
        (
            "roejim_LATE_223_5003_mean.py",
            "def mean_above(n, l):\n    return 2\n",
        ),
        (
            "leekim_224_5004_mean.py",
            "def mean_above(n, l):\n    return 3\n",
        ),
        (
            "ghost_999_5005_mean.py",
            "def mean_above(n, l):\n    return 4\n",
        ),
    ],
    sheet: "Student,ID,SIS Login ID,Section,Mean above a limit (77)\r\n    Points Possible,,,,10.00\r\n\
        \"Doe, Jane\",222,jane,\"A, B\",\r\n\"Roe, Jim\",223,jim,A,\r\n\"Lee, Kim\",224,kim,A,\r\n\"Zorn, Zed\",225,zed,A,\r\n",
    found: "4 students, 1 with several files, 1 late, 1 who handed nothing in: is this right?",
    picture: "intake.png",
};

/// The same of Moodle: folders, an online text, a worksheet in German with a grade that cannot be changed.
const MOODLE: Course = Course {
    members: &[
        (
            "Jane Doe_71_assignsubmission_file/mean.py",
            "def mean_above(numbers, limit):\n    return 1\n",
        ),
        (
            "Jane Doe_71_assignsubmission_onlinetext/onlinetext.html",
            "<p>It returns 1.</p>\n",
        ),
        (
            "Jim Röe_72_assignsubmission_file/mean.py",
            "def mean_above(n, l):\n    return 2\n",
        ),
        (
            "Kim Lee_73_assignsubmission_file/mean.py",
            "def mean_above(n, l):\n    return 3\n",
        ),
        (
            "Ghost Gone_99_assignsubmission_file/mean.py",
            "def mean_above(n, l):\n    return 4\n",
        ),
    ],
    sheet: "ID;\"Vollständiger Name\";\"E-Mail-Adresse\";Status;Bewertung;Bestwertung;\"Bewertung kann geändert werden\"\r\n\
        \"Teilnehmer/in 71\";\"Jane Doe\";jane@x.org;Abgegeben;;10,00;Ja\r\n\"Teilnehmer/in 72\";\"Jim Röe\";jim@x.org;Abgegeben;;10,00;Ja\r\n\
        \"Teilnehmer/in 73\";\"Kim Lee\";kim@x.org;Abgegeben;4,00;10,00;Nein\r\n\"Teilnehmer/in 74\";\"Zed Zorn\";zed@x.org;-;;10,00;Ja\r\n",
    found: "4 students, 1 with several files, 1 who handed nothing in: is this right?",
    picture: "intake-moodle.png",
};

/// Gives a course and its gradebook to the page, and takes in what is somebody's.
async fn take_in(site: &Site, course: &Course) -> Browser {
    let folder = site.folder();
    let file = std::fs::File::create(folder.join("submissions.zip")).unwrap();
    let mut zip = zip::ZipWriter::new(file);
    for (name, text) in course.members {
        zip.start_file(*name, zip::write::SimpleFileOptions::default())
            .unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    std::fs::write(folder.join("grades.csv"), course.sheet).unwrap();
    let rubric =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/intro-course/rubric.yaml");
    let rubric = rubric.canonicalize().unwrap();
    let browser = Browser::open(site, "/new").await;
    browser
        .run("document.querySelector('input[name=course]').value = 'Spring'")
        .await;
    choose(&browser, "works", &folder.join("submissions.zip")).await;
    choose(&browser, "sheet", &folder.join("grades.csv")).await;
    choose(&browser, "rubric", &rubric).await;
    browser
        .run("document.querySelector('form.card button').click()")
        .await;
    browser.until("document.getElementById('intake')").await;
    let found = browser.accessibility().await;
    assert!(found.is_empty(), "{found:#?}");
    pictures::take(&browser, course.picture).await;
    let heading = browser
        .run("return document.querySelector('#intake h2').textContent")
        .await;
    assert_eq!(heading.as_str().unwrap(), course.found);
    let odd = browser
        .run("return document.querySelector('#odd tbody').textContent")
        .await;
    assert!(
        odd.as_str().unwrap().to_lowercase().contains("ghost"),
        "{odd}"
    );
    // It is nobody of this course.
    browser
        .run("document.querySelector('#odd input').click()")
        .await;
    browser
        .run("document.querySelector('#intake button').click()")
        .await;
    browser
        .until("document.querySelector('button[value=all]')")
        .await;
    browser
}

/// From the archive and the gradebook of a system to the gradebook that goes back, on the pages alone; what came of it.
async fn round(course: &Course, summary: &str) -> String {
    let site = Site::new().await;
    let models = Models::default();
    site.gradebook.connect(models.serve().await);
    let browser = take_in(&site, course).await;
    browser
        .run("document.querySelector('button[value=all]').click()")
        .await;
    browser
        .until("/^3 of 3$/.test(document.getElementById('done')?.textContent)")
        .await;
    let read = |reader: &tandem_gradebook::store::Reader<'_>| Ok(reader.assignments()?[0].id);
    let id = site.gradebook.store().read_now(read).unwrap();
    let browser = way_out(&site, id).await;
    browser.until("document.getElementById('summary')").await;
    let shown = browser
        .run("return document.getElementById('summary').textContent")
        .await;
    assert_eq!(shown, summary);
    browser
        .run("document.getElementById('write').click()")
        .await;
    String::from_utf8(browser.downloaded("grades.csv").await).unwrap()
}

#[tokio::test]
async fn a_canvas_course_goes_in_and_comes_back() {
    let summary = "3 cells would change, 0 grades stand there already.";
    let mut expected = CANVAS.sheet.to_owned();
    for student in ["jane,\"A, B\",", "jim,A,", "kim,A,"] {
        expected = expected.replace(student, &format!("{student}10.00"));
    }
    let written = round(&CANVAS, summary).await;
    assert_eq!(written, expected);
    // Who handed nothing in keeps an empty cell.
    assert!(written.ends_with("zed,A,\r\n"));
}

#[tokio::test]
async fn a_moodle_course_goes_in_and_comes_back() {
    let summary = "2 cells would change, 0 grades stand there already.";
    let expected = MOODLE
        .sheet
        .replace("jane@x.org;Abgegeben;;", "jane@x.org;Abgegeben;10,00;");
    let expected = expected.replace("jim@x.org;Abgegeben;;", "jim@x.org;Abgegeben;10,00;");
    assert_eq!(round(&MOODLE, summary).await, expected);
}

/// A rubric is written in a form, which says at once what is wrong with it.
#[tokio::test]
async fn a_rubric_is_checked_while_it_is_written() {
    let site = Site::new().await;
    let browser = Browser::open(&site, "/a/1/rubric").await;
    let checks = "return document.getElementById('checks').textContent.trim()";
    assert_eq!(browser.run(checks).await, "10 points in 4 criteria");
    pictures::take(&browser, "rubric.png").await;
    let write = |name: &str, text: &str| {
        format!(
            "const field = document.querySelector('[name=\"{name}\"]'); field.value = '{text}';
             field.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        )
    };
    browser.run(&write("c0-points", "x")).await;
    browser
        .until("document.getElementById('checks').textContent.includes('Correct result: “x” is no number')")
        .await;
    browser.run(&write("c0-points", "4")).await;
    browser
        .run(&write("c0-l1-text", "A good part is right."))
        .await;
    browser
        .until("document.getElementById('checks').textContent.includes(\"'good' is vague\")")
        .await;
    browser
        .run("document.querySelector('button[value=keep]').click()")
        .await;
    browser
        .until("document.querySelector('header a[href$=rubric]')")
        .await;
    let read = |reader: &tandem_gradebook::store::Reader<'_>| Ok(reader.rubric(1)?.unwrap().number);
    assert_eq!(site.gradebook.store().read_now(read).unwrap(), 2);
}
