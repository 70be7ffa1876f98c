//! Model files that this machine has: by path, or by the name under which Ollama, LM Studio or the cache of Hugging Face
//! knows them. Their folders are read and never written to.
//!
//! | who | where | names |
//! |---|---|---|
//! | Ollama | `OLLAMA_MODELS`, `~/.ollama/models` | `qwen3-coder:30b`, `hf.co/owner/repo:Q4_K_M` |
//! | LM Studio | `~/.lmstudio/models` | `publisher/repo`, `publisher/repo/file.gguf` |
//! | Hugging Face | `HF_HUB_CACHE`, `HF_HOME/hub`, `~/.cache/huggingface/hub` | `owner/repo`, `owner/repo/file.gguf` |

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::environment::{Environment, Places};
use crate::fetch;

/// Largest manifest of a model, in bytes.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// Folders below each other in which model files are looked for.
const MAX_DEPTH: u32 = 4;
/// Names that a message lists.
const MAX_LISTED: usize = 12;
/// Kind of the layer of a manifest that is a model file.
const MODEL_LAYER: &str = "application/vnd.ollama.image.model";

/// A model as it is named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What it is to be called; by itself its own name.
    pub name: Option<String>,
    /// A path, or the name that somebody else has for it.
    pub source: String,
}

/// A model file that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Name under which requests ask for it.
    pub name: String,
    /// The file; of a model in parts the first.
    pub path: PathBuf,
}

/// Reads `NAME=MODEL` or `MODEL`.
pub fn parse_wanted(text: &str) -> Result<Wanted, String> {
    let named = text.split_once('=').filter(|_| !Path::new(text).is_file());
    let (name, source) = match named {
        Some((name, source)) => (Some(name.to_owned()), source),
        None => (None, text),
    };
    if source.is_empty() || name.as_ref().is_some_and(String::is_empty) {
        return Err("write MODEL or NAME=MODEL, such as code=models/coder.gguf".to_owned());
    }
    Ok(Wanted {
        name,
        source: source.to_owned(),
    })
}

/// The file of a model: one that is here, or one of the Hugging Face hub, which is fetched.
///
/// # Errors
/// As [`find`], or if it cannot be fetched.
pub async fn obtain(wanted: &Wanted, environment: &Environment) -> anyhow::Result<Source> {
    if !wanted.source.starts_with(fetch::PREFIX) {
        return find(wanted, &environment.places);
    }
    let path = fetch::fetch(&wanted.source, environment).await?;
    Ok(Source {
        name: wanted.name.clone().unwrap_or_else(|| stem(&path)),
        path,
    })
}

/// Finds the file of a model on this machine.
///
/// # Errors
/// Says where it was looked for, and what is there.
pub fn find(wanted: &Wanted, places: &Places) -> anyhow::Result<Source> {
    let text = &wanted.source;
    let (own_name, path) = locate(text, places)?;
    Ok(Source {
        name: wanted.name.clone().unwrap_or(own_name),
        path,
    })
}

fn locate(text: &str, places: &Places) -> anyhow::Result<(String, PathBuf)> {
    let path = Path::new(text);
    if path.is_file() {
        return Ok((stem(path), path.to_owned()));
    }
    if path.is_dir() {
        let file = only(text, gguf_files(path))?;
        return Ok((stem(&file), file));
    }
    for folder in &places.ollama {
        if let Some(file) = in_ollama(folder, text)? {
            return Ok((text.to_owned(), file));
        }
    }
    let repositories = (places.lm_studio.iter().map(|place| place.to_owned()))
        .chain(places.hub.iter().map(|place| place.to_owned()));
    for place in repositories {
        if let Some(found) = in_repository(&place, text)? {
            return Ok(found);
        }
    }
    let known = names(places);
    let listed = match known.len() {
        0 => "; Ollama, LM Studio and the Hugging Face cache have none here either".to_owned(),
        n => format!(
            "; by name there are here: {}{}",
            known[..n.min(MAX_LISTED)].join(", "),
            if n > MAX_LISTED { " and others" } else { "" }
        ),
    };
    bail!(
        "there is no file `{text}`, and no model of that name{listed}; give a path, pull it there, or name hf:OWNER/REPO:FILE.gguf"
    )
}

/// The name of a file without what tells its kind and its part.
fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match stem.find("-00001-of-") {
        Some(end) => stem[..end].to_owned(),
        None => stem.into_owned(),
    }
}

/// Model files below a folder: of models in parts the first, and none that only reads images.
fn gguf_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(folder, MAX_DEPTH, &mut found);
    found.sort();
    found
}

fn collect(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if depth > 1 {
                collect(&path, depth - 1, found);
            }
            continue;
        }
        let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
        let is_later_part = name.contains("-of-0") && !name.contains("-00001-of-");
        if name.ends_with(".gguf") && !name.contains("mmproj") && !is_later_part {
            found.push(path);
        }
    }
}

