//! Model files of the Hugging Face hub: `hf:OWNER/REPO:FILE`, fetched once, gone on with where they broke off, and checked.
//!
//! The hub answers with a redirect to where the bytes are, and tells their SHA-256 and size with it. They are kept below
//! `TANDEM_CACHE`. The hub's own client library is not used: its version 0.5 has an HTTP client of its own beside ours, and
//! 1.0 brings 200 further crates and does not go on with a file that broke off.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use aws_lc_rs::digest::{Context as Digest, SHA256};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::{Client, StatusCode, Url, header};
use tandem_coordinator::Secret;

use crate::environment::Environment;

/// What names of such files begin with.
pub const PREFIX: &str = "hf:";
/// Where the hub is, unless `HF_ENDPOINT` says it.
const HUB: &str = "https://huggingface.co";
/// Longest silence.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a transfer that broke off goes on.
const ATTEMPTS: u32 = 5;
/// Between two of these.
const PAUSE: Duration = Duration::from_secs(2);
/// Redirects in a row.
const MAX_REDIRECTS: u32 = 5;
/// Parts of a model.
const MAX_PARTS: u32 = 256;
/// Bytes that are hashed at once.
const HASHED: usize = 1 << 20;

/// A file of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reference {
    owner: String,
    repository: String,
    file: String,
}

/// Where things are on the hub, and who asks.
struct Hub {
    http: Client,
    endpoint: Url,
    token: Option<Secret>,
}

/// What the hub tells of a file.
struct Told {
    /// Where its bytes are.
    url: Url,
    /// Of its content, hex.
    sha256: Option<String>,
}

/// The file of a model, fetched if it is not there; of a model in parts the first.
///
/// # Errors
/// If it cannot be fetched, or is not what the hub says that it is.
pub async fn fetch(text: &str, environment: &Environment) -> anyhow::Result<PathBuf> {
    let reference = parse(text)?;
    let hub = Hub::new(environment)?;
    let folder = environment
        .models()?
        .join(&reference.owner)
        .join(&reference.repository);
    let mut first = None;
    for file in parts(&reference.file) {
        let path = folder.join(&file);
        if !path.is_file() {
            let one = Reference {
                file,
                ..reference.clone()
            };
            hub.fetch(&one, &path).await.with_context(|| {
                format!(
                    "{text} cannot be fetched; where there is no internet, carry the file here and give its path"
                )
            })?;
        }
        first.get_or_insert(path);
    }
    first.context("a model has one part at least")
}

/// Reads `hf:OWNER/REPO:FILE`.
fn parse(text: &str) -> anyhow::Result<Reference> {
    let plain = |part: &str| {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_plain)
    };
    let parsed = || {
        let (repository, file) = text.strip_prefix(PREFIX)?.split_once(':')?;
        let (owner, repository) = repository.split_once('/')?;
        let is_good = plain(owner) && plain(repository) && file.split('/').all(plain);
        let is_model = file.ends_with(".gguf");
        (is_good && is_model).then(|| Reference {
            owner: owner.to_owned(),
            repository: repository.to_owned(),
            file: file.to_owned(),
        })
    };
    parsed().with_context(|| {
        format!("`{text}`: write hf:OWNER/REPO:FILE.gguf, such as hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf")
    })
}

/// The files of a model: itself, or all of its parts.
fn parts(file: &str) -> Vec<String> {
    let count = || {
        let (stem, rest) = file.split_once("-00001-of-")?;
        let digits = rest.strip_suffix(".gguf")?;
        let count: u32 = digits
            .parse()
            .ok()
            .filter(|n| (1..=MAX_PARTS).contains(n))?;
        Some(
            (1..=count)
                .map(|n| format!("{stem}-{n:05}-of-{digits}.gguf"))
                .collect(),
        )
    };
    count().unwrap_or_else(|| vec![file.to_owned()])
}

