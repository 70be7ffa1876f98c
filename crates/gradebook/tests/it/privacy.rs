//! No model is shown who is in a course, however somebody came to be known: by what was handed in, by the teacher's own
//! gradebook that came beside it, or by one that came later.

use tandem_gradebook::store::Reader;

use crate::models::Models;
use crate::site::Site;
use crate::upload::{send_to, take, zipped};

const RUBRIC: &str = include_str!("../../../../examples/intro-course/rubric.yaml");

const GRADEBOOK: &str = "Student,ID,SIS User ID,SIS Login ID,Section,Mean above a limit (77)\r\n\
    \u{20}   Points Possible,,,,,10.00\r\n\
    \"Lovelace, Ada\",1001,s0815471,ada@school.example,A,\r\n\
    \"Brandt, Jörg\",1002,31415926,jbrandt,A,\r\n";

/// What two students hand in, who write who they are and with whom they worked.
fn works() -> Vec<u8> {
    let ada = "# Ada Lovelace, s0815471, with Joerg Brandt\ndef ada_lovelace():\n    return 'ada@school.example'\n";
    let jorg = "\"\"\"Jörg Brandt (jbrandt)\"\"\"\nx = open('{HOME}/jbrandt/x.csv')  # 31415926\n";
    let jorg = jorg.replace("{HOME}", concat!("/", "home"));
    zipped(&[
        ("lovelaceada_1001_501_main.py", ada),
        (
            "lovelaceada_1001_502_ada-lovelace-notes.md",
            "By Ada Lovelace.",
        ),
        ("brandtjörg_LATE_1002_503_main.py", &jorg),
    ])
}

/// Grades all; what models were sent.
async fn asked(site: &Site, models: &Models, page: &str) -> String {
    models.asked.lock().unwrap().clear();
    let form = [
        ("what", "all"),
        ("analysis", "code"),
        ("feedback", "words"),
        ("mode", "after"),
    ];
    let started = site.post(page, &form).await;
    assert_eq!(started.status(), 303, "{}", started.text().await.unwrap());
    for _ in 0..400 {
        let ended = site.gradebook.store().read_now(|reader: &Reader<'_>| {
            let assignment = reader.assignments()?[0].id;
            Ok(reader.runs(assignment)?[0].ended.is_some())
        });
        if ended.unwrap() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    let asked = models.asked.lock().unwrap().join("\n");
    assert!(asked.contains("def ada_lovelace"), "code stays: {asked}");
    asked
}

fn traces(asked: &str) -> Vec<&'static str> {
    let lower = asked.to_lowercase();
    let all = [
        "ada lovelace",
        "ada-lovelace",
        "s0815471",
        "joerg brandt",
        "jörg brandt",
        "jbrandt",
        "ada@school",
        "31415926",
        "lovelaceada",
        "brandtjörg",
    ];
    all.into_iter()
        .filter(|trace| lower.contains(trace))
        .collect()
}

#[tokio::test]
async fn no_model_is_shown_who_is_in_a_course() {
    let site = Site::new().await;
    let models = Models::default();
    site.gradebook.connect(models.serve().await);
    let works = works();
    let mut parts = vec![
        ("course", None, b"Private".as_slice()),
        ("works", Some("submissions.zip"), works.as_slice()),
        ("rubric", Some("r.yaml"), RUBRIC.as_bytes()),
    ];
    // Whoever handed something in is known by that, and the others by the gradebook, which comes later.
    let (_, page) = take(&site, &parts, &[]).await;
    let first = asked(&site, &models, &page).await;
    let left = traces(&first);
    assert!(
        !left.contains(&"ada lovelace") && left.contains(&"s0815471"),
        "{left:?}"
    );
    let assignment = site
        .gradebook
        .store()
        .read_now(|r| Ok(r.assignments()?[0].id))
        .unwrap();
    let sheet = [("sheet", Some("grades.csv"), GRADEBOOK.as_bytes())];
    let sent = send_to(&site, &format!("/a/{assignment}/sheet"), &sheet).await;
    assert_eq!(sent.status(), 303);
    // What a model was shown of somebody is stale now.
    let second = asked(&site, &models, &page).await;
    assert_eq!(traces(&second), Vec::<&str>::new(), "{second}");
    // The pages show the files as they are, and the prompt as it was sent.
    let work = site
        .gradebook
        .store()
        .read_now(|r| Ok(r.works(assignment)?[0].id))
        .unwrap();
    let shown = site.get(&format!("/w/{work}")).await.text().await.unwrap();
    assert!(shown.contains("Ada Lovelace, s0815471"), "{shown}");
    let prompt = site
        .get(&format!("/w/{work}/prompt"))
        .await
        .text()
        .await
        .unwrap();
    assert_eq!(
        traces(prompt.split("# Submission").nth(1).unwrap()),
        Vec::<&str>::new()
    );
    // All at once gives the same prompts, and what was graded once is not graded again.
    parts.push(("sheet", Some("grades.csv"), GRADEBOOK.as_bytes()));
    let (shown, page) = take(&site, &parts, &[]).await;
    assert!(shown.contains("is there already"), "{shown}");
    let start = site.get(&page).await.text().await.unwrap();
    assert!(start.contains("There is nothing to grade"), "{start}");
}
