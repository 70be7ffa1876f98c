//! Canvas by its API: <https://developerdocs.instructure.com/services/canvas>. What it answers is checked before it is used,
//! and the token goes to that server alone.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Longest wait for a connection, and for the next part of an answer.
const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(60);
/// Longest time of a whole answer.
const WHOLE: Duration = Duration::from_secs(20 * 60);
/// Most servers that a file is looked for on, one after the other.
const MAX_REDIRECTS: usize = 5;
/// Most pages of a list, and entries of each that are asked for.
const MAX_PAGES: usize = 200;
const PER_PAGE: &str = "100";
/// Most bytes of one answer.
const MAX_ANSWER_BYTES: usize = 32 << 20;
/// Most bytes of one file of a student.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Most tries where Canvas says that there were too many requests, and the first wait, which doubles.
const MAX_TRIES: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Points that differ by less are the same: Canvas rounds.
const SAME_POINTS: f64 = 0.005;
/// Most characters of what a server says of an error.
const MAX_ERROR_CHARS: usize = 200;

/// A server and the right to use it.
pub struct Canvas {
    http: Client,
    base: Url,
    token: String,
}

/// A course.
#[derive(Debug, Deserialize)]
pub struct Course {
    pub id: u64,
    #[serde(default)]
    pub name: Option<String>,
}

/// An assignment.
#[derive(Debug, Deserialize)]
pub struct Assignment {
    pub id: u64,
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub points_possible: Option<f64>,
    #[serde(default)]
    pub grading_type: Option<String>,
    /// Students who hand in together have one grade.
    #[serde(default)]
    pub group_category_id: Option<u64>,
    #[serde(default)]
    pub grade_group_students_individually: Option<bool>,
    #[serde(default)]
    pub anonymize_students: Option<bool>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub rubric: Vec<Criterion>,
}

/// A criterion of its rubric.
#[derive(Debug, Deserialize)]
pub struct Criterion {
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub long_description: Option<String>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub points: f64,
    #[serde(default, deserialize_with = "or_nothing")]
    pub ratings: Vec<Rating>,
}

/// A level of it.
#[derive(Debug, Deserialize)]
pub struct Rating {
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub long_description: Option<String>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub points: f64,
}

/// What is null is as if it were not there.
fn or_nothing<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// What a student handed in, or that nothing was.
#[derive(Debug, Deserialize)]
pub struct Submission {
    pub user_id: u64,
    #[serde(default)]
    pub user: Option<User>,
    #[serde(default)]
    pub group: Option<Group>,
    /// What counts, less what a late policy takes off.
    #[serde(default)]
    pub score: Option<f64>,
    /// What somebody gave.
    #[serde(default)]
    pub entered_score: Option<f64>,
    /// They need not hand anything in, and have no grade.
    #[serde(default)]
    pub excused: Option<bool>,
    #[serde(default)]
    pub submitted_at: Option<String>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub late: bool,
    #[serde(default)]
    pub submission_type: Option<String>,
    #[serde(default)]
    pub body: Option<String>,
    #[serde(default)]
    pub url: Option<String>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub attachments: Vec<Attachment>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub submission_comments: Vec<Comment>,
}

/// A student.
#[derive(Debug, Default, Deserialize)]
pub struct User {
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub sortable_name: Option<String>,
    #[serde(default)]
    pub sis_user_id: Option<String>,
    #[serde(default)]
    pub login_id: Option<String>,
}

/// Those who hand in together.
#[derive(Debug, Deserialize)]
pub struct Group {
    #[serde(default)]
    pub id: Option<u64>,
}

/// A file.
#[derive(Debug, Deserialize)]
pub struct Attachment {
    pub id: u64,
    #[serde(default)]
    pub display_name: Option<String>,
    pub url: String,
}

/// What somebody wrote beside a submission.
#[derive(Debug, Deserialize)]
pub struct Comment {
    #[serde(default)]
    pub comment: Option<String>,
}

impl Submission {
    /// The points that somebody gave, if Canvas has some.
    pub fn given(&self) -> Option<f64> {
        self.entered_score.or(self.score)
    }
}

impl Assignment {
    /// Whether those of a group have one grade.
    pub fn is_of_groups(&self) -> bool {
        self.group_category_id.is_some() && self.grade_group_students_individually != Some(true)
    }
}

