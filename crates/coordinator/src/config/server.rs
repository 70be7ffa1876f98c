//! What the configuration says about a server.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tandem_proto::Message;

use crate::error::ConfigError;
use crate::limits::{MAX_PARALLEL, MAX_SERVER_CONTEXT, MAX_SERVER_SILENCE_S};

use super::dialect::Dialect;
use super::pair::{PairConfig, PairKind};

/// Longest silence of a server where nothing else is said, in seconds: one that does not stream is silent for all of its
/// answer, and another one while it reads the prompt.
pub const DEFAULT_SILENCE_S: u64 = 600;

/// A server that is no node of tandem, and stays as it is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Name in routes and answers; no node has it.
    pub name: String,
    /// Where it is: `http://HOST:PORT` or `https://…`, with or without the `/v1` at its end.
    pub url: String,
    /// How it is spoken to: `openai`, `ollama`, `generate`; with `auto`, or by itself, that is found out.
    #[serde(default, deserialize_with = "dialect")]
    pub dialect: Option<Dialect>,
    /// Name of the environment variable that holds its key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// File that holds its key.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The key, by whoever reads files and the environment.
    #[serde(skip)]
    pub key: Option<Secret>,
    /// File with the certificates of authorities that vouch for it, PEM, beside those that the system trusts.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// What is in it, by whoever reads files.
    #[serde(skip)]
    pub ca: Option<Vec<u8>>,
    /// Its names of models, by those of the configuration. A model that is not among them has the same name there, or is
    /// the only one that the server has.
    #[serde(default)]
    pub models: BTreeMap<String, String>,
    /// Tokens of prompt and answer together, where it does not tell that itself, and at most where it does.
    #[serde(default)]
    pub context: Option<u32>,
    /// Requests that it is given at once.
    #[serde(default)]
    pub parallel: Option<u32>,
    /// Longest silence, in seconds.
    #[serde(default)]
    pub silence: Option<u64>,
    /// How long Ollama keeps the model after an answer, as it reads it: `30m`, or `-1` for ever.
    #[serde(default)]
    pub keep_alive: Option<String>,
    /// The leg that prefills, of a pair of other engines; `url` is then the one that decodes.
    #[serde(skip)]
    pub pair: Option<PairConfig>,
    /// A chat template, or a model file with one, for a server that takes a prompt as it is.
    #[serde(default)]
    pub template: Option<PathBuf>,
    /// What renders with it.
    #[serde(skip)]
    pub render: Option<Render>,
}

/// Where the paths of a server begin.
pub(crate) fn base(url: &str) -> &str {
    let base = url.trim_end_matches('/');
    base.strip_suffix("/v1").unwrap_or(base)
}

fn dialect<'de, D: serde::Deserializer<'de>>(reader: D) -> Result<Option<Dialect>, D::Error> {
    let name = String::deserialize(reader)?;
    if name == "auto" {
        return Ok(None);
    }
    let found = Dialect::ALL.into_iter().find(|d| d.as_str() == name);
    let all = || Dialect::ALL.map(Dialect::as_str).join("`, `");
    let unknown = || {
        format!(
            "unknown dialect `{name}`, expected one of `auto`, `{}`",
            all()
        )
    };
    found
        .map(Some)
        .ok_or_else(|| serde::de::Error::custom(unknown()))
}

/// A text that gets into no log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Of a text whose line break at the end does not count.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The text itself, for whom it is meant.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Puts messages into the form that a model knows.
type Rendering = dyn Fn(&[Message]) -> Result<String, String> + Send + Sync;

/// The same, shared.
#[derive(Clone)]
pub struct Render(Arc<Rendering>);

impl Render {
    /// What this function does.
    pub fn new(
        render: impl Fn(&[Message]) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(render))
    }

    pub(crate) fn render(&self, messages: &[Message]) -> Result<String, String> {
        (self.0)(messages)
    }
}

impl fmt::Debug for Render {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Render")
    }
}

impl PartialEq for Render {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl ServerConfig {
    /// A server with nothing said but its name and where it is.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            dialect: None,
            key_env: None,
            key_file: None,
            key: None,
            ca_file: None,
            ca: None,
            models: BTreeMap::new(),
            context: None,
            parallel: None,
            silence: None,
            keep_alive: None,
            pair: None,
            template: None,
            render: None,
        }
    }

    /// Checks every key.
    pub(crate) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        let fault = |key: &str, problem: String| {
            let key = format!("{at}.{key}");
            Err(ConfigError { key, problem })
        };
        let url = reqwest::Url::parse(&self.url);
        let is_server = |url: &reqwest::Url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.query().is_none()
                && url.fragment().is_none()
        };
        match &url {
            Ok(url) if url.password().is_some() || !url.username().is_empty() => {
                let fix = "holds a name or password: give a key with `key_env` or `key_file`";
                return fault("url", fix.to_owned());
            }
            Ok(url) if is_server(url) => {}
            _ => {
                let fix =
                    "write http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:11434";
                return fault("url", format!("is \"{}\": {fix}", self.url));
            }
        }
        if let Some(pair) = &self.pair {
            let is_url = |url: &&String| reqwest::Url::parse(url).is_ok_and(|url| is_server(&url));
            if pair.prefill.is_empty() || !pair.prefill.iter().all(|url| is_url(&url)) {
                let fix = "must name the engines that prefill: write http://HOST:PORT or https://…";
                return fault("prefill", fix.to_owned());
            }
        }
        if self.key_env.is_some() && self.key_file.is_some() {
            return fault(
                "key_file",
                "and `key_env` both name a key: leave one out".to_owned(),
            );
        }
        for (key, value, most) in [
            ("context", self.context.map(u64::from), MAX_SERVER_CONTEXT),
            ("parallel", self.parallel.map(u64::from), MAX_PARALLEL),
            ("silence", self.silence, MAX_SERVER_SILENCE_S),
        ] {
            if value.is_some_and(|value| value == 0 || value > most) {
                let value = value.unwrap_or_default();
                return fault(key, format!("is {value}, allowed are 1 to {most}"));
            }
        }
        Ok(())
    }
}

/// A pair of other engines as the configuration file has it; a server as far as everybody else is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairEntry {
    name: String,
    kind: PairKind,
    prefill: Vec<String>,
    decode: String,
    bootstrap_port: Option<u16>,
    from_tokens: Option<u32>,
    key_env: Option<String>,
    key_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    #[serde(default)]
    models: BTreeMap<String, String>,
    context: Option<u32>,
    parallel: Option<u32>,
    silence: Option<u64>,
}

impl From<PairEntry> for ServerConfig {
    fn from(pair: PairEntry) -> Self {
        Self {
            // Each speaks that one.
            dialect: Some(Dialect::OpenAi),
            key_env: pair.key_env,
            key_file: pair.key_file,
            ca_file: pair.ca_file,
            models: pair.models,
            context: pair.context,
            parallel: pair.parallel,
            silence: pair.silence,
            pair: Some(PairConfig {
                kind: pair.kind,
                prefill: pair.prefill,
                bootstrap_port: pair.bootstrap_port,
                from_tokens: pair.from_tokens,
            }),
            ..Self::new(pair.name, pair.decode)
        }
    }
}
