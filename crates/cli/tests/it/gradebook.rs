//! The gradebook of the program: a run that is killed again and again, and pages where no model is.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tandem_gradebook::Gradebook;
use tandem_gradebook::store::{By, Reader, Role, Work, WriteError};
use tandem_grading::review::Change;

use super::daemon::{Daemon, TANDEM};
use super::grade::COURSE;

const WORKS: usize = 40;
const KILLS: usize = 20;
/// A person's value, which no run touches.
const VALUE: &str = "0";

/// A command that serves pages, and a browser that was let in, so to speak.
struct Web {
    child: Child,
    base: String,
    http: reqwest::Client,
    cookie: String,
    _output: BufReader<std::process::ChildStdout>,
}

impl Web {
    async fn start(home: &Path, models: &[String]) -> Self {
        let (rubric, works) = (format!("{COURSE}/rubric.yaml"), home.join("works"));
        let works = works.to_str().expect("a path");
        let mut command = vec!["grade", "--web", "--course", "Killed"];
        command.extend(models.iter().map(String::as_str));
        command.extend(["--rubric", &rubric, works]);
        Self::of(home, &command).await
    }

    async fn of(home: &Path, command: &[&str]) -> Self {
        let mut child = Command::new(TANDEM)
            .args(command)
            .env("HOME", home)
            .env("TANDEM_DATA", home.join("data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut output = BufReader::new(child.stdout.take().expect("output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("gradebook ").expect("an address");
        // Server and the path of the gradebook, without that of the page.
        let at = address.find("/g-").expect("a gradebook") + 1;
        let end = address[at..].find(['/', '?']).expect("a token");
        let base = &address[..at + end];
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("a client");
        let entered = http.get(address).send().await.expect("a page");
        let cookie = entered.headers()["set-cookie"].to_str().expect("text");
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Self {
            base: base.to_owned(),
            child,
            http,
            cookie,
            _output: output,
        }
    }

    /// The server, without the path of the gradebook.
    fn server(&self) -> &str {
        self.base.rsplit_once('/').expect("a path").0
    }

    async fn get(&self, path: &str) -> String {
        let page = self.http.get(format!("{}{path}", self.base));
        let page = page.header("cookie", &self.cookie).send().await;
        page.expect("a page").text().await.expect("text")
    }

    /// Sends a form as a browser would; where it goes from there.
    async fn post(&self, path: &str, form: &str) -> String {
        let answer = self
            .http
            .post(format!("{}{path}", self.base))
            .header("cookie", &self.cookie)
            .header("origin", self.server())
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.to_owned())
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 303, "{path} {form}");
        answer.headers()["location"]
            .to_str()
            .expect("text")
            .to_owned()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        // SIGKILL, where there is such a thing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is kept of each work: its result, and how many.
fn results(file: &Path) -> HashMap<i64, (i64, String)> {
    let sql = rusqlite::Connection::open(file).expect("the store");
    let mut query = sql
        .prepare(
            "SELECT submission, count(*), group_concat(id || status || ifnull(score, '') || findings || ifnull(feedback, ''))
             FROM result WHERE run = 2 GROUP BY submission",
        )
        .expect("a query");
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)));
    let rows = query.query_map([], row).expect("rows");
    rows.collect::<Result<_, _>>().expect("rows")
}

/// Questions that were answered more than once.
fn asked_twice(file: &Path) -> i64 {
    let sql = rusqlite::Connection::open(file).expect("the store");
    let twice = "SELECT count(*) FROM (SELECT 1 FROM model_call WHERE is_answered = 1 AND run = 2
        GROUP BY submission, job, question HAVING count(*) > 1)";
    sql.query_row(twice, [], |row| row.get(0))
        .expect("a number")
}

/// A course of works that differ, made from these of the sample course.
fn hand_in(home: &Path, patterns: &[&str]) {
    let works = home.join("works");
    std::fs::create_dir(&works).expect("a folder");
    for (i, pattern) in patterns.iter().cycle().take(WORKS).enumerate() {
        let pattern = std::fs::read_to_string(format!("{COURSE}/submissions/{pattern}.py"));
        let text = format!("{}\n# {i}\n", pattern.expect("a submission"));
        std::fs::write(works.join(format!("w{i}.py")), text).expect("a file");
    }
}

