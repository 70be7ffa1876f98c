//! A course of Canvas by its API: a server made from Canvas's documentation. No Canvas has answered here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tandem_gradebook::Gradebook;
use tandem_gradebook::store::{By, Role, WriteError};
use tandem_grading::review::Change;
use tandem_grading::{Draft, Item, ItemKind, Points, Rubric, System, load_submissions};

use super::daemon::TANDEM;
use super::tiny_http::{Answer, Asked, listen};

const TOKEN: &str = "7~secret";

/// What the server has: scores and comments by user.
#[derive(Default)]
struct State {
    scores: BTreeMap<u64, f64>,
    comments: BTreeMap<u64, Vec<String>>,
    /// Requests that changed something.
    puts: Vec<(u64, Value)>,
    /// How often it says that there were too many requests.
    limits: usize,
    /// Whose grade cannot be changed.
    locked: Option<u64>,
    /// A file that the other server does not have.
    broken: Option<String>,
    /// When one of them handed in again.
    again: Option<String>,
    /// The token came to a server that has files alone.
    leaked: bool,
}

struct Server {
    state: Arc<Mutex<State>>,
    url: String,
    /// A server that must not see the token, whatever the environment says.
    proxy: String,
    dir: tempfile::TempDir,
}

impl Server {
    fn new() -> Self {
        let state = Arc::new(Mutex::new(State {
            limits: 1,
            ..State::default()
        }));
        let (of_files, leaks) = (Arc::clone(&state), Arc::clone(&state));
        let files = listen(move |asked| {
            leaks.lock().expect("state").leaked |= asked.header("authorization").is_some();
            let broken = leaks.lock().expect("state").broken.clone();
            match asked.path.as_str() {
                path if broken.as_deref() == Some(path) => Answer::new(404, ""),
                "/x" => Answer::new(302, "").with("location", "/y"),
                _ => Answer::new(200, "def f():\n    return 1\n"),
            }
        });
        let address = Arc::new(Mutex::new(String::new()));
        let own = Arc::clone(&address);
        let server = listen(move |asked| {
            let own = own.lock().expect("address").clone();
            let mut state = of_files.lock().expect("state");
            answer(asked, &mut state, &own, &format!("http://{files}"))
        });
        let url = format!("http://{server}");
        address.lock().expect("address").clone_from(&url);
        let dir = tempfile::tempdir().expect("a folder");
        let proxy = format!("http://{files}");
        let this = Self {
            state,
            url,
            proxy,
            dir,
        };
        fs::write(this.path("token"), format!("{TOKEN}\n")).expect("a file");
        #[cfg(unix)]
        this.chmod(0o600);
        this
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    #[cfg(unix)]
    fn chmod(&self, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.path("token"), mode).expect("a mode");
    }

    /// `tandem canvas`: how it ended, and what it said.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(TANDEM)
            .args(["canvas", "--url", &self.url, "--token-file"])
            .arg(self.path("token"))
            .args(arguments)
            .env("TANDEM_DATA", self.path("data"))
            .env("HTTP_PROXY", &self.proxy)
            .env("http_proxy", &self.proxy)
            .env("ALL_PROXY", &self.proxy)
            .output()
            .expect("the binary runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!said.contains(TOKEN), "{said}");
        (output.status.code(), said)
    }

    fn puts(&self) -> Vec<(u64, Value)> {
        std::mem::take(&mut self.state.lock().expect("state").puts)
    }
}

