//! The store: what outlives a version, a person's values beside a new run's, and work that is handed in again.

use std::path::Path;

use tandem_gradebook::Gradebook;
use tandem_gradebook::store::{
    By, Handed, Reader, Role, Seen, Store, StoreError, WriteError, Writer,
};
use tandem_grading::review::Change;
use tandem_grading::{Item, ItemKind, Origin, Points, Rubric, Student, Submission, System};

fn open(path: &Path) -> Store {
    Gradebook::open(path).unwrap().store().clone()
}

fn write<T>(store: &Store, task: impl FnOnce(&Writer<'_>) -> rusqlite::Result<T>) -> T {
    let task = |writer: &Writer<'_>| task(writer).map(Ok::<T, StoreError>);
    store.write_now(task).unwrap()
}

const fn by(person: i64, session: &str) -> By<'_> {
    By {
        person,
        session,
        key: None,
    }
}

/// What a page of the first work shows now.
fn seen(store: &Store) -> Seen {
    store
        .read_now(|reader| reader.work(1))
        .unwrap()
        .unwrap()
        .seen
}

#[test]
fn a_file_of_a_later_version_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("g.sqlite");
    drop(open(&path));
    let sql = rusqlite::Connection::open(&path).unwrap();
    sql.pragma_update(None, "user_version", 99).unwrap();
    drop(sql);
    let before = std::fs::read(&path).unwrap();
    let refused = Gradebook::open(&path).map(|_| ()).unwrap_err().to_string();
    assert!(
        refused.contains("later version") && refused.contains("99"),
        "{refused}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn what_was_kept_is_there_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/g.sqlite");
    let store = open(&path);
    let person = write(&store, |writer| writer.person(Role::Teacher));
    let change = Change::Points {
        criterion: "empty".into(),
        points: Points::from_f64(1.0),
    };
    let done: Result<(), WriteError> =
        store.write_now(|writer| writer.change((1, seen(&store)), &by(person, "one"), &change));
    done.unwrap();
    let (first, address) = (
        store.read_now(|reader| reader.works(1)).unwrap().len(),
        Gradebook::open(&path).unwrap().address("http://x").unwrap(),
    );
    drop(store);
    let store = open(&path);
    let works = store
        .read_now(|reader: &Reader<'_>| reader.works(1))
        .unwrap();
    assert_eq!(works.len(), first, "the sample is put in once");
    let work = works.iter().find(|w| w.id == 1).unwrap();
    assert_eq!(work.review.points["empty"].to_string(), "1");
    assert_eq!(
        Gradebook::open(&path).unwrap().address("http://x").unwrap(),
        address
    );
}

#[cfg(unix)]
#[test]
fn nobody_else_reads_any_of_its_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    // While it is open, what was written last stands in files beside it.
    let _store = open(&folder.path().join("g.sqlite"));
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(files.len() > 1, "there are none beside it");
    for file in files {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "others read {:?}", file.file_name());
    }
}

#[test]
fn a_new_result_leaves_what_persons_decided() {
    let folder = tempfile::tempdir().unwrap();
    let gradebook = Gradebook::open(&folder.path().join("g.sqlite")).unwrap();
    let store = gradebook.store();
    let person = write(store, |writer| writer.person(Role::Teacher));
    let change = Change::Points {
        criterion: "correct".into(),
        points: Points::from_f64(2.0),
    };
    let done: Result<(), WriteError> =
        store.write_now(|writer| writer.change((1, seen(store)), &by(person, "one"), &change));
    done.unwrap();
    let before = store.read_now(|reader| reader.work(1)).unwrap().unwrap();
    let rubric = store.read_now(|reader| reader.rubric(1)).unwrap().unwrap();
    let submission = store
        .read_now(|reader| reader.submission(1))
        .unwrap()
        .unwrap();
    let mut graded = before.graded.clone().unwrap();
    graded.criteria[0].points = Points::ZERO;
    graded.score = Some(6.0);
    gradebook
        .keep_run(
            "Sample course",
            &rubric.rubric,
            &[submission],
            &[graded],
            ("", ""),
        )
        .unwrap();
    let after = store.read_now(|reader| reader.work(1)).unwrap().unwrap();
    assert_eq!(
        (&after.review, after.seen.review),
        (&before.review, before.seen.review)
    );
    // A page that shows the earlier result approves nothing.
    let approve = Change::Approve { confirmed: true };
    let done: Result<(), WriteError> =
        store.write_now(|writer| writer.change((1, before.seen), &by(person, "one"), &approve));
    assert!(matches!(done, Err(WriteError::Outdated)), "{done:?}");
    let note = Change::Note("still mine".into());
    let done: Result<(), WriteError> =
        store.write_now(|writer| writer.change((1, before.seen), &by(person, "one"), &note));
    done.unwrap();
    assert_eq!(after.graded.unwrap().criteria[0].points, Points::ZERO);
    let again = store.read_now(|reader| reader.rubric(1)).unwrap().unwrap();
    assert_eq!(again.number, 1, "the same rubric is no new version");
}

