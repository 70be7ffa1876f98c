//! Environment variables, read once.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use tandem_coordinator::Secret;
use tracing_subscriber::EnvFilter;

/// Where others keep models; the first folder that has a name counts.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Ollama's.
    pub ollama: Vec<PathBuf>,
    /// LM Studio's.
    pub lm_studio: Vec<PathBuf>,
    /// Those of the Hugging Face hub.
    pub hub: Vec<PathBuf>,
}

/// What the environment says.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `TANDEM_LOG`: which events are logged, such as `debug` or `tandem_node=debug,warn`.
    log: Option<String>,
    /// Where things are kept that can be made again: `TANDEM_CACHE`, else `tandem` below
    /// `XDG_CACHE_HOME` or `~/.cache`.
    cache: Option<PathBuf>,
    /// Where things are kept that cannot be made again: `TANDEM_DATA`, else `tandem` below
    /// `XDG_DATA_HOME` or `~/.local/share`.
    data: Option<PathBuf>,
    /// Where processes of this user on this machine meet: `tandem-` and the number of the home folder's owner, in the
    /// system's folder for temporary files.
    pub meeting: PathBuf,
    /// Where other programs keep models: `OLLAMA_MODELS`, `HF_HUB_CACHE`, `HF_HOME`, and their usual folders.
    pub places: Places,
    /// `HF_ENDPOINT`: where the Hugging Face hub is.
    pub hub_endpoint: Option<String>,
    /// `HF_TOKEN`: for repositories that not everybody may read.
    pub hub_token: Option<Secret>,
}

/// Ollama's folder where it runs as a service of the system.
const OLLAMA_SERVICE: &str = "/usr/share/ollama/.ollama/models";

/// The number of the user to whom the home folder belongs.
#[cfg(unix)]
fn owner(home: Option<String>) -> u32 {
    use std::os::unix::fs::MetadataExt;
    let meta = home.and_then(|home| std::fs::metadata(home).ok());
    meta.map_or(0, |meta| meta.uid())
}

#[cfg(not(unix))]
const fn owner(_: Option<String>) -> u32 {
    0
}

impl Environment {
    /// Reads the variables of this process.
    pub fn read() -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let below = |name: &str, path: &str| text(name).map(|v| Path::new(&v).join(path));
        Self {
            log: text("TANDEM_LOG"),
            cache: below("TANDEM_CACHE", "")
                .or_else(|| below("XDG_CACHE_HOME", "tandem"))
                .or_else(|| below("HOME", ".cache/tandem")),
            data: below("TANDEM_DATA", "")
                .or_else(|| below("XDG_DATA_HOME", "tandem"))
                .or_else(|| below("HOME", ".local/share/tandem")),
            meeting: std::env::temp_dir().join(format!("tandem-{}", owner(text("HOME")))),
            hub_endpoint: text("HF_ENDPOINT"),
            hub_token: text("HF_TOKEN").map(|token| Secret::new(&token)),
            places: Places {
                ollama: [
                    below("OLLAMA_MODELS", ""),
                    below("HOME", ".ollama/models"),
                    Some(PathBuf::from(OLLAMA_SERVICE)),
                ]
                .into_iter()
                .flatten()
                .collect(),
                lm_studio: [
                    below("HOME", ".lmstudio/models"),
                    below("HOME", ".cache/lm-studio/models"),
                ]
                .into_iter()
                .flatten()
                .collect(),
                hub: [
                    below("HF_HUB_CACHE", ""),
                    below("HF_HOME", "hub"),
                    below("HOME", ".cache/huggingface/hub"),
                ]
                .into_iter()
                .flatten()
                .collect(),
            },
        }
    }

    /// The key that a variable holds.
    ///
    /// # Errors
    /// If it is not set.
    pub fn key(&self, variable: &str) -> anyhow::Result<Secret> {
        let key = std::env::var(variable).ok().filter(|key| !key.is_empty());
        let key =
            key.ok_or_else(|| anyhow::anyhow!("the environment variable {variable} is not set"))?;
        Ok(Secret::new(&key))
    }

    /// The key for a server that is named on the command line, if there is one: in `TANDEM_KEY_NAME`, with the name in
    /// capitals and `_` for what is neither letter nor digit.
    pub fn key_of(&self, server: &str) -> Option<Secret> {
        let plain = |c: char| match c.is_ascii_alphanumeric() {
            true => c.to_ascii_uppercase(),
            false => '_',
        };
        let name: String = server.chars().map(plain).collect();
        self.key(&format!("TANDEM_KEY_{name}")).ok()
    }

    /// The folder for fixtures.
    ///
    /// # Errors
    /// If no variable says where it could be.
    pub fn fixtures(&self) -> anyhow::Result<PathBuf> {
        let cache = self.cache.as_ref();
        let cache = cache.ok_or_else(|| {
            anyhow::anyhow!(
                "there is no cache folder for the demo's models: set TANDEM_CACHE to one"
            )
        })?;
        Ok(cache.join("fixtures"))
    }

    /// The folder for model files that were fetched.
    ///
    /// # Errors
    /// If no variable says where it could be.
    pub fn models(&self) -> anyhow::Result<PathBuf> {
        let cache = self.cache.as_ref();
        let cache = cache.ok_or_else(|| {
            anyhow::anyhow!(
                "there is no folder for models that are fetched: set TANDEM_CACHE to one"
            )
        })?;
        Ok(cache.join("models"))
    }

    /// The folder for the keys and certificates of this machine.
    ///
    /// # Errors
    /// If no variable says where it could be.
    pub fn cluster(&self) -> anyhow::Result<PathBuf> {
        let data = self.data.as_ref();
        let data = data.ok_or_else(|| {
            anyhow::anyhow!("there is no folder for this machine's keys: set TANDEM_DATA to one")
        })?;
        Ok(data.join("cluster"))
    }

    /// The file of the gradebook.
    ///
    /// # Errors
    /// If no variable says where it could be.
    pub fn gradebook(&self) -> anyhow::Result<PathBuf> {
        let data = self.data.as_ref();
        let data = data.ok_or_else(|| {
            anyhow::anyhow!("there is no folder for the gradebook: set TANDEM_DATA to one")
        })?;
        Ok(data.join("gradebook.sqlite"))
    }

    /// The folder for fingerprints of model files; none if no variable says where it could be.
    pub fn fingerprints(&self) -> Option<PathBuf> {
        self.data.as_ref().map(|data| data.join("fingerprints"))
    }

    /// The file of what the names of models in this configuration stand for; none if no variable says where it could be.
    pub fn pins(&self, config: &Path) -> Option<PathBuf> {
        let path = config.canonicalize().unwrap_or_else(|_| config.to_owned());
        let digest = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
        let data = self.data.as_ref()?;
        Some(data.join("pins").join(format!("{}.json", &digest[..16])))
    }

    /// Sends logs to standard error; `level` holds unless `TANDEM_LOG` says otherwise. Of the
    /// engine's own messages errors are shown.
    pub fn start_logging(&self, level: &str) {
        let filter = match &self.log {
            Some(log) => EnvFilter::new(log),
            None => EnvFilter::new(format!(
                "{level},llama-cpp-2=error,llama.cpp=error,ggml=error"
            )),
        };
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .init();
    }
}
