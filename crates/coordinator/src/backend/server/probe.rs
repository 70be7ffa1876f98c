//! What a server is and has: its dialect, its models, their contexts, and what tells them from others of the same name.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Http, error_message, shown};
use crate::config::dialect::Dialect;
use crate::config::server::ServerConfig;
use crate::error::CallError;

/// What mlx_lm.server calls the model that it was started with. Without a cache of Hugging Face it lists none, and its
/// answer is empty.
const UNLISTED: &str = "default_model";
/// Names that a message lists.
const MAX_LISTED: usize = 8;

/// What is known of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) dialect: Dialect,
    /// The configured models that it has.
    pub(crate) models: Vec<Served>,
    /// Why it has not the others.
    pub(crate) missing: Vec<String>,
    /// Which of these are others than before.
    pub(crate) changed: Vec<String>,
}

impl Found {
    /// A model by the name that clients know, and how it is asked.
    pub(crate) fn model(&self, name: &str) -> Option<(Dialect, &Served)> {
        let model = self.models.iter().find(|model| model.ours == name)?;
        Some((self.dialect, model))
    }
}

/// A model on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served {
    /// Name in the configuration.
    pub(crate) ours: String,
    /// Name on the server.
    pub(crate) theirs: String,
    /// Tokens of prompt and answer together, if that is known.
    pub(crate) context: Option<u32>,
    /// What the server tells of it beside its name.
    pub(crate) reported: Reported,
    /// True if that includes a digest.
    pub(crate) verified: bool,
}

/// Names and values.
pub(crate) type Reported = BTreeMap<&'static str, String>;

/// The same in one line.
pub(crate) fn in_words(reported: &Reported) -> String {
    let parts = reported
        .iter()
        .map(|(name, value)| format!("{name} {value}"));
    parts.collect::<Vec<_>>().join(", ")
}

/// A model in a server's own list.
struct Listed {
    name: String,
    context: Option<u32>,
    reported: Reported,
    verified: bool,
}

/// Asks a server what it has, of these models.
pub(crate) async fn probe(
    http: &Http,
    config: &ServerConfig,
    wanted: &[String],
    limit: Duration,
) -> Result<Found, CallError> {
    let candidates = match config.dialect {
        Some(dialect) => vec![dialect],
        None => Dialect::ALL.to_vec(),
    };
    let mut said = Vec::new();
    for dialect in candidates {
        match listed(http, dialect, limit).await? {
            Ok(listed) => return Ok(found(http, config, dialect, &listed, wanted, limit).await),
            Err(why) => said.push(format!("{}: {why}", dialect.as_str())),
        }
    }
    Err(CallError::Unusable(format!(
        "speaks no dialect that is known here ({})",
        said.join("; ")
    )))
}

/// The models that a server lists in a dialect, or why it does not speak it.
async fn listed(
    http: &Http,
    dialect: Dialect,
    limit: Duration,
) -> Result<Result<Vec<Listed>, String>, CallError> {
    let path = match dialect {
        Dialect::OpenAi => "/v1/models",
        Dialect::Ollama => "/api/tags",
        Dialect::Generate => "/health",
    };
    if dialect == Dialect::Ollama {
        // Others have the list as well, and nothing else of it.
        let (_, version) = http.look("/api/version", None, limit).await?;
        if !version.is_some_and(|version| version["version"].is_string()) {
            return Ok(Err("no /api/version".to_owned()));
        }
    }
    let (status, body) = http.look(path, None, limit).await?;
    if matches!(status, 401 | 403) {
        return Err(CallError::Unusable(format!(
            "wants another key (status {status}): name one with `key_env` or `key_file`"
        )));
    }
    let Some(body) = body else {
        if dialect == Dialect::OpenAi && status == 200 {
            return Ok(Ok(vec![Listed {
                name: UNLISTED.to_owned(),
                context: None,
                reported: Reported::new(),
                verified: false,
            }]));
        }
        return Ok(Err(format!("{path} answers {status} without JSON")));
    };
    let read = match dialect {
        Dialect::OpenAi => openai(&body),
        Dialect::Ollama => ollama(&body),
        Dialect::Generate => generate(&body)?,
    };
    Ok(read.ok_or_else(|| match error_message(&body) {
        Some(message) => format!("{path} answers {status}: {message}"),
        None => format!("{path} answers {status} with something else"),
    }))
}

fn openai(body: &Value) -> Option<Vec<Listed>> {
    let data = body.get("data")?.as_array()?;
    let entry = |model: &Value| {
        let meta = &model["meta"];
        let context = [
            &model["max_model_len"],
            &model["loaded_context_length"],
            &meta["n_ctx"],
            &model["context_length"],
            &model["context_window"],
        ];
        let reported = ["root", "owned_by", "quantization", "size"]
            .iter()
            .filter_map(|key| Some((*key, told(model.get(*key)?)?)));
        let of_file = ["n_params", "size", "n_vocab", "n_embd"]
            .iter()
            .filter_map(|key| Some((*key, told(meta.get(*key)?)?)));
        Some(Listed {
            name: model["id"].as_str()?.to_owned(),
            context: context.into_iter().find_map(count),
            reported: reported.chain(of_file).collect(),
            verified: false,
        })
    };
    Some(data.iter().filter_map(entry).collect())
}

