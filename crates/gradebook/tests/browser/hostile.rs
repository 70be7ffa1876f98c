//! What students hand in is text, whatever it says.

use tandem_grading::load_submissions;

use crate::harness::{Browser, Site};

const EVIL: &str = "</span></div><script>window.__evil = 1</script><img src=x onerror=\"window.__evil = 2\">\
    <svg onload=\"window.__evil = 3\"><a href=\"javascript:window.__evil = 4\">x</a>";

/// What begins as a picture of another kind.
const NO_PLOT: &str = "PHN2ZyBvbmxvYWQ9IndpbmRvdy5fX2V2aWwgPSA5Ij4=";
/// One dot.
const PLOT: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// Hands in a work that means harm in every place that a student, or a model that obeys one, can write to.
fn hand_in(site: &Site) -> String {
    let (rubric, _, pattern) = site.pattern();
    let folder = site.folder().join("in");
    let name = "<img src=x onerror=window.__evil=5>&quot;";
    std::fs::create_dir_all(folder.join(name)).unwrap();
    let file = folder.join(name).join("<svg onload=window.__evil=6>.py");
    let long = "x".repeat(200_000);
    std::fs::write(file, format!("{EVIL}\n# {long}\n{{{{ 7*7 }}}}\n")).unwrap();
    let notebook = serde_json::json!({
        "nbformat": 4, "nbformat_minor": 5, "metadata": {},
        "cells": [
            { "cell_type": "markdown", "metadata": {}, "source": [EVIL] },
            { "cell_type": "code", "metadata": {}, "execution_count": 1, "source": "1", "outputs": [
                { "output_type": "display_data", "metadata": {}, "data": { "text/html": [EVIL], "text/plain": [EVIL] } },
                { "output_type": "display_data", "metadata": {}, "data": { "image/png": NO_PLOT } },
                { "output_type": "display_data", "metadata": {}, "data": { "image/svg+xml": [EVIL] } },
                { "output_type": "display_data", "metadata": {}, "data": { "image/png": PLOT } },
            ] },
        ],
    });
    std::fs::write(folder.join(name).join("b.ipynb"), notebook.to_string()).unwrap();
    let submissions = load_submissions(&[folder]).unwrap();
    let mut graded = pattern;
    graded.name.clone_from(&submissions[0].name);
    graded.feedback = Some(format!("**What works:** {EVIL} `{EVIL}`"));
    graded.criteria[0].rationale = EVIL.to_owned();
    graded.criteria[0].evidence[0]
        .file
        .clone_from(&submissions[0].files[0].name);
    graded.criteria[0].evidence[0].quote = EVIL.to_owned();
    graded.flags.clone_from(&submissions[0].flags);
    let course = format!("Hostile {EVIL}");
    site.gradebook
        .keep_run(&course, &rubric, &submissions, &[graded], ("", ""))
        .unwrap()
}

#[tokio::test]
async fn code_names_files_and_feedback_stay_text() {
    let site = Site::new().await;
    let page = hand_in(&site);
    let browser = Browser::open(&site, &page).await;
    let work = browser.run("return desk.dataset.work").await;
    for path in ["", "/prompt", "/record"] {
        let path = format!("/w/{}{path}", work.as_str().unwrap());
        browser.enter(&site, &path).await;
        assert_eq!(
            browser.run("return window.__evil ?? null").await,
            serde_json::Value::Null
        );
        let foreign = "return document.querySelectorAll('img:not(.picture img), main script, main svg, header script, a[href^=\"javascript\"]').length";
        assert_eq!(browser.run(foreign).await, 0, "{path}");
        assert_eq!(
            browser
                .run("return document.documentElement.scrollWidth > innerWidth + 1")
                .await,
            false,
            "a long line makes {path} wide"
        );
    }
    browser
        .enter(&site, &format!("/w/{}", work.as_str().unwrap()))
        .await;
    let text = browser.run("return document.body.textContent").await;
    let text = text.as_str().unwrap();
    assert!(text.contains("<script>window.__evil = 1</script>") && text.contains("{{ 7*7 }}"));
    // The one picture that is one.
    browser
        .until("document.querySelector('.picture img').naturalWidth === 1")
        .await;
    let pictures = "return document.querySelectorAll('.picture').length";
    assert_eq!(browser.run(pictures).await, 1);
    // The whole way of a value: written by a person, and shown again.
    browser.press("f").await;
    browser
        .until("document.activeElement.tagName === 'TEXTAREA'")
        .await;
    browser
        .run("document.activeElement.value += '<script>window.__evil = 8</script>'; document.activeElement.form.requestSubmit()")
        .await;
    browser
        .until("document.getElementById('status').textContent === 'saved'")
        .await;
    assert_eq!(
        browser.run("return window.__evil ?? null").await,
        serde_json::Value::Null
    );
}