impl Canvas {
    /// A server at this address. Without TLS only one of this machine is spoken to.
    ///
    /// # Errors
    /// An address that is none, or a token that no header can hold.
    pub fn new(base: &str, token: &str) -> anyhow::Result<Self> {
        let base = Url::parse(base).with_context(|| format!("--url {base} is no address"))?;
        let is_own = matches!(base.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        if base.scheme() != "https" && !is_own {
            bail!("--url {base}: the token would be readable on the way; use https");
        }
        let http = Client::builder()
            .https_only(!is_own)
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .timeout(WHOLE)
            // The token goes to that server alone: no proxy, and no redirect that nobody looks at.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self {
            http,
            base,
            token: token.to_owned(),
        })
    }

    /// The courses in which one teaches.
    ///
    /// # Errors
    /// What does not answer as documented.
    pub async fn courses(&self) -> anyhow::Result<Vec<Course>> {
        self.list("courses", &[("enrollment_type", "teacher")])
            .await
    }

    /// The assignments of a course.
    ///
    /// # Errors
    /// What does not answer as documented.
    pub async fn assignments(&self, course: u64) -> anyhow::Result<Vec<Assignment>> {
        self.list(&format!("courses/{course}/assignments"), &[])
            .await
    }

    /// An assignment.
    ///
    /// # Errors
    /// What does not answer as documented.
    pub async fn assignment(&self, course: u64, id: u64) -> anyhow::Result<Assignment> {
        let url = self.address(&format!("courses/{course}/assignments/{id}"))?;
        let response = self.send(Method::GET, url, None).await?;
        read(response).await
    }

    /// What each student of an assignment handed in, also who handed in nothing.
    ///
    /// # Errors
    /// What does not answer as documented.
    pub async fn submissions(&self, course: u64, id: u64) -> anyhow::Result<Vec<Submission>> {
        let path = format!("courses/{course}/assignments/{id}/submissions");
        let with = ["user", "group", "submission_comments"].map(|one| ("include[]", one));
        self.list(&path, &with).await
    }

    /// Gives points, and says something; what Canvas has then has to be the same.
    ///
    /// # Errors
    /// If it is refused, or Canvas has something else then.
    pub async fn grade(
        &self,
        (course, assignment): (u64, u64),
        user: u64,
        (points, comment): (Option<&str>, Option<&str>),
        is_of_group: bool,
    ) -> anyhow::Result<()> {
        let path = format!("courses/{course}/assignments/{assignment}/submissions/{user}");
        let mut body = json!({});
        if let Some(points) = points {
            body["submission"] = json!({ "posted_grade": points });
            // A number is points, also where a scheme has letters.
            body["prefer_points_over_scheme"] = json!(true);
        }
        if let Some(comment) = comment {
            body["comment"] = json!({ "text_comment": comment, "group_comment": is_of_group });
        }
        let url = self.address(&path)?;
        let response = self.send(Method::PUT, url, Some(&body)).await?;
        let there: Submission = read(response).await?;
        let Some(points) = points else {
            return Ok(());
        };
        let sent: f64 = points.parse()?;
        match there.given() {
            Some(score) if (score - sent).abs() < SAME_POINTS => Ok(()),
            Some(score) => bail!("Canvas has {score} points where {points} were sent"),
            None => bail!("Canvas has no points where {points} were sent"),
        }
    }

    /// Writes a file of a student. The token goes with it only to this server, and the file may be on another one.
    ///
    /// # Errors
    /// If it cannot be fetched whole, or written.
    pub async fn fetch(&self, attachment: &Attachment, to: &Path) -> anyhow::Result<()> {
        let mut response = self.file(self.base.join(&attachment.url)?).await?;
        let mut file = std::fs::File::create(to)?;
        let mut size = 0;
        while let Some(part) = response.chunk().await? {
            size += part.len() as u64;
            if size > MAX_FILE_BYTES {
                bail!("it has more than {MAX_FILE_BYTES} bytes");
            }
            file.write_all(&part)?;
        }
        Ok(())
    }

    /// A file, wherever it is.
    async fn file(&self, mut url: Url) -> anyhow::Result<Response> {
        for _ in 0..MAX_REDIRECTS {
            let response = match url.origin() == self.base.origin() {
                true => self.answer(Method::GET, url, None).await?,
                false => answered(self.http.get(url.clone()), &url).await?,
            };
            if !response.status().is_redirection() {
                return check(response).await;
            }
            let next = response.headers().get("location");
            let next = next.and_then(|value| value.to_str().ok());
            let next = next.context("a redirect says not where to")?;
            url = response.url().join(next)?;
        }
        bail!("it is on none of {MAX_REDIRECTS} servers, one after the other")
    }

    fn address(&self, path: &str) -> anyhow::Result<Url> {
        Ok(self.base.join(&format!("/api/v1/{path}"))?)
    }

    /// All pages of a list.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<Vec<T>> {
        let mut url = self.address(path)?;
        url.query_pairs_mut()
            .extend_pairs(query)
            .append_pair("per_page", PER_PAGE);
        let mut all = Vec::new();
        for _ in 0..MAX_PAGES {
            let response = self.send(Method::GET, url, None).await?;
            let next = next_page(&response)?;
            all.extend(read::<Vec<T>>(response).await?);
            let Some(next) = next else {
                return Ok(all);
            };
            if next.origin() != self.base.origin() {
                bail!("the next page of {path} is on another server: {next}");
            }
            url = next;
        }
        bail!("{path} has more than {MAX_PAGES} pages")
    }

    /// Sends a request that Canvas itself has to answer.
    async fn send(
        &self,
        method: Method,
        url: Url,
        body: Option<&Value>,
    ) -> anyhow::Result<Response> {
        check(self.answer(method, url, body).await?).await
    }

    /// Sends a request, and once more after a while where there were too many.
    async fn answer(
        &self,
        method: Method,
        url: Url,
        body: Option<&Value>,
    ) -> anyhow::Result<Response> {
        let mut wait = FIRST_WAIT;
        for tries in 1.. {
            let mut request = self.http.request(method.clone(), url.clone());
            request = request.bearer_auth(&self.token);
            if let Some(body) = body {
                request = request.json(body);
            }
            let response = answered(request, &url).await?;
            let is_busy = response.status() == StatusCode::TOO_MANY_REQUESTS
                || is_limited(&response) && response.status() == StatusCode::FORBIDDEN;
            if !is_busy || tries == MAX_TRIES {
                return Ok(response);
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        unreachable!("the last try returns")
    }
}

async fn answered(request: RequestBuilder, url: &Url) -> anyhow::Result<Response> {
    let host = url.host_str().unwrap_or_default();
    let response = request.send().await;
    // An address may have a key in it.
    let response = response.map_err(reqwest::Error::without_url);
    response.with_context(|| format!("{host} does not answer"))
}

/// Canvas says so with 403 and nothing left of what one may ask for.
fn is_limited(response: &Response) -> bool {
    let left = response.headers().get("x-rate-limit-remaining");
    let left = left.and_then(|value| value.to_str().ok()?.parse::<f64>().ok());
    // A request that was let through costs more than nothing.
    left.is_some_and(|left| left < 1.0)
}

async fn check(response: Response) -> anyhow::Result<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let path = response.url().path().to_owned();
    let is_limited = is_limited(&response);
    let body = bytes(response).await.unwrap_or_default();
    let said: String = String::from_utf8_lossy(&body)
        .chars()
        .filter(|c| !c.is_control())
        .take(MAX_ERROR_CHARS)
        .collect();
    let fix = match status {
        StatusCode::UNAUTHORIZED => "; the token may be wrong or over: make a new one in Canvas",
        StatusCode::FORBIDDEN if is_limited => "; wait a while",
        StatusCode::FORBIDDEN => "; the token's owner may not do that in this course",
        StatusCode::NOT_FOUND => "; look at the numbers with `tandem canvas list`",
        _ => "",
    };
    bail!("Canvas answers {path} with {status}{fix}: {said}")
}

async fn bytes(mut response: Response) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await? {
        if bytes.len() + part.len() > MAX_ANSWER_BYTES {
            bail!("an answer of Canvas has more than {MAX_ANSWER_BYTES} bytes");
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

async fn read<T: DeserializeOwned>(response: Response) -> anyhow::Result<T> {
    let path = response.url().path().to_owned();
    let bytes = bytes(response).await?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("Canvas answers {path} otherwise than it is documented"))
}

/// `<https://…?page=2>; rel="next"` of a list of links.
fn next_page(response: &Response) -> anyhow::Result<Option<Url>> {
    let links = response.headers().get_all("link").iter();
    let links = links.filter_map(|value| value.to_str().ok());
    // An address may have commas in it.
    let mut links = links.flat_map(|links| links.split('<'));
    let next = links.find_map(|link| {
        let (address, rest) = link.split_once('>')?;
        rest.contains("rel=\"next\"").then_some(address)
    });
    Ok(next.map(Url::parse).transpose()?)
}
