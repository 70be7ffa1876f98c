//! What is deleted is gone, from the file too, and nothing else is.

use std::sync::atomic::Ordering;

use tandem_gradebook::store::{By, Reader, Role, Seen, SheetFile, StoreError, Work, Writer};
use tandem_gradebook::{Gradebook, Scope};
use tandem_grading::review::Change;
use tandem_grading::{
    EarlierRun, FeedbackMode, Folder, Origin, Rubric, Student, Submission, System,
};

use crate::models::Models;
use crate::site::Site;

fn rubric(id: &str) -> Rubric {
    let text = include_str!("../../../../examples/intro-course/rubric.yaml");
    Rubric::parse(&text.replacen("id: mean-above", &format!("id: {id}"), 1)).unwrap()
}

/// A mark that stands nowhere else.
fn mark(i: usize) -> String {
    format!("mark{i}of{i}student")
}

/// Students of Canvas: the mark is in name and code.
fn submissions() -> Vec<Submission> {
    let one = |i| {
        let mut one =
            Submission::of_text("main.py", &format!("def {}():\n    return {i}\n", mark(i)));
        one.name = format!("Student {}", mark(i));
        one.origin = Origin {
            system: System::Canvas,
            students: vec![Student {
                name: mark(i),
                ids: vec![(100 + i).to_string()],
            }],
            ..Origin::default()
        };
        one
    };
    (0..4).map(one).collect()
}

/// Two assignments of four students, graded by models, with a gradebook each.
async fn graded(site: &Site, models: &Models) {
    site.gradebook.connect(models.serve().await);
    for id in ["first", "second"] {
        let (rubric, submissions) = (rubric(id), submissions());
        let out = site.folder().join(id);
        let folder = Folder::open(&out, &rubric, &submissions, EarlierRun::Refuse).unwrap();
        let batch = tandem_gradebook::Batch {
            course: "Marked",
            rubric: &rubric,
            submissions: &submissions,
            roster: None,
            feedback_mode: FeedbackMode::After,
            earlier_run: EarlierRun::Refuse,
            folder: &folder,
            report: &|_| {},
        };
        site.gradebook.grade(&batch).await.unwrap();
        let names: Vec<String> = (0..4).map(mark).collect();
        let sheet = SheetFile {
            name: "own.csv".to_owned(),
            bytes: names.join("\n").into_bytes(),
        };
        let kept: Result<(), StoreError> = site.gradebook.store().write_now(|writer| {
            let assignment = writer.assignments()?[0].id;
            let works: Vec<i64> = writer
                .works(assignment)?
                .iter()
                .map(|work| work.id)
                .collect();
            writer.draw_anchors(&works)?;
            grade_blind(writer, works[0])?;
            writer.keep_sheet(assignment, &sheet).map(Ok)
        });
        kept.unwrap();
        std::fs::remove_dir_all(out).unwrap();
    }
}

/// The teacher gives a work the most points, without having seen the model's.
fn grade_blind(writer: &Writer<'_>, work: i64) -> rusqlite::Result<()> {
    let by = By {
        person: writer.person(Role::Teacher)?,
        session: "s",
        key: None,
    };
    let rubric = writer
        .rubric(writer.work(work)?.unwrap().assignment)?
        .unwrap();
    for criterion in rubric.rubric.criteria {
        let points = criterion.allowed().last().copied();
        let change = Change::Points {
            criterion: criterion.id,
            points,
        };
        writer
            .change((work, Seen::default()), &by, &change)?
            .unwrap();
    }
    writer.save_blind(work, &by)?.unwrap();
    Ok(())
}

fn works(gradebook: &Gradebook, assignment: i64) -> Vec<Work> {
    gradebook
        .store()
        .read_now(|reader| reader.works(assignment))
        .unwrap()
}

/// How often a text stands in the gradebook's files.
fn count(site: &Site, text: &str) -> usize {
    let entries = std::fs::read_dir(site.folder()).unwrap();
    let files = entries
        .map(|e| e.unwrap().path())
        .filter(|path| path.is_file());
    let bytes = files.map(|path| std::fs::read(path).unwrap());
    bytes
        .map(|bytes| {
            bytes
                .windows(text.len())
                .filter(|w| *w == text.as_bytes())
                .count()
        })
        .sum()
}

