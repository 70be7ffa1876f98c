//! The store: what outlives a version, a person's values beside a new run's, and work that is handed in again.

use std::path::Path;

use tandem_gradebook::Gradebook;
use tandem_gradebook::store::{Handed, Reader, Role, Store, StoreError, WriteError, Writer};
use tandem_grading::Points;
use tandem_grading::review::Change;

fn open(path: &Path) -> Store {
    Gradebook::open(path).unwrap().store().clone()
}

fn write<T>(store: &Store, task: impl FnOnce(&Writer<'_>) -> rusqlite::Result<T>) -> T {
    let task = |writer: &Writer<'_>| task(writer).map(Ok::<T, StoreError>);
    store.write_now(task).unwrap()
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
        store.write_now(|writer| writer.change((1, 0), person, &change));
    done.unwrap();
    let (first, address) = (
        store.read_now(|reader| reader.works(1)).unwrap().len(),
        Gradebook::open(&path).unwrap().address("http://x"),
    );
    drop(store);
    let store = open(&path);
    let works = store
        .read_now(|reader: &Reader<'_>| reader.works(1))
        .unwrap();
    assert_eq!(works.len(), first, "the sample is put in once");
    let work = works.iter().find(|w| w.id == 1).unwrap();
    assert_eq!(work.review.points["empty"].to_string(), "1");
    assert_eq!(Gradebook::open(&path).unwrap().address("http://x"), address);
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
        store.write_now(|writer| writer.change((1, 0), person, &change));
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
        (&after.review, after.version),
        (&before.review, before.version)
    );
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
}

#[test]
fn undo_goes_back_step_by_step_and_only_over_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("g.sqlite"));
    let teacher = write(&store, |writer| writer.person(Role::Teacher));
    let assistant = write(&store, |writer| writer.person(Role::Assistant));
    let change = |version, person, change: Change| {
        let done: Result<(), WriteError> =
            store.write_now(|writer| writer.change((1, version), person, &change));
        done
    };
    let undo = |person| {
        let done: Result<_, WriteError> = store.write_now(|writer| writer.undo(1, person));
        done.map(|undone| undone.action)
    };
    change(0, teacher, Change::SecondLook(true)).unwrap();
    change(1, teacher, Change::Note("hm".into())).unwrap();
    assert!(matches!(undo(assistant), Err(WriteError::NothingToUndo)));
    change(2, assistant, Change::SecondLook(false)).unwrap();
    assert!(matches!(undo(teacher), Err(WriteError::Conflict)));
    assert_eq!(undo(assistant).unwrap(), "no second look wanted");
    assert_eq!(undo(teacher).unwrap(), "note written");
    assert_eq!(undo(teacher).unwrap(), "second look wanted");
    assert!(matches!(undo(teacher), Err(WriteError::NothingToUndo)));
    let work = store.read_now(|reader| reader.work(1)).unwrap().unwrap();
    assert_eq!(work.review, tandem_grading::review::Review::default());
    let history = store.read_now(|reader| reader.history(1)).unwrap();
    assert_eq!(history.len(), 3);
    assert!(history.iter().all(|past| past.is_undone));
}
