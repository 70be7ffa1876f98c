//! The configuration file: the coordinator's, and what the command line adds to it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Deserialize;
use tandem_coordinator::{Config as CoordinatorConfig, ServerConfig};
use tandem_grading::JobConfig;
use tandem_grading::limits::MAX_PARALLEL;
use tandem_proto::CodecChoice;

use crate::address::{ANY_PORT, listen_address};
use crate::environment::Environment;
use crate::{files, servers};

/// Tokens of an analysis at most, where no file says it. An answer that is cut there has no score.
pub const ANALYSIS_TOKENS: u32 = 6000;
/// The same of a feedback.
pub const FEEDBACK_TOKENS: u32 = 400;
/// Submissions at once, where no file says it.
const AT_ONCE: usize = 2;

/// Largest configuration file, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where `tandem serve` listens.
    pub listen: SocketAddr,
    /// Nodes, models and chunk.
    pub coordinator: CoordinatorConfig,
    /// The jobs of `tandem grade`.
    pub grading: Grading,
    /// What is allowed and looks like a mistake.
    pub warnings: Vec<String>,
}

/// The jobs of `tandem grade`.
#[derive(Debug, Clone, PartialEq)]
pub struct Grading {
    /// Submissions at once.
    pub parallel: usize,
    /// Each answer gets the same bits whenever it is asked for, which takes longer.
    pub reproducible: bool,
    /// The job that assesses each criterion.
    pub code_analysis: JobConfig,
    /// The job that writes to the student.
    pub feedback: JobConfig,
}

impl Grading {
    /// Which model takes which job where nobody says it: the one that is called `code`, else the first, analyses, and the
    /// one that is called `feedback`, else the last, writes.
    fn of(config: &CoordinatorConfig) -> Self {
        let names: Vec<&String> = config.models.iter().map(|m| &m.name).collect();
        let job = |wanted: &str, other: Option<&&String>, max_tokens: u32| JobConfig {
            model: match names.iter().any(|name| *name == wanted) {
                true => wanted.to_owned(),
                false => other.map_or_else(String::new, |name| (*name).clone()),
            },
            max_tokens,
            temperature: 0.0,
            seed: None,
        };
        Self {
            parallel: AT_ONCE,
            reproducible: false,
            code_analysis: job("code", names.first(), ANALYSIS_TOKENS),
            feedback: job("feedback", names.last(), FEEDBACK_TOKENS),
        }
    }
}