#[test]
fn work_that_is_handed_in_again_takes_the_place_of_the_earlier() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("g.sqlite"));
    let mut submission = store
        .read_now(|reader| reader.submission(1))
        .unwrap()
        .unwrap();
    let same = write(&store, |writer| writer.hand_in(1, &submission));
    assert_eq!(same, Handed::Same(1));
    submission.files[0].lines.push("# more".into());
    let again = write(&store, |writer| writer.hand_in(1, &submission));
    let Handed::Again(id) = again else {
        panic!("{again:?}")
    };
    let works = store.read_now(|reader| reader.works(1)).unwrap();
    let names = works.iter().filter(|w| w.name == submission.name);
    assert_eq!(names.map(|w| w.id).collect::<Vec<_>>(), [id]);
    let earlier = store.read_now(|reader| reader.work(1)).unwrap().unwrap();
    assert!(earlier.graded.is_some(), "its values stay");
    let new = works.iter().find(|w| w.id == id).unwrap();
    assert!(new.graded.is_none(), "they are not those of the new one");
    let person = write(&store, |writer| writer.person(Role::Teacher));
    let late: Result<(), WriteError> = store.write_now(|writer| {
        writer.change(
            (1, earlier.seen),
            &by(person, "one"),
            &Change::WithoutPoints,
        )
    });
    assert!(
        matches!(late, Err(WriteError::Replaced(new)) if new == id),
        "{late:?}"
    );
}

#[test]
fn undo_goes_back_step_by_step_and_only_over_what_the_same_browser_did() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("g.sqlite"));
    let person = write(&store, |writer| writer.person(Role::Teacher));
    let change = |work, session, change: Change| {
        let held = store.read_now(|reader| reader.work(work)).unwrap().unwrap();
        let done: Result<(), WriteError> = store
            .write_now(|writer| writer.change((work, held.seen), &by(person, session), &change));
        done.unwrap();
    };
    let undo = |session| {
        let done: Result<_, WriteError> =
            store.write_now(|writer| writer.undo(1, &by(person, session)));
        done.map(|undone| undone.action).map_err(|e| e.to_string())
    };
    change(1, "one", Change::SecondLook(true));
    change(1, "one", Change::Note("hm".into()));
    assert_eq!(undo("two").unwrap_err(), "there is nothing to undo");
    change(2, "one", Change::WithoutPoints);
    change(2, "two", Change::Reopen);
    // The last change of the first browser was changed since; the one before it was not.
    assert_eq!(undo("one").unwrap(), "note written");
    assert_eq!(undo("two").unwrap(), "opened again");
    assert_eq!(undo("one").unwrap(), "settled without points");
    assert_eq!(undo("one").unwrap(), "second look wanted");
    assert_eq!(undo("one").unwrap_err(), "there is nothing to undo");
    let work = store.read_now(|reader| reader.work(1)).unwrap().unwrap();
    assert_eq!(work.review, tandem_grading::review::Review::default());
    let history = store.read_now(|reader| reader.history(1)).unwrap();
    assert!(history.len() == 2 && history.iter().all(|past| past.is_undone));
}

#[test]
fn what_is_sent_twice_is_done_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("g.sqlite"));
    let person = write(&store, |writer| writer.person(Role::Teacher));
    let first = seen(&store);
    let by = By {
        key: Some("a-key"),
        ..by(person, "one")
    };
    let add = Change::Add(Item {
        kind: ItemKind::Strength,
        text: "Clear names.".into(),
    });
    for _ in 0..2 {
        let done: Result<(), WriteError> =
            store.write_now(|writer| writer.change((1, first), &by, &add));
        done.unwrap();
    }
    let work = store.read_now(|reader| reader.work(1)).unwrap().unwrap();
    assert_eq!(work.seen.review, 1);
    let text = work.review.text.unwrap();
    assert_eq!(
        text.iter()
            .filter(|item| item.text == "Clear names.")
            .count(),
        1
    );
}