/// Deletes what a page shows, with a button of it.
async fn delete(site: &Site, path: &str, what: &str) -> reqwest::Response {
    let page = site.get(path).await.text().await.unwrap();
    let seen = seen(&page, what);
    site.post(path, &[("what", what), ("seen", &seen)]).await
}

/// What a page says that it showed beside a button.
fn seen(page: &str, what: &str) -> String {
    let button = format!("value=\"{what}\"");
    let form = page.split("<form").find(|form| form.contains(&button));
    let form = form.and_then(|form| form.split("name=\"seen\" value=\"").nth(1));
    form.and_then(|rest| rest.split('"').next())
        .unwrap_or_default()
        .to_owned()
}

fn is_sound(site: &Site) {
    let sql = rusqlite::Connection::open(site.folder().join("g.sqlite")).unwrap();
    let broken = sql.query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| {
        row.get(0)
    });
    assert_eq!(broken, Ok(0_i64));
    let whole = sql.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    assert_eq!(whole.unwrap(), "ok");
}

#[tokio::test]
async fn a_student_is_gone_and_nobody_else_is() {
    let site = Site::new().await;
    graded(&site, &Models::default()).await;
    let [first, second] = [2, 3];
    let of = |i: usize| works(&site.gradebook, first)[i].id;
    let (gone, stays) = (of(1), of(2));
    assert!(count(&site, &mark(1)) > 10);
    let before = format!("{:?}", works(&site.gradebook, second)[2]);
    // The page says what would go, and where.
    let page = site
        .get(&format!("/w/{gone}/delete"))
        .await
        .text()
        .await
        .unwrap();
    for text in [
        "1 submission with files",
        "2 submissions with files",
        "Marked / ",
        "Keep",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let deleted = delete(&site, &format!("/w/{gone}/delete"), "student").await;
    assert_eq!(deleted.status(), 303);
    assert_eq!(
        count(&site, &mark(1)),
        0,
        "nothing is left of it in any file"
    );
    assert!(count(&site, &mark(2)) > 10);
    is_sound(&site);
    for assignment in [first, second] {
        let names: Vec<String> = works(&site.gradebook, assignment)
            .into_iter()
            .map(|w| w.name)
            .collect();
        assert_eq!(names, [0, 2, 3].map(|i| format!("Student {}", mark(i))));
    }
    assert_eq!(format!("{:?}", works(&site.gradebook, second)[1]), before);
    assert_eq!(site.get(&format!("/w/{gone}")).await.status(), 404);
    assert_eq!(
        delete(&site, &format!("/w/{gone}/delete"), "student")
            .await
            .status(),
        404
    );
    assert_eq!(site.get(&format!("/w/{stays}")).await.status(), 200);
    // Who comes next gets a number that none ever had, so that no page that is still open means another one.
    let last = works(&site.gradebook, second)[2].id;
    delete(&site, &format!("/w/{last}/delete"), "submission").await;
    site.gradebook
        .hand_in("Marked", &rubric("second"), &submissions(), None)
        .unwrap();
    assert!(
        works(&site.gradebook, second)
            .iter()
            .skip(2)
            .all(|work| work.id > last)
    );
}

#[tokio::test]
async fn assignments_and_courses_go_whole() {
    let site = Site::new().await;
    graded(&site, &Models::default()).await;
    let page = site.get("/a/2/delete").await.text().await.unwrap();
    assert!(
        page.contains("4 submissions") && page.contains("8 submissions"),
        "{page}"
    );
    // What was handed in again goes with what it took the place of.
    let mut again = submissions();
    again[0].files[0].lines.push(format!("# {}", mark(9)));
    site.gradebook
        .hand_in("Marked", &rubric("first"), &again, None)
        .unwrap();
    assert_eq!(
        delete(&site, "/a/2/delete", "assignment").await.status(),
        303
    );
    assert_eq!(count(&site, &mark(9)), 0);
    is_sound(&site);
    assert_eq!(works(&site.gradebook, 3).len(), 4);
    let home = site.get("").await.text().await.unwrap();
    assert!(
        home.contains("Marked") && !home.contains("/a/2\""),
        "{home}"
    );
    assert_eq!(
        delete(&site, "/a/3/delete", "assignment").await.status(),
        303
    );
    let home = site.get("").await.text().await.unwrap();
    assert!(!home.contains("Marked"), "{home}");
    for i in 0..4 {
        assert_eq!(count(&site, &mark(i)), 0, "{i}");
    }
    is_sound(&site);
    for odd in [("what", "all"), ("no", "x")] {
        let answer = site.post("/a/1/delete", &[odd]).await;
        assert!(answer.status().is_client_error());
    }
    // The sample goes, too, and does not come back.
    assert_eq!(
        delete(&site, "/a/1/delete", "assignment").await.status(),
        303
    );
    let read = |reader: &Reader<'_>| Ok(reader.assignments()?.len());
    let again = site.reopened().await;
    assert_eq!(again.gradebook.store().read_now(read).unwrap(), 0);
}

#[tokio::test]
async fn nothing_is_deleted_while_a_run_goes_on() {
    let site = Site::new().await;
    let models = Models::default();
    site.gradebook.connect(models.serve().await);
    let page = site
        .gradebook
        .hand_in("Marked", &rubric("first"), &submissions(), None)
        .unwrap();
    models.pause_ms.store(30, Ordering::Relaxed);
    assert_eq!(site.post(&page, &[("what", "all")]).await.status(), 303);
    let refused = delete(&site, "/a/2/delete", "assignment").await;
    assert_eq!(refused.status(), 409);
    assert_eq!(works(&site.gradebook, 2).len(), 4);
    let other = site.reopened().await;
    assert!(other.gradebook.erase(Scope::Assignment(2)).is_err());
}

#[tokio::test]
async fn a_backup_is_the_gradebook_and_old_assignments_are_found() {
    let site = Site::new().await;
    graded(&site, &Models::default()).await;
    let file = site.folder().join("backup.sqlite");
    site.gradebook.back_up(&file).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let refused = site.gradebook.back_up(&file).unwrap_err().to_string();
    assert!(refused.contains("backup.sqlite"), "{refused}");
    let copy = Gradebook::open(&file).unwrap();
    for assignment in 1..=3 {
        let (ours, theirs) = (works(&site.gradebook, assignment), works(&copy, assignment));
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }
    let last = |id| {
        site.gradebook
            .store()
            .read_now(|reader| reader.last_used(id))
            .unwrap()
    };
    let unused = |since| -> Vec<i64> {
        let found = site.gradebook.unused(since).unwrap();
        found.into_iter().map(|one| one.id).collect()
    };
    assert_eq!(unused(last(1)), Vec::<i64>::new());
    assert_eq!(unused(last(2)), [1]);
    assert_eq!(unused(last(3) + 1), [3, 2, 1]);
}

/// A page that is still open deletes what it showed, or nothing.
#[tokio::test]
async fn a_stale_page_deletes_nothing_else() {
    let site = Site::new().await;
    let hand_in = |course: &str, id: &str, count: usize| {
        site.gradebook
            .hand_in(course, &rubric(id), &submissions()[..count], None)
            .unwrap()
    };
    hand_in("Alpha", "first", 2);
    let page = site.get("/a/2/delete").await.text().await.unwrap();
    let old = seen(&page, "assignment");
    // More came in.
    hand_in("Alpha", "first", 4);
    let form = [("what", "assignment"), ("seen", old.as_str())];
    assert_eq!(site.post("/a/2/delete", &form).await.status(), 422);
    assert_eq!(works(&site.gradebook, 2).len(), 4);
    // The last assignment goes, and another one comes: it has another number.
    assert_eq!(
        delete(&site, "/a/2/delete", "assignment").await.status(),
        303
    );
    hand_in("Beta", "second", 2);
    assert_eq!(site.post("/a/2/delete", &form).await.status(), 404);
    assert_eq!(works(&site.gradebook, 3).len(), 2);
    // A page of a work deletes no assignment.
    let work = works(&site.gradebook, 3)[0].id;
    let odd = site.post(&format!("/w/{work}/delete"), &form).await;
    assert_eq!(odd.status(), 404);
}

fn of_moodle(name: &str, id: &str) -> Submission {
    let mut one = Submission::of_text("main.py", &format!("x = '{name}'"));
    one.name = name.to_owned();
    one.origin = Origin {
        system: System::Moodle,
        students: vec![Student {
            name: name.to_owned(),
            ids: vec![id.to_owned()],
        }],
        ..Origin::default()
    };
    one
}

/// Moodle numbers anew in each assignment, and members of a group are several.
#[tokio::test]
async fn a_student_is_who_the_system_knows() {
    let site = Site::new().await;
    let hand_in = |course: &str, id: &str, all: &[Submission]| {
        site.gradebook
            .hand_in(course, &rubric(id), all, None)
            .unwrap();
    };
    hand_in(
        "One",
        "first",
        &[
            of_moodle("Anna Bell", "55"),
            of_moodle("Kim Lee (1)", "1"),
            of_moodle("Kim Lee (2)", "2"),
        ],
    );
    hand_in(
        "One",
        "second",
        &[of_moodle("Anna Bell", "205"), of_moodle("Kim Lee", "7")],
    );
    hand_in(
        "Two",
        "third",
        &[of_moodle("Zed Other", "55"), of_moodle("Anna Bell", "9")],
    );
    let names = |id| -> Vec<String> {
        works(&site.gradebook, id)
            .into_iter()
            .map(|w| w.name)
            .collect()
    };
    let anna = works(&site.gradebook, 2)[0].id;
    assert_eq!(
        delete(&site, &format!("/w/{anna}/delete"), "student")
            .await
            .status(),
        303
    );
    assert_eq!(
        (names(2).len(), names(3), names(4)),
        (
            2,
            vec!["Kim Lee".to_owned()],
            vec!["Zed Other".to_owned(), "Anna Bell".to_owned()]
        )
    );
    // Nobody knows which of two it is.
    let kim = works(&site.gradebook, 3)[0].id;
    let erasure = site
        .gradebook
        .would_erase(Scope::Student(kim))
        .unwrap()
        .unwrap();
    assert_eq!(erasure.works, [kim]);
    let kim = works(&site.gradebook, 2)[0].id;
    let erasure = site
        .gradebook
        .would_erase(Scope::Student(kim))
        .unwrap()
        .unwrap();
    assert_eq!(
        erasure.works,
        [kim],
        "one of two, and the other course work is of either"
    );
}

#[tokio::test]
async fn work_of_a_group_is_others_too() {
    let site = Site::new().await;
    let scope = |ids: &[&str]| {
        let mut one = Submission::of_text("main.py", "x = 1");
        let student = |id: &&str| Student {
            name: "Ann".to_owned(),
            ids: vec![(*id).to_owned()],
        };
        one.name = ids.join(" and ");
        one.origin = Origin {
            system: System::Gradescope,
            students: ids.iter().map(student).collect(),
            ..Origin::default()
        };
        one
    };
    let all = [scope(&["s1"]), scope(&["s1", "s2"]), scope(&["s11"])];
    site.gradebook
        .hand_in("Three", &rubric("fourth"), &all, None)
        .unwrap();
    let ann = works(&site.gradebook, 2)[0].id;
    let erasure = site
        .gradebook
        .would_erase(Scope::Student(ann))
        .unwrap()
        .unwrap();
    assert_eq!((erasure.works, erasure.groups.len()), (vec![ann], 1));
}

/// While another program reads the file, what was deleted is still in it, which is said; it goes when the file is free.
#[tokio::test]
async fn what_cannot_be_overwritten_now_is_said_and_goes_later() {
    let site = Site::new().await;
    site.gradebook
        .hand_in("Marked", &rubric("first"), &submissions(), None)
        .unwrap();
    let reader = rusqlite::Connection::open(site.folder().join("g.sqlite")).unwrap();
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM submission;")
        .unwrap();
    let said = site
        .gradebook
        .erase(Scope::Assignment(2))
        .unwrap_err()
        .to_string();
    assert!(said.contains("another program has that open"), "{said}");
    assert!(works(&site.gradebook, 2).is_empty());
    drop(reader);
    drop(site.reopened().await);
    for i in 0..4 {
        assert_eq!(count(&site, &mark(i)), 0);
    }
}

#[test]
fn a_backup_goes_where_its_name_says() {
    let folder = tempfile::tempdir().unwrap();
    let gradebook = Gradebook::open(&folder.path().join("g.sqlite")).unwrap();
    for name in [
        "file:uri.sqlite",
        ":memory:",
        "file:x?mode=memory",
        "a b 'c'.sqlite",
    ] {
        let file = folder.path().join(name);
        gradebook.back_up(&file).unwrap();
        assert!(std::fs::metadata(&file).unwrap().len() > 10_000, "{name}");
        assert!(Gradebook::open(&file).is_ok(), "{name}");
    }
}
