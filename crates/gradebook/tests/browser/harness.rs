//! A gradebook of its own for each test, and a browser in front of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder};
use serde_json::{Value, json};
use tandem_gradebook::Gradebook;
use tandem_grading::{Graded, Rubric, Status, Submission};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// Longest wait for a page to become as expected.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gradebook that is served on loopback.
pub struct Site {
    pub gradebook: Gradebook,
    pub base: String,
    folder: TempDir,
}

impl Site {
    /// With the sample course alone.
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gradebook = Gradebook::open(&folder.path().join("g.sqlite")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = gradebook.router(false);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            gradebook,
            base,
            folder,
        }
    }

    /// A place for files of the test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The address of a page; a path is below the gradebook's own, unless it begins with that.
    pub fn page(&self, path: &str) -> String {
        let home = self.gradebook.home();
        let path = path.strip_prefix(home).unwrap_or(path);
        format!("{}{home}{path}", self.base)
    }

    /// The address that lets a browser in, for a path.
    pub fn address(&self, path: &str) -> String {
        let token = self.gradebook.address(&self.base).unwrap();
        let (_, token) = token.split_once("?token=").unwrap();
        format!("{}?token={token}", self.page(path))
    }

    /// Adds a course of works as the sample's, with points of the model; returns its assignment.
    pub fn course(&self, name: &str, works: usize) -> i64 {
        let (rubric, submission, graded) = self.pattern();
        let named = |i: usize| format!("work-{i:04}");
        let submissions: Vec<Submission> = (0..works)
            .map(|i| {
                let mut submission = submission.clone();
                submission.name = named(i);
                // So that a page tells whose files it shows.
                submission.files[0].lines.push(format!("# {}", named(i)));
                submission
            })
            .collect();
        let results: Vec<Graded> = (0..works)
            .map(|i| Graded {
                name: named(i),
                ..graded.clone()
            })
            .collect();
        let page = self
            .gradebook
            .keep_run(name, &rubric, &submissions, &results, ("", ""))
            .unwrap();
        page.rsplit('/').next().unwrap().parse().unwrap()
    }

    /// A work of the sample that is graded without anything to look at.
    pub fn pattern(&self) -> (Rubric, Submission, Graded) {
        let store = self.gradebook.store();
        let read = |reader: &tandem_gradebook::store::Reader<'_>| {
            let rubric = reader.rubric(1)?.unwrap().rubric;
            for work in reader.works(1)? {
                let full = reader.work(work.id)?.unwrap();
                let graded = full.graded.unwrap();
                if graded.status == Status::Graded && graded.name == "s02-off-by-one" {
                    return Ok((rubric, reader.submission(work.id)?.unwrap(), graded));
                }
            }
            panic!("the sample has no graded work");
        };
        store.read_now(read).unwrap()
    }
}

/// A browser. Dropping it ends it.
pub struct Browser {
    pub page: Client,
    driver: Child,
    /// Where the driver listens, and what it calls the browser.
    port: String,
    session: String,
    /// Where it puts files.
    downloads: TempDir,
}