/// The steps from one form of the store to the next.
const STEPS: [&str; 9] = [
    include_str!("../../src/store/migrations/0001_initial.sql"),
    include_str!("../../src/store/migrations/0002_second.sql"),
    include_str!("../../src/store/migrations/0003_pictures.sql"),
    include_str!("../../src/store/migrations/0004_browsers.sql"),
    include_str!("../../src/store/migrations/0005_exports.sql"),
    include_str!("../../src/store/migrations/0006_originals.sql"),
    include_str!("../../src/store/migrations/0007_anchors.sql"),
    include_str!("../../src/store/migrations/0008_corrections.sql"),
    include_str!("../../src/store/migrations/0009_members.sql"),
];

#[test]
fn a_file_of_any_version_is_taken_over() {
    for form in 1..=STEPS.len() {
        of_form(form);
    }
    // Those are all.
    let folder = tempfile::tempdir().unwrap();
    drop(open(&folder.path().join("g.sqlite")));
    let sql = rusqlite::Connection::open(folder.path().join("g.sqlite")).unwrap();
    let form: i64 = sql
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    assert_eq!(usize::try_from(form), Ok(STEPS.len()));
}

/// A file as the version with this form left it.
fn of_form(form: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("g.sqlite");
    let sql = rusqlite::Connection::open(&path).unwrap();
    for step in &STEPS[..form] {
        sql.execute_batch(step).unwrap();
    }
    let rubric = include_str!("../../../../examples/intro-course/rubric.yaml");
    sql.execute_batch(
        "INSERT INTO setting VALUES ('sample', '1');
         INSERT INTO course VALUES (1, 'Old', 0);
         INSERT INTO assignment VALUES (1, 1, 'mean-above', 'Old', 0);
         INSERT INTO person (id, name, role, created) VALUES (1, '', 'teacher', 0);",
    )
    .unwrap();
    sql.execute(
        "INSERT INTO rubric_version (id, assignment, number, source, templates, created) VALUES (1, 1, 1, ?1, '[]', 0)",
        [rubric],
    )
    .unwrap();
    let submission = serde_json::to_string(&Submission::of_text("a.py", "x = 1")).unwrap();
    sql.execute(
        "INSERT INTO submission (id, assignment, name, draw, content, created) VALUES (1, 1, 'a', 7, ?1, 0)",
        [submission],
    )
    .unwrap();
    sql.execute_batch(
        "INSERT INTO review (submission, version, decision, text, text_for, second_look, note, changed, person)
            VALUES (1, 3, 'approved', '[]', '{}', 0, 'note', 5, 1);
         INSERT INTO human_value VALUES (1, 'correct', 4000);
         INSERT INTO run VALUES (1, 1, 1, 1, '{}', 0, 1, 'done', NULL);
         INSERT INTO model_call (id, run, submission, job, model, weights, question, sampling, is_answered, record, created)
            VALUES (1, 1, 1, 'feedback', 'm', '', 'q', '{}', 1, '{\"usage\": {\"prompt_tokens\": 9, \"prompt_tokens_details\": {\"cached_tokens\": 4}}}', 0);",
    )
    .unwrap();
    // What later forms wrote beside it.
    if form >= 2 {
        sql.execute_batch("UPDATE model_call SET prompt_tokens = 9, cached_tokens = 4")
            .unwrap();
    }
    if form >= 5 {
        sql.execute_batch("UPDATE submission SET key = name")
            .unwrap();
    }
    sql.pragma_update(None, "user_version", i64::try_from(form).unwrap())
        .unwrap();
    drop(sql);
    let store = open(&path);
    let work = store.read_now(|reader| reader.work(1)).unwrap().unwrap();
    assert_eq!((work.seen.review, work.review.note.as_str()), (3, "note"));
    assert_eq!(work.review.points["correct"].to_string(), "4");
    let sums = store.read_now(|reader| reader.run_sums(1)).unwrap();
    assert_eq!(
        (sums.calls, sums.prompt_tokens, sums.cached_tokens),
        (1, 9, 4)
    );
    let same = Submission::of_text("a.py", "x = 1");
    let handed = write(&store, |writer| writer.hand_in(1, &same));
    assert_eq!(handed, Handed::Same(1));
}