fn model(name: &str, file: &str) -> String {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let file = models.join(format!("nano-{file}.gguf"));
    format!("{name}={}", file.display())
}

/// A server with both models, which outlives those that ask it; and how it is named on the command line.
fn models(home: &Path) -> (Daemon, Vec<String>) {
    let (coder, writer) = (model("coder", "coder"), model("writer", "writer"));
    let serve = ["--model", &coder, "--model", &writer, "--threads", "1"];
    let engine = Daemon::serve_from(home, &serve);
    let servers = [("code", "coder"), ("feedback", "writer")];
    let named = |(name, theirs)| format!("{name}=http://{}#{theirs}", engine.address);
    let servers = servers.into_iter();
    let servers = servers.flat_map(|of| ["--server".to_owned(), named(of)]);
    let servers = servers.collect();
    (engine, servers)
}

fn works(file: &Path) -> Vec<Work> {
    let gradebook = Gradebook::open(file).expect("the store");
    let read = |reader: &Reader<'_>| reader.works(2);
    gradebook.store().read_now(read).expect("works")
}

/// A person gives points to a work, if possible one that the run is done with.
async fn give_points(web: &Web, file: &Path) {
    let works = works(file);
    let work = works
        .iter()
        .find(|w| w.graded.is_some())
        .unwrap_or(&works[0])
        .id;
    let gradebook = Gradebook::open(file).expect("the store");
    let held = gradebook.store().read_now(|reader| reader.work(work));
    let seen = held.expect("a work").expect("a work").seen;
    let form = format!("do=points&version={seen}&criterion=correct&points={VALUE}");
    web.post(&format!("/w/{work}"), &form).await;
}

#[tokio::test]
async fn a_run_that_is_killed_at_any_moment_goes_on_where_it_was() {
    let home = tempfile::tempdir().expect("a folder");
    hand_in(home.path(), &["s02-off-by-one"]);
    let (_engine, servers) = models(home.path());
    let file = home.path().join("data/gradebook.sqlite");
    let mut web = Web::start(home.path(), &servers).await;
    let run = web.post("/a/2/run", "what=all").await;
    assert!(run.ends_with("/r/2"), "{run}");
    let mut seen: HashMap<i64, (i64, String)> = HashMap::new();
    let (mut pause, mut unfinished) = (130, 0);
    for kill in 0..KILLS {
        // Moments that look random, and are the same in each run of the test.
        pause = (pause * 7919 + 101) % 700;
        tokio::time::sleep(Duration::from_millis(50 + pause)).await;
        if kill == 3 {
            give_points(&web, &file).await;
        }
        drop(web);
        let now = results(&file);
        for (work, result) in &seen {
            assert_eq!(now.get(work), Some(result), "a result changed");
        }
        unfinished += usize::from(now.len() < WORKS);
        seen = now;
        assert_eq!(asked_twice(&file), 0);
        web = Web::start(home.path(), &servers).await;
        web.post("/r/2/continue", "").await;
    }
    assert!(
        unfinished > KILLS / 4,
        "it was over too soon to show anything"
    );
    let since = Instant::now();
    while results(&file).len() < WORKS {
        assert!(
            since.elapsed() < Duration::from_secs(120),
            "it does not end"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let done = results(&file);
    assert!(done.values().all(|(count, _)| *count == 1), "{done:?}");
    assert_eq!(asked_twice(&file), 0);
    let works = works(&file);
    let has_score = |w: &Work| w.graded.as_ref().is_some_and(|g| g.score.is_some());
    assert!(works.iter().all(has_score));
    let person = works.iter().filter(|w| !w.review.points.is_empty());
    let values: Vec<String> = person
        .map(|w| w.review.points["correct"].to_string())
        .collect();
    assert_eq!(values, [VALUE]);
}

/// When the prompt of each answered call was read, and when its answer was written, in milliseconds, with its work.
fn phases(file: &Path) -> Vec<(i64, [f64; 2], [f64; 2])> {
    let sql = rusqlite::Connection::open(file).expect("the store");
    let query = "SELECT submission, record FROM model_call WHERE run = 2 AND is_answered = 1";
    let mut query = sql.prepare(query).expect("a query");
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, String>(1)?));
    let rows = query.query_map([], read).expect("rows");
    let rows = rows.map(|row: rusqlite::Result<(i64, String)>| row.expect("a row"));
    let spans = |(work, record): (i64, String)| {
        let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
        let phase = |name: &str| record["tandem"]["phases_ms"][name].as_f64().expect(name);
        let start = record["started_ms"].as_f64().expect("a start");
        let reads = start + phase("queue") + phase("tokenize");
        let writes = start + phase("first_token");
        let (reads, writes) = (
            [reads, reads + phase("prefill")],
            [writes, writes + phase("decode")],
        );
        (work, reads, writes)
    };
    rows.map(spans).collect()
}