/// As documented under Courses, Assignments, Submissions and Pagination.
fn answer(asked: &Asked, state: &mut State, own: &str, files: &str) -> Answer {
    let json = |value: &Value| Answer::new(200, value.to_string());
    if asked.header("authorization") != Some(&format!("Bearer {TOKEN}")) {
        return Answer::new(401, r#"{"errors":[{"message":"Invalid access token."}]}"#);
    }
    if state.limits > 0 {
        state.limits -= 1;
        return Answer::new(403, "403 Forbidden (Rate Limit Exceeded)")
            .with("x-rate-limit-remaining", "0.0");
    }
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    match (asked.method.as_str(), path) {
        ("GET", "/api/v1/courses") => json(&json!([{ "id": 7, "name": "Intro" }, { "id": 8 }])),
        ("GET", "/api/v1/courses/7/assignments") => json(&json!([assignment()])),
        ("GET", "/api/v1/courses/7/assignments/23") => json(&assignment()),
        ("GET", "/api/v1/courses/7/assignments/23/submissions") => {
            assert!(query.contains("user") && query.contains("submission_comments"));
            let all = submissions(state, own, files);
            let from = if query.contains("page=second") { 3 } else { 0 };
            let page = json(&json!(all[from..(from + 3).min(all.len())]));
            match from {
                0 => page.with(
                    "Link",
                    format!("<{own}{path}?page=first,1>; rel=\"current\",<{own}{path}?{query}&page=second>; rel=\"next\""),
                ),
                _ => page.with("Link", format!("<{own}{path}?page=first>; rel=\"first\"")),
            }
        }
        ("GET", "/files/91/download") => {
            Answer::new(302, "").with("location", format!("{files}/x"))
        }
        ("PUT", path) => {
            let user = path.rsplit('/').next().and_then(|user| user.parse().ok());
            let user: u64 = user.expect("a user");
            if state.locked == Some(user) {
                return Answer::new(403, r#"{"status":"unauthorized"}"#);
            }
            let body: Value = serde_json::from_slice(&asked.body).expect("JSON");
            if let Some(points) = body["submission"]["posted_grade"].as_str() {
                state.scores.insert(user, points.parse().expect("a number"));
            }
            if let Some(text) = body["comment"]["text_comment"].as_str() {
                let comments = state.comments.entry(user).or_default();
                comments.push(text.replace('\n', "\r\n"));
            }
            state.puts.push((user, body));
            json(&json!({ "user_id": user, "score": state.scores.get(&user) }))
        }
        _ => Answer::new(
            404,
            r#"{"errors":[{"message":"The specified resource does not exist."}]}"#,
        ),
    }
}

fn assignment() -> Value {
    json!({
        "id": 23, "name": "Loops, twice", "points_possible": 4.0, "grading_type": "points",
        "description": "<p>Write <b>f</b>.</p><ul><li>a &lt; b</li></ul>", "group_category_id": null,
        "rubric": [{ "id": "_1", "description": "Works", "long_description": "It does.", "points": 4.0, "ratings": [
            { "description": "all", "long_description": "In every case.", "points": 4.0 },
            { "description": "none", "long_description": "", "points": 0.0 }] }],
    })
}

fn submissions(state: &State, own: &str, files: &str) -> Vec<Value> {
    let one = |user: u64, name: &str, more: Value| {
        let comments = state.comments.get(&user).cloned().unwrap_or_default();
        let comments: Vec<Value> = comments.iter().map(|c| json!({ "comment": c })).collect();
        let mut one = json!({
            "user_id": user, "score": state.scores.get(&user), "submission_comments": comments, "late": false,
            "user": { "name": name, "sortable_name": name, "login_id": format!("u{user}"), "sis_user_id": null },
        });
        for (key, value) in more.as_object().expect("an object") {
            one[key] = value.clone();
        }
        one
    };
    let file =
        |id: u64, name: &str, url: String| json!({ "id": id, "display_name": name, "url": url });
    vec![
        one(
            101,
            "Ōkubo, Ren",
            json!({ "submission_type": "online_upload", "late": true,
            "attachments": [file(91, "a.py", format!("{own}/files/91/download")), file(92, "../b 1_2.py", format!("{files}/y"))] }),
        ),
        one(
            102,
            "O'Neil, Siobhán",
            json!({ "submission_type": "online_text_entry", "body": "<p>x = 1</p>" }),
        ),
        one(
            103,
            "王, 小明",
            json!({ "submission_type": "online_upload", "submitted_at": state.again.clone(),
            "attachments": [file(93, "c.py", format!("{own}/files/91/download"))] }),
        ),
        one(
            104,
            "Nobody, Ann",
            json!({ "submission_type": null, "attachments": null, "late": null }),
        ),
        one(
            105,
            "Excused, Eve",
            json!({ "submission_type": "online_text_entry", "body": "x = 2", "excused": true }),
        ),
    ]
}

/// Gives points to who was handed in under this number, and approves them.
fn approve(gradebook: &Gradebook, student: &str, points: &str) {
    let work = gradebook.store().read_now(|reader| {
        let all = reader.works(1)?;
        let mut found = None;
        for work in all {
            let origin = reader.submission(work.id)?.expect("a submission").origin;
            if origin.students[0].ids.contains(&student.to_owned()) {
                found = Some(work.id);
            }
        }
        Ok(found)
    });
    let work = work.expect("the store").expect("a work");
    let points: Points = serde_json::from_str(points).expect("points");
    let give = Change::Points {
        criterion: "works".to_owned(),
        points: Some(points),
    };
    let say = Change::Add(Item {
        kind: ItemKind::Strength,
        text: format!("The loop ends, {student}."),
    });
    for change in [give, say, Change::Approve { confirmed: true }] {
        let done: Result<(), WriteError> = gradebook.store().write_now(|writer| {
            let by = By {
                person: writer.person(Role::Teacher)?,
                session: "s",
                key: None,
            };
            let seen = writer.work(work)?.expect("a work").seen;
            writer.change((work, seen), &by, &change)
        });
        done.expect("a change");
    }
}

/// Takes in what was fetched.
fn take_in(server: &Server, fetched: &Path) -> Gradebook {
    let submissions = load_submissions(&[fetched.join("submissions")]).expect("submissions");
    let mut ids: Vec<(&str, usize)> = submissions
        .iter()
        .map(|one| {
            assert_eq!(one.origin.system, System::Canvas, "{}", one.name);
            (one.origin.students[0].ids[0].as_str(), one.files.len())
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [("101", 2), ("102", 1), ("103", 1), ("105", 1)]);
    let late: Vec<&str> = submissions
        .iter()
        .filter(|one| one.origin.is_late)
        .map(|one| one.origin.students[0].ids[0].as_str())
        .collect();
    assert_eq!(late, ["101"]);
    let rubric = fs::read_to_string(fetched.join("rubric.yaml")).expect("a rubric");
    let draft = Draft::read(&rubric, "rubric.yaml").expect("a draft");
    assert_eq!(draft.task, "Write f.\n\na < b");
    let rubric = Rubric::parse(&rubric).expect("a rubric");
    let gradebook = Gradebook::open_alone(&server.path("g.sqlite")).expect("a gradebook");
    gradebook
        .hand_in("Intro", &rubric, &submissions, None)
        .expect("taken in");
    gradebook
}

/// The numbers of course and assignment.
const PLACE: [&str; 4] = ["--course", "7", "--assignment", "23"];

/// Fetches the assignment, and takes in what came.
fn fetched(server: &Server) -> Gradebook {
    let (code, said) = server.run(&["list"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("7  Intro"), "{said}");
    let (_, said) = server.run(&["list", "--course", "7"]);
    assert!(said.contains("23  Loops, twice"), "{said}");

    // Where one of several files cannot be fetched, there is no part of the submission that looks whole.
    server.state.lock().expect("state").broken = Some("/y".to_owned());
    let part = server.path("part");
    let fetch = ["fetch", "--out", part.to_str().expect("a path")];
    let (code, said) = server.run(&[&fetch[..], &PLACE].concat());
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("not fetched: Ōkubo, Ren: "), "{said}");
    let names = fs::read_dir(part.join("submissions")).expect("a folder");
    let names = names.map(|one| one.expect("a file").file_name());
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().contains("_101_"))
    );
    server.state.lock().expect("state").broken = None;

    let fetched = server.path("course");
    let out = fetched.to_str().expect("a path");
    let fetch = [&["fetch", "--out", out][..], &PLACE].concat();
    let (code, said) = server.run(&fetch);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("4 of 5 students or groups handed something in"),
        "{said}"
    );
    assert!(!server.state.lock().expect("state").leaked);
    let (code, said) = server.run(&fetch);
    assert_eq!(code, Some(1), "a folder that is there: {said}");
    take_in(server, &fetched)
}