/// What an earlier version kept file by file gives its place to the one submission of its student.
#[test]
fn files_of_an_earlier_version_become_one_submission() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("g.sqlite"));
    for name in [
        "doejane_111_9000_hw",
        "doejane_111_9001_more",
        "roejohn_112_9002_hw",
    ] {
        let old = Submission::of_text(&format!("{name}.py"), "x = 1");
        write(&store, |writer| writer.hand_in(1, &old));
    }
    let mut new = Submission::of_text("doejane.py", "x = 1");
    new.origin = Origin {
        system: System::Canvas,
        students: vec![Student {
            name: "doejane".to_owned(),
            ids: vec!["111".to_owned()],
        }],
        ..Origin::default()
    };
    let handed = write(&store, |writer| writer.hand_in(1, &new));
    assert!(matches!(handed, Handed::Again(_)), "{handed:?}");
    let works = store.read_now(|reader| reader.works(1)).unwrap();
    let names: Vec<&str> = works.iter().map(|work| work.name.as_str()).collect();
    let of = |part: &str| names.iter().filter(|name| name.contains(part)).count();
    assert_eq!((of("doejane"), of("roejohn")), (1, 1), "{names:?}");
}

/// Students are told apart by what a learning system knows them by, whatever they and their files are called.
#[test]
fn a_student_is_one_whatever_the_files_are_called() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("g.sqlite"));
    let of = |name: &str, id: &str, text: &str| {
        let mut submission = Submission::of_text(&format!("{name}.py"), text);
        submission.origin = Origin {
            system: System::Canvas,
            students: vec![Student {
                name: name.to_owned(),
                ids: vec![id.to_owned()],
            }],
            ..Origin::default()
        };
        submission
    };
    let hand_in = |one: Submission| write(&store, |writer| writer.hand_in(1, &one));
    let Handed::New(first) = hand_in(of("huberanna", "101", "x = 1")) else {
        panic!("the first one is new");
    };
    let second = hand_in(of("huberanna", "102", "x = 2"));
    assert!(matches!(second, Handed::New(_)), "{second:?}");
    let again = hand_in(of("huberanna (101)", "101", "x = 3"));
    assert!(matches!(again, Handed::Again(_)), "{again:?}");
    let works = store.read_now(|reader| reader.works(1)).unwrap();
    let mut names: Vec<&str> = works
        .iter()
        .map(|work| work.name.as_str())
        .filter(|name| name.starts_with("huber"))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["huberanna (101)", "huberanna (102)"]);
    let earlier = store.read_now(|reader| reader.work(first)).unwrap();
    assert_eq!(earlier.unwrap().replaced_by, Some(again.id()));
}

/// What a version took in that kept no pictures gets them when it is handed in again, and keeps its values.
#[test]
fn pictures_come_to_a_work_that_was_there() {
    const PLOT: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"));
    let rubric = Rubric::parse(include_str!(
        "../../../../examples/intro-course/rubric.yaml"
    ));
    let rubric = rubric.unwrap();
    let notebook = |plot: &str| {
        let output = serde_json::json!({"data": {"image/png": plot}});
        let notebook = serde_json::json!({"cells": [{"cell_type": "code", "outputs": [output]}]});
        Submission::of_text("a.ipynb", &notebook.to_string())
    };
    let full = notebook(PLOT);
    let mut bare = full.clone();
    bare.files[0].pictures.clear();
    let assignment = write(&store, |writer| writer.take_in("C", &rubric, &[]));
    let hand_in = |submission| write(&store, |writer| writer.hand_in(assignment, submission));
    let id = hand_in(&bare).id();
    assert_eq!(hand_in(&full), Handed::Same(id));
    assert_eq!(hand_in(&full), Handed::Same(id));
    let (_, picture) = &full.files[0].pictures[0];
    let kept = store.read_now(|reader| reader.picture(id, &picture.digest));
    let kept = kept.unwrap().unwrap();
    assert_eq!(kept, ("image/png".to_owned(), picture.bytes.clone()));
    let of_another = store.read_now(|reader| reader.picture(id + 1, &picture.digest));
    assert_eq!(of_another.unwrap(), None);
    let shown = store
        .read_now(|reader| reader.submission(id))
        .unwrap()
        .unwrap();
    assert_eq!(shown.files[0].pictures[0].1.digest, picture.digest);
    // Another plot in the same place is another work.
    let other = notebook(&PLOT.replace("QDwADhgGA", "QDwADhgGB"));
    assert!(matches!(hand_in(&other), Handed::Again(_)));
}
