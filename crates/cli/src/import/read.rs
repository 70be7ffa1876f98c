//! What the files of an earlier set-up say.
//!
//! | file | form |
//! |---|---|
//! | `distributed_config.json` | machines with `ip` and `port`, `purpose`, `max_tokens`, `temperature`; `urls` repeats addresses |
//! | `cluster_config.json` | `vllm` with one address per model; other parts, each `enabled` or not |
//! | `model_config.py` | constants with the names of models, and settings of each |

use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value};

/// Where Ollama listens by itself.
const OLLAMA: &str = "http://127.0.0.1:11434";

/// A job of the grading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Judges each criterion.
    Analysis,
    /// Writes to the student.
    Feedback,
}

impl Job {
    /// The job that a text is about.
    fn of(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if text.contains("feedback") {
            return Some(Self::Feedback);
        }
        (text.contains("code") || text.contains("analysis") || text.contains("grading"))
            .then_some(Self::Analysis)
    }

    /// What its model is called here.
    pub const fn model(self) -> &'static str {
        match self {
            Self::Analysis => "code",
            Self::Feedback => "feedback",
        }
    }
}

/// A server of the set-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub name: String,
    pub url: String,
    pub job: Job,
    /// The model that the file names; such names are not to be relied on.
    pub model: Option<String>,
    /// The name under which the server has it, where that is sure.
    pub theirs: Option<String>,
    pub max_tokens: Option<u64>,
    pub temperature: Option<f64>,
    /// Tokens of prompt and answer together.
    pub context: Option<u64>,
    /// Longest silence, in seconds.
    pub silence: Option<u64>,
    /// Which file it is from.
    pub from: String,
}

/// What all files say together.
#[derive(Debug, Default)]
pub struct Imported {
    pub machines: Vec<Machine>,
    pub parallel: Option<u64>,
    /// What could not be mapped, and what is to be looked at.
    pub notes: Vec<String>,
}

impl Imported {
    /// The jobs with the servers for each.
    pub fn jobs(&self) -> Vec<(Job, Vec<String>)> {
        [Job::Analysis, Job::Feedback]
            .into_iter()
            .map(|job| {
                let machines = self.machines.iter().filter(|machine| machine.job == job);
                (
                    job,
                    machines
                        .map(|machine| machine.name.clone())
                        .collect::<Vec<_>>(),
                )
            })
            .filter(|(_, names)| !names.is_empty())
            .collect()
    }

    fn note(&mut self, from: &str, what: String) {
        self.notes.push(format!("{from}: {what}"));
    }

    fn add(&mut self, mut machine: Machine) {
        if let Some(known) = self
            .machines
            .iter()
            .find(|known| known.url == machine.url && known.job == machine.job)
        {
            let note = format!("{} is in {} already; that counts", machine.url, known.from);
            return self.note(&machine.from.clone(), note);
        }
        while self.machines.iter().any(|known| known.name == machine.name) {
            machine.name.push_str("-2");
        }
        self.machines.push(machine);
    }
}

/// Adds what one file says.
///
/// # Errors
/// If it is none of these.
pub fn add(imported: &mut Imported, path: &Path, text: &str) -> anyhow::Result<()> {
    let from = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    if path.extension().is_some_and(|e| e == "py") {
        python(imported, &from, text);
        return Ok(());
    }
    let value: Value = serde_json::from_str(text).context("it is no JSON")?;
    let Value::Object(map) = value else {
        anyhow::bail!("it is no JSON object");
    };
    match map.contains_key("vllm") || map.contains_key("cluster_nodes") {
        true => cluster(imported, &from, &map),
        false => distributed(imported, &from, &map),
    }
    Ok(())
}