/// What the coordinator does not read of the file.
#[derive(Deserialize)]
struct Typed {
    grading: Option<TypedGrading>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedGrading {
    #[serde(default = "default_parallel")]
    parallel: usize,
    #[serde(default)]
    reproducible: bool,
    code_analysis: Option<JobConfig>,
    feedback: Option<JobConfig>,
}

const fn default_parallel() -> usize {
    AT_ONCE
}

impl Config {
    /// Of a process that serves pages alone.
    pub fn without_models() -> Self {
        let coordinator = CoordinatorConfig::new(Vec::new(), Vec::new());
        Self {
            listen: ANY_PORT,
            warnings: Vec::new(),
            grading: Grading::of(&coordinator),
            coordinator,
        }
    }
}

/// Which configuration, and what replaces a part of it.
#[derive(Args)]
pub struct Arguments {
    /// The configuration: which nodes and models there are; examples/tandem.toml is one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The codec of handoffs instead of the configuration's: auto, raw, plane or q8; the last only if `quality`
    /// under `[handoff]` of the configuration allows it.
    #[arg(long, value_name = "NAME")]
    codec: Option<CodecChoice>,
}

impl Arguments {
    /// The file, if one is given.
    pub const fn file(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// The configuration that these arguments name.
    ///
    /// # Errors
    /// Names the file, the key and the fix.
    pub fn load(&self, environment: &Environment) -> anyhow::Result<Config> {
        let Some(file) = &self.config else {
            bail!("--config is missing: name the configuration file");
        };
        let mut config = load(file)?;
        for server in &mut config.coordinator.servers {
            let folder = file.parent().unwrap_or(Path::new(""));
            servers::complete(server, folder, environment)
                .with_context(|| format!("{}: server `{}`", file.display(), server.name))?;
        }
        config.coordinator.pins = environment.pins(file);
        self.replace(config)
    }

    /// A configuration without a file.
    ///
    /// # Errors
    /// Names the key and the fix.
    pub fn of(&self, coordinator: CoordinatorConfig) -> anyhow::Result<Config> {
        coordinator.validate()?;
        self.replace(Config {
            listen: listen_address(CoordinatorConfig::DEFAULT_LISTEN)
                .map_err(anyhow::Error::msg)?,
            warnings: Vec::new(),
            grading: Grading::of(&coordinator),
            coordinator,
        })
    }

    fn replace(&self, mut config: Config) -> anyhow::Result<Config> {
        if let Some(codec) = self.codec {
            config.coordinator.handoff.codec = codec;
            config.coordinator.validate().context("--codec")?;
        }
        Ok(config)
    }
}

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> anyhow::Result<Config> {
    let text = files::read_text(path, MAX_CONFIG_BYTES).context("the configuration")?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> anyhow::Result<Config> {
    let wrong =
        |e: toml::de::Error| anyhow::anyhow!("{}; correct that line", e.to_string().trim_end());
    let coordinator = CoordinatorConfig::parse(text).map_err(wrong)?;
    let typed: Typed = toml::from_str(text).map_err(wrong)?;
    let listen = listen_address(&coordinator.listen)
        .map_err(|e| anyhow::anyhow!("`listen` is \"{}\": {e}", coordinator.listen))?;
    coordinator.validate()?;
    let grading = match typed.grading {
        Some(typed) => check_grading(typed, &coordinator)?,
        None => Grading::of(&coordinator),
    };
    Ok(Config {
        listen,
        warnings: warnings(&coordinator),
        coordinator,
        grading,
    })
}

fn check_grading(typed: TypedGrading, config: &CoordinatorConfig) -> anyhow::Result<Grading> {
    if typed.parallel == 0 || typed.parallel > MAX_PARALLEL {
        bail!(
            "`grading.parallel` is {}, allowed are 1 to {MAX_PARALLEL}",
            typed.parallel
        );
    }
    Ok(Grading {
        parallel: typed.parallel,
        reproducible: typed.reproducible,
        code_analysis: check_job("code_analysis", typed.code_analysis, config)?,
        feedback: check_job("feedback", typed.feedback, config)?,
    })
}

fn check_job(
    name: &str,
    job: Option<JobConfig>,
    config: &CoordinatorConfig,
) -> anyhow::Result<JobConfig> {
    let key = format!("grading.{name}");
    let Some(job) = job else {
        bail!("`{key}` is missing: add [{key}] with `model` and `max_tokens`");
    };
    let models: Vec<&str> = config.models.iter().map(|m| m.name.as_str()).collect();
    if !models.contains(&job.model.as_str()) {
        bail!(
            "`{key}.model` names unknown model \"{}\": add it as a [[model]], or use one of {}",
            job.model,
            models.join(", ")
        );
    }
    let most = tandem_proto::limits::MAX_GENERATED_TOKENS;
    if job.max_tokens == 0 || job.max_tokens > most {
        bail!(
            "`{key}.max_tokens` is {}, allowed are 1 to {most}",
            job.max_tokens
        );
    }
    let hottest = tandem_api::limits::MAX_TEMPERATURE;
    if !(0.0..=hottest).contains(&job.temperature) {
        bail!(
            "`{key}.temperature` is {}, allowed are 0 (always the likeliest token) to {hottest}",
            job.temperature
        );
    }
    Ok(job)
}

fn warnings(config: &CoordinatorConfig) -> Vec<String> {
    let used: BTreeSet<&String> = config
        .models
        .iter()
        .flat_map(|m| m.prefill.iter().chain(&m.decode))
        .collect();
    let unused = |server: &&ServerConfig| {
        let models = &mut config.models.iter();
        !models.any(|model| model.servers.contains(&server.name))
    };
    let servers = config.servers.iter().filter(unused).map(|server| {
        format!(
            "server `{}` is not used: list it under `servers` of a [[model]], or remove it",
            server.name
        )
    });
    let nodes = config
        .nodes
        .iter()
        .filter(|n| !used.contains(&n.name))
        .map(|n| {
            format!(
                "node `{}` is not used: list it under `prefill` or `decode` of a [[model]], or remove it",
                n.name
            )
        });
    nodes.chain(servers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        listen = "127.0.0.1:9000"
        chunk = 256
        [[node]]
        name = "a"
        address = "10.0.0.1:7001"
        [[node]]
        name = "b"
        address = "10.0.0.2:7001"
        [[model]]
        name = "code"
        prefill = ["a"]
        decode = ["b"]
        [grading]
        parallel = 3
        [grading.code_analysis]
        model = "code"
        max_tokens = 1500
        [grading.feedback]
        model = "code"
        max_tokens = 300
        temperature = 0.5
        seed = 7
    "#;

    #[test]
    fn a_good_file_is_understood() {
        let config = parse(GOOD).unwrap();
        assert_eq!(config.listen.port(), 9000);
        assert_eq!(config.coordinator.chunk, 256);
        assert_eq!(config.coordinator.nodes.len(), 2);
        assert_eq!(config.coordinator.models[0].decode, ["b"]);
        let grading = config.grading;
        assert_eq!(grading.parallel, 3);
        assert_eq!(grading.feedback.seed, Some(7));
        assert!(grading.code_analysis.temperature.abs() < f64::EPSILON);
        assert_eq!(config.warnings, Vec::<String>::new());
    }

    const OTHERS: &str = r#"
            [[server]]
            name = "mac"
            url = "http://10.0.0.3:11434"
            dialect = "auto"
            models = { code = "qwen3-coder:30b" }
            [[pair]]
            name = "rack"
            kind = "llm-d"
            prefill = ["http://10.0.0.1:8000"]
            decode = "http://10.0.0.2:8000/v1"
            [[model]]
            name = "code"
            servers = ["mac", "rack"]
        "#;

    #[test]
    fn servers_and_pairs_of_others_are_servers() {
        let text = OTHERS;
        let config = parse(text).unwrap();
        assert_eq!(
            config.coordinator.servers[1]
                .pair
                .as_ref()
                .unwrap()
                .prefill
                .len(),
            1
        );
        assert_eq!(config.warnings, Vec::<String>::new());
        for (old, new, parts) in [
            (
                "\"auto\"",
                "\"x\"",
                &["unknown dialect `x`", "`generate`"][..],
            ),
            ("\"llm-d\"", "\"x\"", &["vllm", "sglang"]),
            (
                "[\"http://10.0.0.1:8000\"]",
                "[]",
                &["`server[1].prefill`", "http://HOST:PORT"],
            ),
            (
                "http://10.0.0.3:11434",
                "10.0.0.3",
                &["`server[0].url`", "http://HOST:PORT"],
            ),
            (
                "http://10.0.0.3",
                "http://a:b@10.0.0.3",
                &["`server[0].url`", "key_env"],
            ),
            (
                "name = \"rack\"",
                "name = \"mac\"",
                &["`server[1].name`", "must differ"],
            ),
            (
                "\"mac\", \"rack\"",
                "\"mac\", \"spark\"",
                &["`model[0].servers[1]`", "[[server]]"],
            ),
            ("\"mac\", \"rack\"", "", &["`model[0].decode`", "`servers`"]),
        ] {
            assert!(text.contains(old), "{old}");
            let error = format!("{:#}", parse(&text.replacen(old, new, 1)).unwrap_err());
            for part in parts {
                assert!(error.contains(part), "{new}: {error}");
            }
        }
        let unused = parse(&text.replace("\"mac\", \"rack\"", "\"mac\"")).unwrap();
        assert!(
            unused.warnings[0].contains("server `rack`"),
            "{:?}",
            unused.warnings
        );
    }

    /// What to change in the good file, and what the message must say: the key and the fix.
    const BAD: &[(&str, &str, &[&str])] = &[
        ("chunk = 256", "chunks = 256", &["chunks", "`chunk`"]),
        ("chunk = 256", "chunk = 0", &["`chunk`", "1 to"]),
        (
            "chunk = 256",
            "chunk = \"x\"",
            &["chunk", "correct that line"],
        ),
        ("127.0.0.1:9000", "localhost", &["`listen`", "IP:PORT"]),
        (
            "name = \"b\"",
            "name = \"a\"",
            &["`node[1].name`", "must differ"],
        ),
        (
            "10.0.0.2:7001",
            "10.0.0.2",
            &["`node[1].address`", "host:port"],
        ),
        (
            "10.0.0.2:7001",
            "10.0.0.1:7001",
            &["`node[1].address`", "repeats"],
        ),
        (
            "prefill = [\"a\"]",
            "prefill = [\"c\"]",
            &["`model[0].prefill[0]`", "\"c\"", "[[node]]"],
        ),
        (
            "decode = [\"b\"]",
            "decode = []",
            &["`model[0].decode`", "at least one"],
        ),
        (
            "decode = [\"b\"]",
            "",
            &["`model[0].decode`", "at least one"],
        ),
        (
            "decode = [\"b\"]",
            "decode = [\"b\", \"b\"]",
            &["`model[0].decode[1]`", "twice"],
        ),
        (
            "parallel = 3",
            "parallel = 0",
            &["`grading.parallel`", "1 to"],
        ),
        ("parallel = 3", "paralel = 3", &["paralel", "`parallel`"]),
        (
            "max_tokens = 1500",
            "max_tokens = 0",
            &["`grading.code_analysis.max_tokens`", "1 to"],
        ),
        (
            "max_tokens = 300",
            "max_tokens = -1",
            &["max_tokens", "correct that line"],
        ),
        (
            "temperature = 0.5",
            "temperature = 9.0",
            &["`grading.feedback.temperature`", "0 (always"],
        ),
        (
            "[grading.feedback]\n        model = \"code\"",
            "[grading.feedback]\n        model = \"x\"",
            &["`grading.feedback.model`", "\"x\"", "[[model]]"],
        ),
        (
            "[grading.feedback]",
            "[grading.remarks]",
            &["remarks", "`feedback`"],
        ),
    ];

    #[test]
    fn a_bad_file_is_refused_with_key_and_mend() {
        for (from, to, expected) in BAD {
            assert!(GOOD.contains(from), "{from}");
            let error = crate::output::explain(&parse(&GOOD.replace(from, to)).unwrap_err());
            for part in *expected {
                assert!(error.contains(part), "`{part}` is not in: {error}");
            }
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let start = GOOD.find("[grading.feedback]").unwrap();
        for (text, expected) in [
            ("", "[[node]]"),
            ("[[node]]\nname = \"a\"\naddress = \"h:1\"", "[[model]]"),
            (&GOOD[..start], "add [grading.feedback]"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_unused_node_is_worth_a_warning() {
        let config = parse(&GOOD.replace("prefill = [\"a\"]", "")).unwrap();
        assert_eq!(config.warnings.len(), 1);
        assert!(config.warnings[0].contains("`a`"), "{:?}", config.warnings);
    }

    #[test]
    fn the_example_is_good() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tandem.toml");
        let config = load(&example).unwrap();
        assert_eq!(config.warnings, Vec::<String>::new());
        assert_eq!(config.grading.code_analysis.model, "code");
    }
}