impl Browser {
    /// Has the driver end the browser, which would outlive it and fill the memory.
    fn end(&self) -> std::io::Result<()> {
        let address = format!("127.0.0.1:{}", self.port);
        let mut stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let session = &self.session;
        write!(
            stream,
            "DELETE /session/{session} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        // It answers when the browser has ended.
        stream.read(&mut [0; 512]).map(|_| ())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.end();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    /// Starts one with a window of this size, in the light or the dark.
    pub async fn start((width, height): (u32, u32), is_dark: bool) -> Self {
        let driver = std::env::var("CHROMEDRIVER").unwrap_or_else(|_| "chromedriver".to_owned());
        let mut driver = Command::new(driver)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect(
                "no chromedriver: run `scripts/install-deps.sh test`, or set CHROMEDRIVER to it",
            );
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.ok()?;
            let (_, port) = line.split_once("successfully on port ")?;
            Some(port.trim_end_matches('.').to_owned())
        });
        let port = port.expect("chromedriver told no port");
        // It goes on writing.
        std::thread::spawn(move || lines.for_each(drop));
        let mut flags = vec![
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        if is_dark {
            flags.push("--blink-settings=preferredColorScheme=0".to_owned());
        }
        let downloads = tempfile::tempdir().unwrap();
        let mut chrome = json!({
            "args": flags,
            "prefs": { "download.default_directory": downloads.path() },
        });
        if let Ok(binary) = std::env::var("CHROMIUM") {
            chrome["binary"] = json!(binary);
        }
        let mut capabilities = Capabilities::new();
        capabilities.insert("goog:chromeOptions".to_owned(), chrome);
        capabilities.insert("goog:loggingPrefs".to_owned(), json!({ "browser": "ALL" }));
        let page = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("no browser: run `scripts/install-deps.sh test`, or set CHROMIUM to it");
        let session = page.session_id().await.unwrap().unwrap();
        Self {
            page,
            driver,
            port,
            session,
            downloads,
        }
    }

    /// The file that was downloaded, once it is whole.
    pub async fn downloaded(&self, name: &str) -> Vec<u8> {
        let path = self.downloads.path().join(name);
        let since = Instant::now();
        while !path.exists() {
            assert!(since.elapsed() < PATIENCE, "{name} does not come");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        bytes
    }

    /// Starts one on a desk, lets it in and opens a path.
    pub async fn open(site: &Site, path: &str) -> Self {
        let browser = Self::start((1366, 768), false).await;
        // The window has a frame; the page is to have the size.
        browser.resize(1366, 768).await;
        browser.enter(site, path).await;
        browser
    }

    /// Gives the page this size.
    pub async fn resize(&self, width: u32, height: u32) {
        let frame = "return [window.outerWidth - window.innerWidth, window.outerHeight - window.innerHeight]";
        let frame = self.run(frame).await;
        let side = |i: usize| u32::try_from(frame[i].as_i64().unwrap().max(0)).unwrap();
        self.page
            .set_window_size(width + side(0), height + side(1))
            .await
            .unwrap();
    }

    /// Lets the browser in and opens a path.
    pub async fn enter(&self, site: &Site, path: &str) {
        self.page.goto(&site.address(path)).await.unwrap();
        self.until("!location.search.includes('token') && document.readyState === 'complete'")
            .await;
    }

    /// Runs a script in the page and returns what it returns.
    pub async fn run(&self, script: &str) -> Value {
        self.page
            .execute(script, vec![])
            .await
            .unwrap_or_else(|e| panic!("{script}: {e}"))
    }

    /// Waits until an expression of the page is true.
    pub async fn until(&self, expression: &str) {
        let script = format!("try {{ return !!({expression}) }} catch (error) {{ return false }}");
        let since = Instant::now();
        loop {
            // A page that is just being left answers nothing.
            let found = self.page.execute(&script, vec![]).await;
            if found.is_ok_and(|value| value == Value::Bool(true)) {
                return;
            }
            assert!(
                since.elapsed() < PATIENCE,
                "still not so: {expression}\n{}",
                self.run("return location.href + '\\n' + document.body.innerText")
                    .await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Presses a key, as a person does.
    pub async fn press(&self, key: &str) {
        use fantoccini::actions::{InputSource, KeyAction, KeyActions};
        let value = match key {
            "ArrowDown" => '\u{E015}',
            "ArrowUp" => '\u{E013}',
            "ArrowRight" => '\u{E014}',
            "Tab" => '\u{E004}',
            "Enter" => '\u{E007}',
            "Escape" => '\u{E00C}',
            key => key.chars().next().unwrap(),
        };
        let actions = KeyActions::new("keys".to_owned())
            .then(KeyAction::Down { value })
            .then(KeyAction::Up { value });
        self.page.perform_actions(actions).await.unwrap();
    }

    /// What the browser complained about, such as a broken policy.
    pub async fn complaints(&self) -> Vec<String> {
        let found = self
            .run("return (window.__complaints ?? []).concat([...document.querySelectorAll('parsererror')].map(String))")
            .await;
        serde_json::from_value(found).unwrap()
    }

    /// Everything that is wrong for people with other eyes or hands.
    pub async fn accessibility(&self) -> Vec<String> {
        const AXE: &str = include_str!("axe.min.js");
        self.run(AXE).await;
        let script = "const done = arguments[arguments.length - 1];
            axe.run(document, { resultTypes: ['violations'] }).then((found) => done(found.violations
                .filter((v) => v.impact === 'serious' || v.impact === 'critical')
                .map((v) => v.id + ': ' + v.nodes.map((n) => n.html.slice(0, 160) + ' ' + n.failureSummary).join(' | '))));";
        let found = self.page.execute_async(script, vec![]).await.unwrap();
        serde_json::from_value(found).unwrap()
    }
}
