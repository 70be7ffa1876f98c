//! Runs without pages: a folder of results, and the gradebook in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tandem_gradebook::store::{By, Role, WriteError};
use tandem_gradebook::{Batch, Gradebook, GradebookError};
use tandem_grading::review::Change;
use tandem_grading::{
    EarlierRun, FeedbackMode, Folder, Graded, GradingConfig, Rubric, Status, Submission, inputs,
};

use crate::models::Models;
use crate::runs::rubric;

fn submissions(texts: &[&str]) -> Vec<Submission> {
    let one = |(i, text): (usize, &&str)| {
        Submission::of_text(&format!("w{i}.py"), &format!("def f(x):\n    {text}\n"))
    };
    texts.iter().enumerate().map(one).collect()
}

/// A folder, and models that are asked.
struct Grading {
    dir: tempfile::TempDir,
    models: Models,
    server: tandem_gradebook::ModelServer,
}

impl Grading {
    async fn new() -> Self {
        let models = Models::default();
        *models.weights.lock().unwrap() = "blue".to_owned();
        Self {
            dir: tempfile::tempdir().unwrap(),
            server: models.serve().await,
            models,
        }
    }

    fn open(&self) -> Gradebook {
        let gradebook = Gradebook::open_alone(&self.dir.path().join("gradebook.sqlite")).unwrap();
        gradebook.connect(self.server.clone());
        gradebook
    }

    /// One process: what came out, and how many requests it made.
    async fn run(
        &self,
        rubric: &Rubric,
        submissions: &[Submission],
        earlier_run: EarlierRun,
    ) -> (Result<Vec<Graded>, GradebookError>, usize) {
        let folder = match Folder::open(self.dir.path(), rubric, submissions, earlier_run) {
            Ok(folder) => folder,
            Err(error) => return (Err(error.into()), 0),
        };
        self.models.asked.lock().unwrap().clear();
        let gradebook = self.open();
        let batch = Batch {
            course: "Course",
            rubric,
            roster: None,
            submissions,
            feedback_mode: FeedbackMode::After,
            earlier_run,
            folder: &folder,
            report: &|_| {},
        };
        let graded = gradebook.grade(&batch).await;
        (graded, self.models.asked.lock().unwrap().len())
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let files = entries.map(|e| e.unwrap().path());
        let named = files.map(|path| (path.file_name().unwrap().to_owned(), path));
        named
            .map(|(name, path)| (name.into_string().unwrap(), path))
            .filter(|(name, _)| !name.starts_with("gradebook"))
            .map(|(name, path)| (name, std::fs::read(path).unwrap()))
            .collect()
    }
}

fn scores(graded: &[Graded]) -> Vec<(String, Option<f64>, Status)> {
    let one = |g: &Graded| (g.name.clone(), g.score, g.status);
    graded.iter().map(one).collect()
}

fn results(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("results.json")).unwrap()).unwrap()
}