fn only(text: &str, files: Vec<PathBuf>) -> anyhow::Result<PathBuf> {
    match files.as_slice() {
        [] => bail!("`{text}` has no model file (*.gguf)"),
        [file] => Ok(file.clone()),
        files => {
            let names = files.iter().map(|f| f.display().to_string());
            let names: Vec<String> = names.take(MAX_LISTED).collect();
            bail!(
                "`{text}` has several model files; name one:\n  {}",
                names.join("\n  ")
            );
        }
    }
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    kind: String,
    digest: String,
}

/// A model of Ollama, whose manifest names the layer that is the model file.
fn in_ollama(folder: &Path, text: &str) -> anyhow::Result<Option<PathBuf>> {
    let (name, tag) = text.rsplit_once(':').unwrap_or((text, "latest"));
    let parts: Vec<&str> = name.split('/').collect();
    if !parts.iter().chain([&tag]).all(|part| is_plain(part)) {
        return Ok(None);
    }
    let whole = match parts.as_slice() {
        [model] => format!("registry.ollama.ai/library/{model}"),
        [user, model] => format!("registry.ollama.ai/{user}/{model}"),
        [host, user, model] => format!("{host}/{user}/{model}"),
        _ => return Ok(None),
    };
    let path = folder.join("manifests").join(whole).join(tag);
    let Ok(meta) = path.metadata() else {
        return Ok(None);
    };
    let shown = path.display();
    if !meta.is_file() || meta.len() > MAX_MANIFEST_BYTES {
        return Ok(None);
    }
    let bytes = fs::read(&path).with_context(|| format!("cannot read {shown}"))?;
    let manifest: Manifest = serde_json::from_slice(&bytes)
        .with_context(|| format!("{shown} is no manifest of a model"))?;
    let layer = manifest
        .layers
        .iter()
        .find(|layer| layer.kind == MODEL_LAYER);
    let layer = layer.with_context(|| format!("{shown} names no model file"))?;
    let hex = layer.digest.strip_prefix("sha256:");
    let hex = hex.filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    let hex = hex.with_context(|| format!("{shown} names a model file in an unknown way"))?;
    let file = folder.join("blobs").join(format!("sha256-{hex}"));
    if !file.is_file() {
        bail!(
            "Ollama's manifest of `{text}` names {}, which is not there; pull the model again",
            file.display()
        );
    }
    Ok(Some(file))
}

/// True for a part of a path that leads nowhere else.
fn is_plain(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
}

/// A file of `OWNER/REPO`, `OWNER/REPO:PART-OF-ITS-NAME` or `OWNER/REPO/FILE`.
fn in_repository(place: &Path, text: &str) -> anyhow::Result<Option<(String, PathBuf)>> {
    let (name, part) = text.split_once(':').unwrap_or((text, ""));
    let mut parts = name.splitn(3, '/');
    let (Some(owner), Some(repository)) = (parts.next(), parts.next()) else {
        return Ok(None);
    };
    if !is_plain(owner) || !is_plain(repository) {
        return Ok(None);
    }
    let Some(folder) = folder_of(place, owner, repository) else {
        return Ok(None);
    };
    let mut files = gguf_files(&folder);
    if let Some(file) = parts.next() {
        files.retain(|path| {
            path.strip_prefix(&folder)
                .is_ok_and(|path| path == Path::new(file))
        });
    }
    let part = part.to_ascii_lowercase();
    files.retain(|path| {
        let path = path.strip_prefix(&folder).unwrap_or(path);
        path.to_string_lossy().to_ascii_lowercase().contains(&part)
    });
    Ok(Some((repository.to_owned(), only(text, files)?)))
}

/// The folder of a repository: as LM Studio has it, or the last snapshot that the hub's cache has.
fn folder_of(place: &Path, owner: &str, repository: &str) -> Option<PathBuf> {
    let plain = place.join(owner).join(repository);
    if plain.is_dir() {
        return Some(plain);
    }
    let cached = place.join(format!("models--{owner}--{repository}"));
    let snapshots = cached.join("snapshots");
    let main = fs::read_to_string(cached.join("refs").join("main")).ok();
    let main = main.map(|hash| hash.trim().to_owned());
    let main = main.filter(|hash| is_plain(hash));
    let main = main.map(|hash| snapshots.join(hash));
    let all = || fs::read_dir(&snapshots).into_iter().flatten().flatten();
    let newest = || {
        all()
            .map(|entry| entry.path())
            .max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
    };
    main.filter(|path| path.is_dir()).or_else(newest)
}