#[test]
fn a_course_goes_from_canvas_and_back_to_it() {
    let server = Server::new();
    let gradebook = fetched(&server);
    let file = server.path("g.sqlite");
    let file = file.to_str().expect("a path");
    let send = [
        &[
            "send",
            "--gradebook",
            file,
            "--with-feedback",
            "Loops, twice",
        ][..],
        &PLACE,
    ]
    .concat();
    let dry = [&send[..], &["--dry-run"]].concat();
    // Nothing is approved, so nothing goes, and nobody gets a 0.
    server.run(&send);
    assert!(server.puts().is_empty());
    approve(&gradebook, "101", "4");
    approve(&gradebook, "103", "0");
    // Who is excused gets no grade.
    approve(&gradebook, "105", "4");
    let (code, said) = server.run(&dry);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("the file has “EX” there"), "{said}");
    assert!(
        said.contains("2 grades in the file, 2 cells change"),
        "{said}"
    );
    assert!(server.puts().is_empty());
    // One is refused: the others are sent, and only the rest is sent the next time.
    server.state.lock().expect("state").locked = Some(103);
    let (code, said) = server.run(&send);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("not in Canvas as it should be: 王, 小明: "),
        "{said}"
    );
    assert!(said.contains("sent to Canvas: 1 students"), "{said}");
    assert_eq!(server.puts().len(), 1);
    server.state.lock().expect("state").locked = None;
    let (code, said) = server.run(&send);
    assert_eq!(code, Some(3), "{said}");
    let puts = server.puts();
    assert_eq!(puts.len(), 1);
    assert_eq!(
        (puts[0].0, &puts[0].1["submission"]["posted_grade"]),
        (103, &json!("0.00"))
    );
    let scores = server.state.lock().expect("state").scores.clone();
    assert_eq!(scores, BTreeMap::from([(101, 4.0), (103, 0.0)]));
    let comments = server.state.lock().expect("state").comments.clone();
    for user in [101, 103] {
        assert_eq!(comments[&user].len(), 1, "{comments:?}");
        assert!(comments[&user][0].contains(&format!("The loop ends, {user}.")));
    }
    // What is there is not sent again, also no comment.
    let (code, said) = server.run(&send);
    assert_eq!((code, server.puts().len()), (Some(3), 0), "{said}");
    approve(&gradebook, "103", "4");
    server.run(&send);
    let puts = server.puts();
    assert_eq!((puts.len(), puts[0].0), (1, 103));
    let comment = &puts[0].1["comment"]["text_comment"];
    let comment = comment.as_str().unwrap_or_default();
    assert_eq!(
        comment.matches("The loop ends, 103.").count(),
        2,
        "{puts:?}"
    );
    handed_in_again(&server, &gradebook, &send);
    assert!(!server.state.lock().expect("state").leaked);
}