fn distributed(imported: &mut Imported, from: &str, map: &Map<String, Value>) {
    if map.get("distributed_mode") == Some(&Value::Bool(false)) {
        imported.note(
            from,
            "`distributed_mode` is off there; its machines are taken all the same".into(),
        );
    }
    let mut addresses = Vec::new();
    for (key, entry) in map {
        let (Some(ip), Some(port)) = (entry["ip"].as_str(), entry["port"].as_u64()) else {
            if !["distributed_mode", "urls"].contains(&key.as_str()) {
                let why = match entry.is_object() {
                    true => ", because it has no `ip` and `port`",
                    false => "",
                };
                imported.note(from, format!("`{key}` is not mapped{why}"));
            }
            continue;
        };
        let host = match ip.contains(':') {
            true => format!("[{ip}]"),
            false => ip.to_owned(),
        };
        let url = format!("http://{host}:{port}");
        addresses.push(url.clone());
        let purpose = entry["purpose"].as_str();
        let Some(job) = purpose.and_then(Job::of) else {
            let said = purpose.unwrap_or("nothing");
            imported.note(from, format!("`{key}` is left out: `purpose` says \"{said}\", which is neither code analysis nor feedback"));
            continue;
        };
        let others = [
            "ip",
            "port",
            "model",
            "purpose",
            "max_tokens",
            "temperature",
        ];
        let rest = entry.as_object().into_iter().flat_map(Map::keys);
        let rest: Vec<String> = rest
            .filter(|name| !others.contains(&name.as_str()))
            .map(|name| format!("`{key}.{name}`"))
            .collect();
        if !rest.is_empty() {
            imported.note(from, format!("not mapped: {}", rest.join(", ")));
        }
        imported.add(Machine {
            name: key.clone(),
            url,
            job,
            model: entry["model"].as_str().map(str::to_owned),
            theirs: None,
            max_tokens: entry["max_tokens"].as_u64(),
            temperature: entry["temperature"].as_f64(),
            context: None,
            silence: None,
            from: from.to_owned(),
        });
    }
    let urls = map.get("urls").and_then(Value::as_object);
    for (key, url) in urls.into_iter().flatten() {
        let url = url.as_str().unwrap_or_default().trim_end_matches('/');
        if !addresses.iter().any(|known| known == url) {
            imported.note(
                from,
                format!("`urls.{key}` is {url}, which is none of the machines; the machines count"),
            );
        }
    }
}

fn cluster(imported: &mut Imported, from: &str, map: &Map<String, Value>) {
    for (key, part) in map {
        let is_off = part["enabled"] == Value::Bool(false);
        match key.as_str() {
            _ if is_off => {
                imported.note(from, format!("`{key}` is not enabled there, and left out"))
            }
            "vllm" => vllm(imported, from, part),
            "batch_processing" => {
                let workers = ["max_workers", "workers", "parallel"];
                imported.parallel = workers
                    .iter()
                    .find_map(|name| part[*name].as_u64())
                    .or(imported.parallel);
                if imported.parallel.is_none() {
                    imported.note(from, format!("`{key}` is not mapped"));
                }
            }
            _ => imported.note(from, format!("`{key}` is not mapped")),
        }
    }
}

/// Each model goes to the address whose key is in its name: `qwen_server_url` has `Qwen/Qwen3-Coder…`.
fn vllm(imported: &mut Imported, from: &str, part: &Value) {
    let plain = |text: &str| -> String {
        let letters = text.chars().filter(char::is_ascii_alphanumeric);
        letters.collect::<String>().to_ascii_lowercase()
    };
    let urls: Vec<(String, String)> = part
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, url)| {
            let family = key
                .strip_suffix("_server_url")
                .or(key.strip_suffix("_url"))?;
            Some((
                plain(family),
                url.as_str()?.trim_end_matches('/').to_owned(),
            ))
        })
        .collect();
    for (key, model) in part["models"].as_object().into_iter().flatten() {
        let (Some(job), Some(model)) = (Job::of(key), model.as_str()) else {
            imported.note(from, format!("`vllm.models.{key}` is not mapped"));
            continue;
        };
        let name = plain(model);
        let Some((family, url)) = urls
            .iter()
            .find(|(family, _)| name.contains(family.as_str()))
        else {
            imported.note(
                from,
                format!("`vllm.models.{key}` is \"{model}\", for which there is no address"),
            );
            continue;
        };
        imported.add(Machine {
            name: format!("vllm-{family}"),
            url: url.clone(),
            job,
            model: Some(model.to_owned()),
            // vLLM knows a model by the name that it was started with.
            theirs: Some(model.to_owned()),
            max_tokens: None,
            temperature: None,
            context: None,
            silence: part["timeout"].as_u64().filter(|seconds| *seconds > 0),
            from: from.to_owned(),
        });
    }
}