impl Hub {
    fn new(environment: &Environment) -> anyhow::Result<Self> {
        let endpoint = environment.hub_endpoint.as_deref().unwrap_or(HUB);
        // What is joined to it comes behind all of its path.
        let endpoint = &format!("{}/", endpoint.trim_end_matches('/'));
        Ok(Self {
            // Redirects are followed here, so that the token goes to the hub only.
            http: Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(SILENCE)
                .build()?,
            endpoint: Url::parse(endpoint)
                .with_context(|| format!("HF_ENDPOINT is \"{endpoint}\""))?,
            token: environment.hub_token.clone(),
        })
    }

    async fn fetch(&self, reference: &Reference, path: &Path) -> anyhow::Result<()> {
        let Reference {
            owner,
            repository,
            file,
        } = reference;
        let at = format!("{owner}/{repository}/resolve/main/{file}");
        let url = self.endpoint.join(&at)?;
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        let partial = path.with_extension("gguf.part");
        let _lock = lock(path).await?;
        if path.is_file() {
            // Whoever was waited for has fetched it.
            return Ok(());
        }
        let bar = bar(file);
        let fetched = self.whole(&url, &partial, &bar).await;
        bar.finish_and_clear();
        let told = fetched?;
        match &told.sha256 {
            Some(expected) => {
                let hashed = partial.clone();
                let found = tokio::task::spawn_blocking(move || sha256(&hashed)).await??;
                if found != *expected {
                    fs::remove_file(&partial)?;
                    bail!(
                        "{file} has SHA-256 {found}, and should have {expected}; it was removed, so fetch it again"
                    );
                }
            }
            None => eprintln!("tandem: {file} is not checked: this hub tells no digest of it"),
        }
        fs::rename(&partial, path)?;
        Ok(())
    }