#[tokio::test]
async fn while_one_work_is_written_the_next_one_is_read() {
    let home = tempfile::tempdir().expect("a folder");
    // Equal ones would go in step.
    let patterns = ["s01-complete", "s02-off-by-one", "s03-crashes-on-empty"];
    hand_in(home.path(), &patterns);
    let models = [("code", "coder"), ("feedback", "writer")];
    let models = models.map(|(name, file)| ["--model".to_owned(), model(name, file)]);
    let web = Web::start(home.path(), &models.concat()).await;
    let run = web.post("/a/2/run", "what=all").await;
    let file = home.path().join("data/gradebook.sqlite");
    let since = Instant::now();
    let mut strips = String::new();
    while results(&file).len() < WORKS {
        let limit = Duration::from_secs(400);
        assert!(since.elapsed() < limit, "it does not end");
        let page = web
            .http
            .get(format!("{}{run}", web.server()))
            .header("cookie", &web.cookie);
        let page = page
            .send()
            .await
            .expect("a page")
            .text()
            .await
            .expect("text");
        if page.contains("class=\"p-prefill\"") && page.contains("class=\"p-decode\"") {
            strips = page;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(
        strips.contains("class=\"lane\""),
        "the page shows both on a machine's strip"
    );
    let calls = phases(&file);
    let is_beside = |a: &[f64; 2], b: &[f64; 2]| a[1].min(b[1]) - a[0].max(b[0]) > 1.0;
    let beside = calls
        .iter()
        .flat_map(|one| calls.iter().map(move |other| (one, other)));
    let beside = beside.filter(|(one, other)| one.0 != other.0 && is_beside(&one.2, &other.1));
    let count = beside.count();
    assert!(count > 2, "{count} of {}", calls.len());
}

/// Approves a work of the sample as it stands.
fn approve(file: &Path, work: i64) {
    let gradebook = Gradebook::open(file).expect("the store");
    let approved: Result<(), WriteError> = gradebook.store().write_now(|writer| {
        let by = By {
            person: writer.person(Role::Teacher)?,
            session: "s",
            key: None,
        };
        let seen = writer.work(work)?.expect("a work").seen;
        let change = Change::Approve { confirmed: true };
        writer.change((work, seen), &by, &change)
    });
    approved.expect("an approval");
}

/// `tandem course`: how it ended, and what it said.
fn course(home: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let command = Command::new(TANDEM)
        .arg("course")
        .args(arguments)
        .env("HOME", home)
        .env("TANDEM_DATA", home.join("data"))
        .current_dir(home)
        .output();
    let output = command.expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = output.status.code();
    (code, text + &String::from_utf8_lossy(&output.stderr))
}

/// The command line writes what the page does: approved grades, into a file of one's own, and says what it would write.
#[test]
fn grades_leave_by_the_command_line() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("data/gradebook.sqlite");
    approve(&file, 1);
    let course = |arguments: &[&str]| course(home.path(), arguments);
    let (_, list) = course(&["list"]);
    assert!(
        list.contains("   1  ") && list.contains("/Mean above a limit"),
        "{list}"
    );
    let name = Gradebook::open(&file)
        .expect("the store")
        .store()
        .read_now(|r| r.work(1));
    let name = name.expect("a state").expect("a work").name;
    let own = format!(
        "Student,ID,SIS Login ID,Section,Mean above a limit (5)\n\"A, B\",1,{name},S,\n\"C, D\",2,cd,S,\n"
    );
    std::fs::write(home.path().join("own.csv"), &own).expect("a file");
    let export = ["export", "1", "--into", "own.csv"];
    let (code, shown) = course(&[&export[..], &["--dry-run"]].concat());
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains("1 approved") && shown.contains("1 not submitted"),
        "{shown}"
    );
    assert!(
        shown.contains("1 grades in the file, 1 cells change"),
        "{shown}"
    );
    assert!(!home.path().join("out.csv").exists());
    let out = [&export[..], &["--out", "out.csv"]].concat();
    let (code, shown) = course(&out);
    assert_eq!(code, Some(0), "{shown}");
    let written = std::fs::read_to_string(home.path().join("out.csv")).expect("a file");
    let others = written.replacen(&format!("1,{name},S,"), "", 1);
    let grade = others
        .split("\"A, B\",")
        .nth(1)
        .and_then(|rest| rest.lines().next());
    let grade = grade.expect("a grade").to_owned();
    assert!(grade.parse::<f64>().is_ok(), "{written}");
    assert_eq!(
        written,
        own.replace(&format!("{name},S,\n"), &format!("{name},S,{grade}\n"))
    );
    // Nothing is written over what is there, and nobody is sent to a column that is not there.
    let (code, refused) = course(&out);
    assert_eq!(code, Some(1));
    assert!(refused.contains("is there already"), "{refused}");
    let (code, refused) = course(&[&export[..], &["--column", "x", "--dry-run"]].concat());
    assert_eq!(code, Some(1));
    assert!(
        refused.contains("it has: Mean above a limit (5)"),
        "{refused}"
    );
    let (code, shown) = course(&["export", "1", "--as", "feedback", "--out", "f.zip"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        std::fs::read(home.path().join("f.zip"))
            .expect("a zip")
            .starts_with(b"PK")
    );
}

/// What is graded can be reviewed where nothing can be asked: on a machine without a model, or years later.
#[tokio::test]
async fn a_gradebook_opens_without_a_model() {
    let home = tempfile::tempdir().expect("a folder");
    let web = Web::of(home.path(), &["course", "open"]).await;
    assert!(web.get("/w/1").await.contains("data-work"));
    assert!(web.get("/a/1/run").await.contains("No model is loaded"));
}

/// A gradebook is copied whole, and what nobody used is deleted, once it is said what would go.
#[test]
fn a_gradebook_is_backed_up_and_purged() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("data/gradebook.sqlite");
    approve(&file, 1);
    let course = |arguments: &[&str]| course(home.path(), arguments);
    let (code, said) = course(&["backup", "b.sqlite"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(course(&["backup", "b.sqlite"]).0, Some(1));
    let (_, list) = course(&["list"]);
    assert_eq!(course(&["list", "--gradebook", "b.sqlite"]).1, list);
    assert_eq!(course(&["list", "--gradebook", "none.sqlite"]).0, Some(1));
    // Nothing is as old as that.
    let (code, said) = course(&["purge", "--unused-for", "30"]);
    assert_eq!((code, said.trim()), (Some(0), "nothing is that old"));
    let sql = rusqlite::Connection::open(&file).expect("the store");
    let old = "UPDATE assignment SET created = 1; UPDATE submission SET created = 1;
         UPDATE rubric_version SET created = 1; UPDATE run SET created = 1, ended = 1;
         UPDATE history SET created = 1;";
    sql.execute_batch(old).expect("older");
    drop(sql);
    let (_, would) = course(&["purge", "--unused-for", "30", "--dry-run"]);
    assert!(
        would.contains("would be deleted: ") && would.contains("1 approved grades have not"),
        "{would}"
    );
    assert_eq!(course(&["list"]).1, list);
    let (code, said) = course(&["purge", "--unused-for", "30"]);
    assert_eq!(code, Some(0));
    assert_eq!(said, would.replace("would be deleted", "deleted"));
    assert_eq!(course(&["list"]).1, "");
    // The backup has it still, and one student of it goes alone.
    let name = Gradebook::open_alone(&home.path().join("b.sqlite")).expect("the store");
    let name = name
        .store()
        .read_now(|r| r.work(1))
        .expect("a state")
        .expect("a work")
        .name;
    let delete = [
        "delete",
        "1",
        "--student",
        name.as_str(),
        "--gradebook",
        "b.sqlite",
    ];
    let (code, said) = course(&delete);
    assert!(
        code == Some(0) && said.starts_with(&format!("deleted: {name}, 1 submissions")),
        "{said}"
    );
    let (code, said) = course(&delete);
    assert!(
        code == Some(1) && said.contains("nobody is called"),
        "{said}"
    );
}

/// Two runs on the same submissions, and points that persons gave, side by side.
#[test]
fn runs_are_compared() {
    let home = tempfile::tempdir().expect("a folder");
    // Each has the sample as its one assignment.
    let [a, b] = ["a", "b"].map(|name| {
        let folder = home.path().join(name);
        let file = folder.join("gradebook.sqlite");
        drop(Gradebook::open(&file).expect("the store"));
        file
    });
    let compare = |arguments: &[&str]| {
        let output = Command::new(TANDEM)
            .arg("compare")
            .args(arguments)
            .current_dir(home.path())
            .output()
            .expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (
            output.status.code(),
            said + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (code, said) = compare(&["a", "b"]);
    assert_eq!(code, Some(0), "{said}");
    let all =
        "submissions have the same points for each criterion; the mean total changes by +0.00";
    assert!(said.contains(all), "{said}");
    // One value of one submission, and one submission without a score.
    let sql = rusqlite::Connection::open(&b).expect("the store");
    let (result, name): (i64, String) = sql
        .query_row(
            "SELECT result.id, submission.name FROM result JOIN submission ON submission.id = result.submission
             JOIN ai_value ON ai_value.result = result.id
             WHERE ai_value.criterion = 'correct' AND ai_value.points = 4000 LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .expect("a value");
    let lower = "UPDATE ai_value SET points = 2000, level = 'partial' WHERE result = ?1 AND criterion = 'correct'";
    assert_eq!(sql.execute(lower, [result]), Ok(1));
    drop(sql);
    let (_, said) = compare(&["a", "b"]);
    assert!(
        said.contains(&name) && said.contains("correct 4 → 2"),
        "{said}"
    );
    let (_, said) = compare(&["a", "b", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let compared = found["compared"].as_u64().expect("a number");
    assert_eq!(found["equal"].as_u64(), Some(compared - 1));
    assert_eq!(found["changes"][0]["name"], name.as_str());
    assert_eq!(found["criteria"][0]["equal"].as_u64(), Some(compared - 1));
    let bias = found["criteria"][0]["bias"].as_f64().expect("a number");
    assert!((bias + 2.0 / compared as f64).abs() < 1e-9, "{said}");
    // Points of a person, as a table; who has none there is left out, and named.
    let labels = format!("name,correct,empty\n{name},\"2,0\",1\nnobody,4,2\nblank,,\n");
    std::fs::write(home.path().join("labels.csv"), labels).expect("a file");
    let (code, said) = compare(&["labels.csv", "b/gradebook.sqlite"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("1 of 1") && said.contains("1 without points there"),
        "{said}"
    );
    for (arguments, why) in [
        (["labels.csv", "labels.csv"], "has the rubric"),
        (["none", "b"], "no folder of results"),
    ] {
        let (code, said) = compare(&arguments);
        assert!(code == Some(1) && said.contains(why), "{said}");
    }
    drop(a);
}