/// Names the constants whose value is computed.
fn note_computed(imported: &mut Imported, from: &str, text: &str) {
    let constants = [
        "CODE_MODEL",
        "FEEDBACK_MODEL",
        "PRIMARY_GRADING_MODEL",
        "MODEL_SETTINGS",
    ];
    for name in constants
        .into_iter()
        .filter(|name| literal(text, name).is_none())
    {
        let is_there = |line: &str| {
            let rest = line.strip_prefix(name).map(str::trim_start);
            rest.is_some_and(|rest| rest.starts_with('='))
        };
        if text.lines().any(is_there) {
            imported.note(
                from,
                format!("`{name}` is computed there, which is not run here"),
            );
        }
    }
}

/// Names the settings of a model that have no place here.
fn note_settings(imported: &mut Imported, from: &str, model: &str, setting: &Value) {
    let others = setting.as_object().into_iter().flat_map(Map::keys);
    let others =
        others.filter(|name| !["temperature", "max_tokens", "num_ctx"].contains(&name.as_str()));
    let others: Vec<String> = others.map(|name| format!("`{name}`")).collect();
    if !others.is_empty() {
        imported.note(
            from,
            format!(
                "settings of {model} that are not mapped: {}",
                others.join(", ")
            ),
        );
    }
}

/// Python, read as text: constants whose value is a text, a list or a dictionary.
fn python(imported: &mut Imported, from: &str, text: &str) {
    let settings = literal(text, "MODEL_SETTINGS").unwrap_or(Value::Null);
    let of = |name: &str| literal(text, name).and_then(|value| value.as_str().map(str::to_owned));
    let mut wanted: Vec<(Job, String, String)> = Vec::new();
    for (constant, job) in [
        ("CODE_MODEL", Job::Analysis),
        ("FEEDBACK_MODEL", Job::Feedback),
    ] {
        wanted.extend(of(constant).map(|model| (job, model, constant.to_owned())));
    }
    if wanted.is_empty() {
        let primary = "PRIMARY_GRADING_MODEL";
        wanted.extend(of(primary).map(|model| (Job::Analysis, model, primary.to_owned())));
    }
    if let Some(Value::Array(fallbacks)) = literal(text, "FALLBACK_MODELS") {
        let names: Vec<&str> = fallbacks.iter().filter_map(Value::as_str).collect();
        imported.note(from, format!("`FALLBACK_MODELS` is not mapped ({}): equal servers take over for each other here, other models do not", names.join(", ")));
    }
    note_computed(imported, from, text);
    if wanted.is_empty() {
        imported.note(from, "no constant is there that names a model (CODE_MODEL, FEEDBACK_MODEL, PRIMARY_GRADING_MODEL)".into());
    }
    for (job, model, constant) in wanted {
        if model.contains("://") || model.starts_with("disaggregated:") {
            imported.note(
                from,
                format!("`{constant}` is \"{model}\", which is not mapped"),
            );
            continue;
        }
        if !model.contains(':') {
            imported.note(from, format!(
                "`{constant}` is \"{model}\", a model of Hugging Face, and no server is named for it: add a [[server]], or load it with --model"
            ));
            continue;
        }
        let setting = &settings[&model];
        note_settings(imported, from, &model, setting);
        imported.add(Machine {
            name: format!("ollama-{}", job.model()),
            url: OLLAMA.to_owned(),
            job,
            model: None,
            theirs: Some(model.clone()),
            max_tokens: setting["max_tokens"].as_u64(),
            temperature: setting["temperature"].as_f64(),
            context: setting["num_ctx"].as_u64(),
            silence: None,
            from: format!("{from}, {constant}"),
        });
    }
}