#[tokio::test]
async fn a_folder_goes_on_with_what_its_gradebook_has() {
    let grading = Grading::new().await;
    let rubric = rubric(&[]);
    let works = submissions(&["return 1", "return 2", "return 3"]);
    let (first, asked) = grading.run(&rubric, &works[..2], EarlierRun::Refuse).await;
    let first = first.unwrap();
    assert_eq!((first.len(), asked), (2, 4));
    let before = grading.files();
    assert!(before.contains_key("w0.md") && before.contains_key("w1.json"));
    assert_eq!(results(grading.dir.path())["ai_suggested"], true);

    let (refused, asked) = grading.run(&rubric, &works, EarlierRun::Refuse).await;
    assert!(refused.unwrap_err().to_string().contains("--resume"));
    assert_eq!(asked, 0);
    // Also where the files are gone and the gradebook is there.
    for name in before.keys() {
        std::fs::remove_file(grading.dir.path().join(name)).unwrap();
    }
    let (refused, _) = grading.run(&rubric, &works, EarlierRun::Refuse).await;
    assert!(refused.unwrap_err().to_string().contains("--resume"));

    let (all, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    let all = all.unwrap();
    assert_eq!(asked, 2);
    assert_eq!(scores(&all)[..2], scores(&first)[..]);
    // The calls of results that were there are in them, too.
    assert!(all.iter().all(|one| one.jobs.len() == 2));
    let after = grading.files();
    for name in ["w0.md", "w1.md"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    assert_eq!(
        results(grading.dir.path())["submissions"]
            .as_array()
            .unwrap()
            .len(),
        3
    );

    // What was damaged is written again, from the gradebook.
    std::fs::write(grading.dir.path().join("w0.md"), "junk").unwrap();
    std::fs::remove_file(grading.dir.path().join("w1.md")).unwrap();
    let (again, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert_eq!((scores(&again.unwrap()), asked), (scores(&all), 0));
    for name in ["w0.md", "w1.md"] {
        assert_eq!(grading.files()[name], before[name], "{name}");
    }
    // What was there stays, byte for byte.
    assert_eq!(grading.files()["w2.json"], after["w2.json"]);
    let changed = submissions(&["return 1", "return 2", "return 4"]);
    let (_, asked) = grading.run(&rubric, &changed, EarlierRun::Resume).await;
    assert_eq!(asked, 2);
    let (_, asked) = grading.run(&rubric, &changed, EarlierRun::Replace).await;
    assert_eq!(asked, 6);
}

/// What was cut at its limit would be cut once more: it is asked for where the limit is another one, or somebody wants it.
#[tokio::test]
async fn an_answer_that_was_cut_is_not_asked_for_again_with_the_same_limit() {
    let mut grading = Grading::new().await;
    grading.models.cut.store(true, Ordering::Relaxed);
    let (rubric, works) = (rubric(&[]), submissions(&["return 1", "return 2"]));
    let (first, asked) = grading.run(&rubric, &works, EarlierRun::Refuse).await;
    let first = first.unwrap();
    assert_eq!(asked, 4);
    let lacks_text = |g: &Graded| g.status == Status::NeedsReview && g.feedback.is_none();
    assert!(first.iter().all(lacks_text));
    let (again, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert_eq!((scores(&again.unwrap()), asked), (scores(&first), 0));

    grading.models.cut.store(false, Ordering::Relaxed);
    let (again, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert!(again.unwrap().iter().all(lacks_text) && asked == 0);
    grading.server.feedback.max_tokens += 1;
    let (more, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert_eq!(asked, 2);
    assert!(more.unwrap().iter().all(|g| g.feedback.is_some()));
    // What is complete is so under any limit: it is neither lost nor asked for again.
    for tokens in [20, 4000] {
        grading.server.feedback.max_tokens = tokens;
        let (same, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
        assert_eq!(asked, 0);
        assert!(same.unwrap().iter().all(|g| g.feedback.is_some()));
    }

    // By chance an answer may come out shorter.
    grading.server.feedback.temperature = 0.5;
    grading.models.cut.store(true, Ordering::Relaxed);
    let (_, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert_eq!(asked, 2);
    let (_, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert_eq!(asked, 2);
}

#[tokio::test]
async fn points_of_another_rubric_are_computed_and_words_are_asked_for() {
    let grading = Grading::new().await;
    let works = submissions(&["return 1"]);
    let (first, _) = grading.run(&rubric(&[]), &works, EarlierRun::Refuse).await;
    let first = first.unwrap();
    let halved = rubric(&[
        ("max_points: 10", "max_points: 8"),
        ("max_points: 4", "max_points: 2"),
        ("full, points: 4", "full, points: 2"),
        ("partial, points: 2", "partial, points: 1"),
    ]);
    let (second, asked) = grading.run(&halved, &works, EarlierRun::Resume).await;
    let second = second.unwrap();
    assert_eq!(asked, 0);
    let (before, now) = (&first[0], &second[0]);
    let points = |graded: &Graded| graded.criteria[0].points.as_f64();
    assert_eq!(points(now), points(before) / 2.0);
    assert_eq!(now.score.unwrap(), before.score.unwrap() - points(now));
    // The file says the same as the result.
    let file = std::fs::read(grading.dir.path().join("w0.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(
        (&file["score"], &file["max_score"]),
        (&json!(now.score), &json!(8.0))
    );
}

#[tokio::test]
async fn a_batch_that_is_dropped_or_whose_models_go_away_goes_on() {
    let grading = Grading::new().await;
    let rubric = rubric(&[]);
    let works = submissions(&["return 1", "return 2", "return 3", "return 4"]);
    grading.models.pause_ms.store(3, Ordering::Relaxed);
    let one = async {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            if grading.files().keys().any(|name| name.ends_with(".json")) {
                break;
            }
        }
    };
    tokio::select! {
        _ = grading.run(&rubric, &works, EarlierRun::Refuse) => panic!("it ended"),
        () = one => {}
    }
    let before = grading.files();
    grading.models.are_away.store(true, Ordering::Relaxed);
    let (away, _) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    let away = away.unwrap_err().to_string();
    assert!(away.contains("does not answer"), "{away}");
    assert_eq!(grading.files(), before, "nothing fails");
    grading.models.are_away.store(false, Ordering::Relaxed);
    grading.models.pause_ms.store(0, Ordering::Relaxed);
    let (all, _) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert!(all.unwrap().iter().all(|one| one.status == Status::Graded));
    // No run is left that seems to wait for somebody.
    let runs = grading
        .open()
        .store()
        .read_now(|reader| reader.runs(1))
        .unwrap();
    assert!(
        runs.len() == 3 && runs.iter().all(|run| run.is_done()),
        "{runs:?}"
    );
    for (name, bytes) in before {
        assert_eq!(grading.files()[&name], bytes, "{name} was made again");
        let Some(i) = name
            .strip_prefix('w')
            .and_then(|name| name.strip_suffix(".json"))
        else {
            continue;
        };
        let code = format!("return {}", i.parse::<usize>().unwrap() + 1);
        let answered = grading.models.answered.lock().unwrap();
        let times = answered.iter().filter(|(asked, _)| asked.contains(&code));
        assert!(
            times.clone().count() == 2 && times.clone().all(|(_, n)| *n == 1),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_folder_of_an_earlier_version_is_taken_over() {
    let grading = Grading::new().await;
    let rubric = rubric(&[]);
    let works = submissions(&["return 1", "return 2"]);
    let (made, _) = grading.run(&rubric, &works, EarlierRun::Refuse).await;
    let made = made.unwrap();
    let mut config = GradingConfig::new(
        &grading.server.base_url,
        grading.server.code_analysis.clone(),
        grading.server.feedback.clone(),
    );
    config.keep = false;
    config.served_by = "code=blue words=blue".to_owned();
    for file in std::fs::read_dir(grading.dir.path()).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let mut file = serde_json::to_value(&made[0]).unwrap();
    file["form"] = 2.into();
    file["inputs"] = inputs(&config, &rubric, &works[0]).into();
    std::fs::write(grading.dir.path().join("w0.json"), file.to_string()).unwrap();

    let (all, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert_eq!((scores(&all.unwrap()), asked), (scores(&made), 2));
    let (again, asked) = grading.run(&rubric, &works, EarlierRun::Resume).await;
    assert_eq!((scores(&again.unwrap()), asked), (scores(&made), 0));
}

#[tokio::test]
async fn two_batches_do_not_write_to_one_folder_and_what_cannot_be_written_is_said() {
    let grading = Grading::new().await;
    let rubric = rubric(&[]);
    let works = submissions(&["return 1", "return 2"]);
    grading.models.pause_ms.store(3, Ordering::Relaxed);
    let second = async {
        while grading.models.asked.lock().unwrap().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        grading.run(&rubric, &works, EarlierRun::Replace).await.0
    };
    let (first, second) = tokio::join!(grading.run(&rubric, &works, EarlierRun::Refuse), second);
    first.0.unwrap();
    let second = second.unwrap_err().to_string();
    assert!(second.contains("another run"), "{second}");

    let other = submissions(&["return 1", "return 2", "return 3"]);
    std::fs::create_dir(grading.dir.path().join("w2.md")).unwrap();
    let (failed, _) = grading.run(&rubric, &other, EarlierRun::Resume).await;
    let failed = failed.unwrap_err().to_string();
    assert!(
        failed.contains("cannot write") && failed.contains("w2.md"),
        "{failed}"
    );
}

/// Whose name the gradebook has otherwise, and what a person has settled.
#[tokio::test]
async fn a_folder_calls_a_submission_as_it_came_and_says_what_is_settled() {
    let grading = Grading::new().await;
    let rubric = rubric(&[]);
    let works = submissions(&["return 1", "return 2"]);
    let known = |name: &str, id: &str| {
        let mut one = works[0].clone();
        one.name = name.to_owned();
        one.origin.system = tandem_grading::System::Canvas;
        one.origin.students = vec![tandem_grading::Student {
            name: "kim".to_owned(),
            ids: vec![id.to_owned()],
        }];
        one
    };
    let (first, _) = grading
        .run(&rubric, &[known("kim", "506")], EarlierRun::Refuse)
        .await;
    first.unwrap();
    let both = [known("kim", "505"), known("kim (506)", "506")];
    let (all, _) = grading.run(&rubric, &both, EarlierRun::Replace).await;
    let names: Vec<String> = all.unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["kim", "kim (506)"]);
    assert!(!grading.files().contains_key(".json"));
    let store = grading.open().store().clone();
    let settled = store.write_now(|writer| {
        let by = By {
            person: writer.person(Role::Teacher)?,
            session: "s",
            key: None,
        };
        let seen = writer.work(1)?.unwrap().seen;
        writer.change((1, seen), &by, &Change::Approve { confirmed: true })
    });
    settled.map_err(|e: WriteError| e.to_string()).unwrap();
    let (all, asked) = grading.run(&rubric, &both, EarlierRun::Replace).await;
    let notes: Vec<bool> = all
        .unwrap()
        .iter()
        .map(|one| {
            one.notes
                .iter()
                .any(|note| note.contains("a person has settled it"))
        })
        .collect();
    assert_eq!((notes, asked), (vec![false, true], 2));
}