    /// Fetches all of a file, and goes on where it breaks off. Only what can be checked in the end is put together of parts.
    async fn whole(&self, url: &Url, partial: &Path, bar: &ProgressBar) -> anyhow::Result<Told> {
        let size = || partial.metadata().map_or(0, |meta| meta.len());
        let mut attempt = 1;
        loop {
            let before = size();
            let tried = async {
                // Where the bytes are is told for a while only.
                let told = self.look(url).await?;
                if told.sha256.is_none() && before > 0 {
                    fs::remove_file(partial)?;
                }
                self.transfer(&told, partial, bar).await?;
                Ok(told)
            };
            let error: anyhow::Error = match tried.await {
                Ok(told) => return Ok(told),
                Err(error) => error,
            };
            attempt = if size() > before { 1 } else { attempt + 1 };
            if attempt > ATTEMPTS || error.is::<Refused>() {
                return Err(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks where the bytes of a file are, and what they are to be.
    async fn look(&self, url: &Url) -> anyhow::Result<Told> {
        let mut url = url.clone();
        let mut sha256 = None;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.http.head(url.clone());
            if let Some(token) = self.token.as_ref().filter(|_| self.is_hub(&url)) {
                request = request.bearer_auth(token.reveal());
            }
            let sent = tokio::time::timeout(SILENCE, request.send()).await;
            let answer = sent.context("the hub is silent")?;
            let answer = answer.map_err(reqwest::Error::without_url)?;
            let text = |name: &str| answer.headers().get(name)?.to_str().ok().map(str::to_owned);
            let digest = text("x-linked-etag").map(|etag| etag.trim_matches('"').to_owned());
            sha256 = sha256
                .or(digest.filter(|d| d.len() == 64 && d.bytes().all(|b| b.is_ascii_hexdigit())));
            let status = answer.status();
            match text("location").filter(|_| status.is_redirection()) {
                Some(location) if !self.is_hub(&url.join(&location)?) => {
                    let url = url.join(&location)?;
                    return Ok(Told { url, sha256 });
                }
                Some(location) => url = url.join(&location)?,
                None if status.is_success() => return Ok(Told { url, sha256 }),
                None => return Err(refusal(status)),
            }
        }
        bail!("the hub redirects without end")
    }

    fn is_hub(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    /// Fetches what is missing of a file.
    async fn transfer(&self, told: &Told, partial: &Path, bar: &ProgressBar) -> anyhow::Result<()> {
        let mut file = File::options().create(true).append(true).open(partial)?;
        let have = file.metadata()?.len();
        let mut request = self.http.get(told.url.clone());
        if let Some(token) = self.token.as_ref().filter(|_| self.is_hub(&told.url)) {
            request = request.bearer_auth(token.reveal());
        }
        if have > 0 {
            request = request.header(header::RANGE, format!("bytes={have}-"));
        }
        let sent = tokio::time::timeout(SILENCE, request.send()).await;
        // Addresses of bytes are signed, and no text for others.
        let sent = sent.context("the hub is silent")?;
        let mut answer = sent.map_err(reqwest::Error::without_url)?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {}
            // All of it is there.
            StatusCode::RANGE_NOT_SATISFIABLE if have > 0 && told.sha256.is_some() => return Ok(()),
            // Whoever has it begins anew.
            StatusCode::OK => {
                file.set_len(0)?;
                file.rewind()?;
            }
            status => return Err(refusal(status)),
        }
        let begun = file.metadata()?.len();
        bar.set_length(begun + answer.content_length().unwrap_or(0));
        bar.set_position(begun);
        loop {
            let chunk = tokio::time::timeout(SILENCE, answer.chunk()).await;
            let chunk = chunk.context("the hub is silent")?;
            let Some(bytes) = chunk.map_err(reqwest::Error::without_url)? else {
                break;
            };
            file.write_all(&bytes)?;
            bar.inc(bytes.len() as u64);
        }
        file.sync_all()?;
        Ok(())
    }
}

/// An answer that will be the same when it is asked for again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// What an answer with this status means; some of them are for a while only.
fn refusal(status: StatusCode) -> anyhow::Error {
    let text = match status.as_u16() {
        401 | 403 => {
            "the hub wants a token for this repository (HF_TOKEN), or has none of that name"
                .to_owned()
        }
        404 => "the hub has no file of that name".to_owned(),
        status => format!("the hub answers with status {status}"),
    };
    match status.as_u16() {
        408 | 429 | 500.. => anyhow::anyhow!(text),
        _ => Refused(text).into(),
    }
}

/// Held while a file is fetched, so that two processes do not write into one.
async fn lock(path: &Path) -> anyhow::Result<File> {
    let file = File::create(path.with_extension("gguf.lock"))?;
    if file.try_lock().is_ok() {
        return Ok(file);
    }
    eprintln!(
        "tandem: another process fetches {}; waiting for it",
        path.display()
    );
    let locking = tokio::task::spawn_blocking(move || file.lock().map(|()| file));
    Ok(locking.await??)
}

fn bar(file: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template);
    // The template is a constant and valid; a plain bar would do too.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(file.to_owned());
    bar
}

/// SHA-256 of a file, hex.
fn sha256(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path)?;
    let mut digest = Digest::new(&SHA256);
    let mut buffer = vec![0; HASHED];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        digest.update(&buffer[..n]);
    }
    let bytes = digest.finish();
    Ok(bytes.as_ref().iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        let good = parse("hf:Qwen/Qwen3-GGUF:sub/x.gguf").unwrap();
        assert_eq!(
            (&*good.owner, &*good.repository, &*good.file),
            ("Qwen", "Qwen3-GGUF", "sub/x.gguf")
        );
        for text in [
            "hf:a/b",
            "hf:a/b:",
            "hf:a:b.gguf",
            "hf:../b:c.gguf",
            "hf:a/b:../c.gguf",
            "hf:a/b:/c.gguf",
            "hf:a/b:c.bin",
            "hf:a/b/c:d.gguf",
            "hf:a/b:c?d.gguf",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parts("a/x-00001-of-00003.gguf").len(), 3);
        assert_eq!(
            parts("a/x-00001-of-00003.gguf")[2],
            "a/x-00003-of-00003.gguf"
        );
        for one in ["x.gguf", "x-00002-of-00003.gguf", "x-00001-of-99999.gguf"] {
            assert_eq!(parts(one), [one]);
        }
    }
}