fn ollama(body: &Value) -> Option<Vec<Listed>> {
    let models = body.get("models")?.as_array()?;
    let entry = |model: &Value| {
        let digest = model["digest"].as_str().unwrap_or_default();
        let quantisation = model["details"]["quantization_level"].as_str();
        let mut reported = Reported::from([("digest", shown(digest))]);
        reported.extend(quantisation.map(|q| ("quantisation", shown(q))));
        Some(Listed {
            name: model["name"]
                .as_str()
                .or(model["model"].as_str())?
                .to_owned(),
            context: None,
            reported,
            verified: digest.len() >= 64,
        })
    };
    Some(models.iter().filter_map(entry).collect())
}

/// Only a server that has loaded its model has one.
fn generate(body: &Value) -> Result<Option<Vec<Listed>>, CallError> {
    if !body["model"].is_string() || body.get("status").is_none() {
        return Ok(None);
    }
    if body["loaded"] == Value::Bool(false) {
        return Err(CallError::Unusable("is still loading its model".to_owned()));
    }
    let name = body["model"].as_str().unwrap_or_default().to_owned();
    Ok(Some(vec![Listed {
        name,
        context: None,
        reported: Reported::new(),
        verified: false,
    }]))
}

async fn found(
    http: &Http,
    config: &ServerConfig,
    dialect: Dialect,
    listed: &[Listed],
    wanted: &[String],
    limit: Duration,
) -> Found {
    let mut models = Vec::new();
    let mut missing = Vec::new();
    for ours in wanted {
        match choose(config, dialect, listed, ours) {
            Ok(listed) => {
                let known = match dialect {
                    Dialect::Ollama => trained_context(http, &listed.name, limit).await,
                    Dialect::OpenAi if listed.context.is_none() => {
                        running_context(http, limit).await
                    }
                    _ => listed.context,
                };
                let context = match (known, config.context) {
                    (Some(known), Some(most)) => Some(known.min(most)),
                    (known, most) => known.or(most),
                };
                models.push(Served {
                    ours: ours.clone(),
                    theirs: listed.name.clone(),
                    context,
                    reported: listed.reported.clone(),
                    verified: listed.verified,
                });
            }
            Err(reason) => missing.push(reason),
        }
    }
    Found {
        dialect,
        models,
        missing,
        changed: Vec::new(),
    }
}

/// Which of its models a name stands for.
fn choose<'a>(
    config: &ServerConfig,
    dialect: Dialect,
    listed: &'a [Listed],
    ours: &str,
) -> Result<&'a Listed, String> {
    let mapped = config.models.get(ours);
    let theirs = mapped.map_or(ours, String::as_str);
    let is_it = |listed: &&Listed| {
        let bare = listed.name.strip_suffix(":latest").unwrap_or(&listed.name);
        listed.name == theirs || (dialect == Dialect::Ollama && bare == theirs)
    };
    if let Some(found) = listed.iter().find(is_it) {
        return Ok(found);
    }
    // Names of such servers are no names of models: whoever writes one means what is there.
    let only = match (mapped, listed) {
        (None, [only]) => Some(only),
        _ => None,
    };
    only.ok_or_else(|| {
        let names: Vec<String> = listed.iter().take(MAX_LISTED).map(|l| format!("`{}`", shown(&l.name))).collect();
        let there = match names.len() {
            0 => "no model".to_owned(),
            _ => names.join(", "),
        };
        let more = if listed.len() > MAX_LISTED { " and others" } else { "" };
        format!("has no model `{theirs}`, but {there}{more}; say which one is `{ours}`: --server {ours}=URL#NAME, or `models = {{ \"{ours}\" = \"…\" }}` in a [[server]]")
    })
}

/// The context that a model of Ollama's was trained for.
async fn trained_context(http: &Http, model: &str, limit: Duration) -> Option<u32> {
    let body = json!({"model": model});
    let (_, told) = http.look("/api/show", Some(&body), limit).await.ok()?;
    let told = told?;
    let info = told["model_info"].as_object()?;
    info.iter()
        .find(|(key, _)| key.ends_with(".context_length"))
        .and_then(|(_, value)| count(value))
}

/// The context of one request on a llama-server.
async fn running_context(http: &Http, limit: Duration) -> Option<u32> {
    let (_, told) = http.look("/props", None, limit).await.ok()?;
    count(&told?["default_generation_settings"]["n_ctx"])
}

fn count(value: &Value) -> Option<u32> {
    value
        .as_u64()
        .filter(|n| *n > 0)
        .and_then(|n| u32::try_from(n).ok())
}

/// A value of a server in words; nothing for one that has others inside.
fn told(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(shown(text)),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