/// The names of all models, sorted.
fn names(places: &Places) -> Vec<String> {
    let mut names = Vec::new();
    for folder in &places.ollama {
        let manifests = folder.join("manifests");
        for path in walk(&manifests, 4) {
            let parts = path.strip_prefix(&manifests).unwrap_or(&path);
            let parts: Vec<_> = parts.iter().map(|part| part.to_string_lossy()).collect();
            match parts.as_slice() {
                [host, user, model, tag] if host == "registry.ollama.ai" && user == "library" => {
                    names.push(format!("{model}:{tag}"));
                }
                [host, user, model, tag] if host == "registry.ollama.ai" => {
                    names.push(format!("{user}/{model}:{tag}"));
                }
                [host, user, model, tag] => names.push(format!("{host}/{user}/{model}:{tag}")),
                _ => {}
            }
        }
    }
    for place in places.lm_studio.iter().chain(&places.hub) {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let cached = name
                .strip_prefix("models--")
                .and_then(|n| n.split_once("--"));
            let has_models = !gguf_files(&entry.path()).is_empty();
            match cached {
                Some((owner, repository)) if has_models => {
                    names.push(format!("{owner}/{repository}"));
                }
                None if has_models => {
                    let inner = fs::read_dir(entry.path()).into_iter().flatten().flatten();
                    let inner = inner.map(|e| e.file_name().to_string_lossy().into_owned());
                    names.extend(inner.map(|repository| format!("{name}/{repository}")));
                }
                _ => {}
            }
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Files that lie so many folders deep.
fn walk(folder: &Path, depth: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    match depth {
        1 => paths.filter(|path| path.is_file()).collect(),
        _ => paths.flat_map(|path| walk(&path, depth - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folders as the three programs make them.
    fn places(root: &Path) -> Places {
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let digest = "ab".repeat(32);
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"digest":"sha256:00"}},"layers":[
            {{"mediaType":"application/vnd.ollama.image.template","digest":"sha256:11","size":3}},
            {{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{digest}","size":1}}]}}"#
        );
        write(
            "ollama/manifests/registry.ollama.ai/library/coder/30b",
            &manifest,
        );
        write(
            "ollama/manifests/registry.ollama.ai/library/coder/latest",
            &manifest,
        );
        write("ollama/manifests/hf.co/owner/repo/Q8", &manifest);
        write(&format!("ollama/blobs/sha256-{digest}"), "x");
        let gone = manifest.replace(&digest, &"cd".repeat(32));
        write(
            "ollama/manifests/registry.ollama.ai/library/gone/latest",
            &gone,
        );
        write("lm/publisher/one/one-Q4.gguf", "x");
        write("lm/publisher/one/mmproj-one.gguf", "x");
        write("lm/publisher/two/two-Q4.gguf", "x");
        write("lm/publisher/two/two-Q8.gguf", "x");
        let hub = "hub/models--owner--large";
        write(&format!("{hub}/refs/main"), "s2\n");
        write(&format!("{hub}/snapshots/s1/old.gguf"), "x");
        write(
            &format!("{hub}/snapshots/s2/Q4/large-00001-of-00002.gguf"),
            "x",
        );
        write(
            &format!("{hub}/snapshots/s2/Q4/large-00002-of-00002.gguf"),
            "x",
        );
        write(
            "hub/models--owner--safetensors/snapshots/s/model.safetensors",
            "x",
        );
        Places {
            ollama: vec![root.join("none"), root.join("ollama")],
            lm_studio: vec![root.join("lm")],
            hub: vec![root.join("hub")],
        }
    }

    #[test]
    fn models_are_found_where_others_keep_them() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let file = root.path().join("by=path-00001-of-00002.gguf");
        fs::write(&file, "x").unwrap();
        let path = file.to_str().unwrap();
        let blob = format!("ollama/blobs/sha256-{}", "ab".repeat(32));
        let large = "hub/models--owner--large/snapshots/s2/Q4/large-00001-of-00002.gguf";
        for (text, name, expected) in [
            (path, "by=path", "by=path-00001-of-00002.gguf"),
            ("coder:30b", "coder:30b", &blob),
            ("code=coder", "code", &blob),
            ("hf.co/owner/repo:Q8", "hf.co/owner/repo:Q8", &blob),
            ("publisher/one", "one", "lm/publisher/one/one-Q4.gguf"),
            ("a=publisher/two:q8", "a", "lm/publisher/two/two-Q8.gguf"),
            (
                "a=publisher/two/two-Q4.gguf",
                "a",
                "lm/publisher/two/two-Q4.gguf",
            ),
            ("owner/large", "large", large),
        ] {
            let found = find(&parse_wanted(text).unwrap(), &places).unwrap();
            let path = root.path().join(expected);
            assert_eq!((found.name.as_str(), found.path), (name, path), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let find = |text: &str| find(&parse_wanted(text).unwrap(), &places).unwrap_err();
        let error = find("none").to_string();
        for known in [
            "coder:30b",
            "hf.co/owner/repo:Q8",
            "publisher/one",
            "owner/large",
        ] {
            assert!(error.contains(known), "{known}: {error}");
        }
        assert!(!error.contains("safetensors"), "{error}");
        for (text, part) in [
            ("publisher/two", "two-Q8.gguf"),
            ("publisher/two:q9", "no model file"),
            ("gone", "pull the model again"),
            ("../ollama", "no model of that name"),
            ("..:latest", "no model of that name"),
        ] {
            let error = find(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse_wanted("=x").is_err() && parse_wanted("x=").is_err());
    }
}