/// The value of a constant that stands at the beginning of a line. Such values are also YAML, but for the names of truth.
fn literal(text: &str, name: &str) -> Option<Value> {
    let mut offset = 0;
    let mut found = None;
    for line in text.split_inclusive('\n') {
        let rest = line.strip_prefix(name).map(str::trim_start);
        if let Some(value) = rest.and_then(|rest| rest.strip_prefix('='))
            && !value.starts_with('=')
        {
            let start = offset + line.len() - value.len();
            // As in Python, the last one counts.
            found = parse(text[start..].trim_start());
        }
        offset += line.len();
    }
    found
}

/// A text, a list or a dictionary with nothing behind it; anything else is computed, and not known here.
fn parse(text: &str) -> Option<Value> {
    let end = match text.chars().next()? {
        quote @ ('"' | '\'') => text[1..].find(quote)? + 2,
        '[' | '{' => bracket_end(text)?,
        _ => return None,
    };
    let behind = text[end..].lines().next().unwrap_or_default().trim();
    if !behind.is_empty() && !behind.starts_with('#') {
        return None;
    }
    serde_saphyr::from_str(&text[..end]).ok()
}

/// Behind the bracket that closes the first one, over texts and comments.
fn bracket_end(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut comment) = (0_u32, None, false);
    for (at, c) in text.char_indices() {
        match (c, quote) {
            ('\n', _) => comment = false,
            _ if comment => {}
            (c, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('#', None) => comment = true,
            ('"' | '\'', None) => quote = Some(c),
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Imported {
        let mut imported = Imported::default();
        for (name, text) in files {
            add(&mut imported, Path::new(name), text).unwrap();
        }
        imported
    }

    fn shown(imported: &Imported) -> Vec<String> {
        let machines = imported.machines.iter();
        let show = |m: &Machine| {
            let theirs = m.theirs.as_deref().unwrap_or("-");
            format!(
                "{} {} {} {theirs} {:?} {:?}",
                m.name,
                m.url,
                m.job.model(),
                m.max_tokens,
                m.temperature
            )
        };
        machines.map(show).collect()
    }

    #[test]
    fn machines_are_taken_by_what_they_are_for() {
        let text = r#"{"distributed_mode": true,
            "mac_1": {"ip": "10.0.0.1", "port": 5001, "model": "org/a", "purpose": "feedback_generation", "max_tokens": 1200, "temperature": 0.3, "specs": "x"},
            "spark_2": {"ip": "10.0.0.2", "port": 5002, "model": "org/b", "purpose": "code_analysis", "max_tokens": 1800, "temperature": 0.1},
            "other": {"ip": "10.0.0.3", "port": 1, "purpose": "lunch"},
            "urls": {"qwen_server": "http://10.0.0.2:5002", "gemma_server": "http://10.0.0.9:5001"}}"#;
        let imported = read(&[("distributed_config.json", text)]);
        assert_eq!(
            shown(&imported),
            [
                "mac_1 http://10.0.0.1:5001 feedback - Some(1200) Some(0.3)",
                "spark_2 http://10.0.0.2:5002 code - Some(1800) Some(0.1)",
            ]
        );
        let notes = imported.notes.join("\n");
        for part in [
            "`mac_1.specs`",
            "`other` is left out",
            "lunch",
            "`urls.gemma_server` is http://10.0.0.9:5001",
        ] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
        assert_eq!(imported.notes.len(), 3);
    }

    #[test]
    fn parts_that_are_off_are_named() {
        let text = r#"{"vllm": {"enabled": true, "qwen_server_url": "http://a:8000", "gptoss_server_url": "http://b:8000/",
            "models": {"code_analysis": "Qwen/Qwen3-Coder-30B", "feedback": "openai/gpt-oss-120b"}, "timeout": 300},
            "parallax": {"enabled": false, "url": "http://c:3001"}, "cluster_nodes": [], "batch_processing": {"max_workers": 4}}"#;
        let imported = read(&[("cluster_config.json", text)]);
        assert_eq!(
            shown(&imported),
            [
                "vllm-qwen http://a:8000 code Qwen/Qwen3-Coder-30B None None",
                "vllm-gptoss http://b:8000 feedback openai/gpt-oss-120b None None",
            ]
        );
        assert_eq!(
            (imported.parallel, imported.machines[0].silence),
            (Some(4), Some(300))
        );
        let notes = imported.notes.join("\n");
        assert!(
            notes.contains("`parallax` is not enabled")
                && notes.contains("`cluster_nodes` is not mapped"),
            "{notes}"
        );
        let off = text.replace("\"enabled\": true", "\"enabled\": false");
        let off = read(&[("cluster_config.json", &off)]);
        assert!(off.machines.is_empty() && off.notes[0].contains("`vllm` is not enabled"));
    }

    #[test]
    fn python_is_read_and_not_run() {
        let two = "import os\n# CODE_MODEL = \"no\"\nCODE_MODEL = \"qwen3-coder:30b\"  # fast\nFEEDBACK_MODEL='org/gemma-3'\n";
        let imported = read(&[("model_config.py", two)]);
        assert_eq!(
            shown(&imported),
            ["ollama-code http://127.0.0.1:11434 code qwen3-coder:30b None None"]
        );
        assert!(
            imported.notes[0].contains("org/gemma-3"),
            "{:?}",
            imported.notes
        );
        let primary = "PRIMARY_GRADING_MODEL = \"gemma3:27b\"\nFALLBACK_MODELS = [\n  'a:1',  # first ]\n  \"b:2\",\n]\n\
            MODEL_SETTINGS = {\n    \"gemma3:27b\": {\"temperature\": 0.2, 'max_tokens': 900, 'num_ctx': 16384, 'top_k': 5},  # {\n    'a:1': {},\n}\n";
        let imported = read(&[("model_config.py", primary)]);
        assert_eq!(
            shown(&imported),
            ["ollama-code http://127.0.0.1:11434 code gemma3:27b Some(900) Some(0.2)"]
        );
        assert!(
            imported.notes[0].contains("a:1, b:2"),
            "{:?}",
            imported.notes
        );
        let dangerous = read(&[(
            "x.py",
            "__import__('os').system('false')\nCODE_MODEL = f(\"x\")\n",
        )]);
        assert!(
            dangerous.machines.is_empty() && dangerous.notes[0].contains("is computed"),
            "{:?}",
            dangerous.notes
        );
        let computed = "CODE_MODEL = os.environ.get(\"CODE_MODEL\", \"qwen3-coder:30b\")\nFEEDBACK_MODEL = \"a:1\"\nFEEDBACK_MODEL = \"b:2\"\n";
        let computed = read(&[("x.py", computed)]);
        assert_eq!(
            shown(&computed),
            ["ollama-feedback http://127.0.0.1:11434 feedback b:2 None None"]
        );
        assert!(computed.notes[0].contains("`CODE_MODEL` is computed"));
        let disaggregated = read(&[("x.py", "CODE_MODEL = \"disaggregated:qwen\"\n")]);
        assert!(disaggregated.notes[0].contains("not mapped"));
    }

    #[test]
    fn what_is_none_of_these_is_refused_without_a_panic() {
        for text in ["", "[]", "3", "{"] {
            assert!(
                add(&mut Imported::default(), Path::new("x.json"), text).is_err(),
                "{text}"
            );
        }
        for text in [
            "CODE_MODEL =",
            "CODE_MODEL = \"",
            "CODE_MODEL = {'a'",
            "CODE_MODEL == \"x\"",
            "MODEL_SETTINGS = [}",
        ] {
            assert!(read(&[("x.py", text)]).machines.is_empty(), "{text}");
        }
        assert!(
            read(&[("x.json", "{\"a\": {\"ip\": 3}, \"urls\": 3, \"b\": null}")])
                .machines
                .is_empty()
        );
        assert!(
            read(&[("x.json", "{\"vllm\": 3, \"batch_processing\": []}")])
                .machines
                .is_empty()
        );
    }
}