/// Who handed in again since has no grade for that.
fn handed_in_again(server: &Server, gradebook: &Gradebook, send: &[&str]) {
    let again = Some("2999-01-01T00:00:00Z".to_owned());
    server.state.lock().expect("state").again = again;
    approve(gradebook, "103", "0");
    let (code, said) = server.run(send);
    assert_eq!((code, server.puts().len()), (Some(3), 0), "{said}");
    assert!(
        said.contains("王, 小明: handed in again in Canvas"),
        "{said}"
    );
    let all = [send, &["--resubmitted"]].concat();
    server.run(&all);
    assert_eq!(server.puts().len(), 1);
}

#[test]
fn a_token_is_for_its_owner_and_goes_to_no_plain_server() {
    let server = Server::new();
    fs::write(server.path("token"), "7~other").expect("a file");
    let (code, said) = server.run(&["list"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("the token may be wrong or over"), "{said}");
    let (code, said) = server.run(&["--url", "http://school.example", "list"]);
    assert_eq!(code, Some(2), "named twice: {said}");
    let output = Command::new(TANDEM)
        .args(["canvas", "--url", "http://school.example", "--token-file"])
        .arg(server.path("token"))
        .arg("list")
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("use https"), "{said}");
    #[cfg(unix)]
    {
        server.chmod(0o640);
        let (code, said) = server.run(&["list"]);
        assert_eq!(code, Some(1));
        assert!(said.contains("chmod 600"), "{said}");
    }
}
