//! Servers that are no nodes: on the command line, and what their configuration names beside it.

use std::path::Path;

use anyhow::Context;
use tandem_coordinator::{Config, ModelConfig, Render, Secret, ServerConfig};

use crate::environment::Environment;
use crate::{files, template};

/// Largest file of a key or of certificates, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A server on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// Name of the model that it is asked for, and its own.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// Its own name of the model.
    pub model: Option<String>,
}

/// Reads `NAME=URL` or `NAME=URL#MODEL`.
pub fn parse_server(text: &str) -> Result<ServerAddress, String> {
    let fix = "write NAME=URL, such as code=http://127.0.0.1:11434#qwen3-coder:30b";
    let (name, rest) = text.split_once('=').ok_or(fix)?;
    let (url, model) = match rest.split_once('#') {
        Some((url, model)) => (url, Some(model.to_owned())),
        None => (rest, None),
    };
    if name.is_empty() || url.is_empty() || model.as_ref().is_some_and(String::is_empty) {
        return Err(fix.to_owned());
    }
    Ok(ServerAddress {
        name: name.to_owned(),
        url: url.to_owned(),
        model,
    })
}

/// Adds servers to a configuration, and the models that they are asked for.
pub fn add(config: &mut Config, servers: &[ServerAddress], environment: &Environment) {
    for address in servers {
        let ServerAddress { name, url, model } = address;
        let is_free = |own: &String| config.servers.iter().all(|server| server.name != *own);
        let further = (2..).map(|n| format!("{name}-{n}"));
        let mut names = std::iter::once(name.clone()).chain(further);
        let own = names.find(is_free).unwrap_or_default();
        let mut server = ServerConfig::new(own.clone(), url);
        server.key = environment.key_of(name);
        if let Some(model) = model {
            server.models.insert(name.clone(), model.clone());
        }
        config.servers.push(server);
        match config.models.iter_mut().find(|m| m.name == *name) {
            Some(model) => model.servers.push(own),
            None => config.models.push(ModelConfig {
                name: name.clone(),
                prefill: Vec::new(),
                decode: Vec::new(),
                servers: vec![own],
                mixed_quantisation: false,
                profile: None,
            }),
        }
    }
}

/// Reads what the configuration of a server names: its key, certificates, template. Files are looked for from `folder` on.
///
/// # Errors
/// If something is not there, or cannot be used.
pub fn complete(
    server: &mut ServerConfig,
    folder: &Path,
    environment: &Environment,
) -> anyhow::Result<()> {
    if let Some(variable) = &server.key_env {
        server.key = Some(environment.key(variable).context("`key_env`")?);
    }
    if let Some(file) = &server.key_file {
        let text = files::read_text(&folder.join(file), MAX_FILE_BYTES).context("`key_file`")?;
        server.key = Some(Secret::new(&text));
    }
    if let Some(file) = &server.ca_file {
        server.ca = Some(files::read(&folder.join(file), MAX_FILE_BYTES).context("`ca_file`")?);
    }
    if let Some(file) = &server.template {
        let template = template::load(&folder.join(file)).context("`template`")?;
        server.render = Some(Render::new(move |messages| {
            template::render(&template, messages)
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_one_name_are_equal() {
        let read = |text| parse_server(text).unwrap();
        let servers = [
            read("code=http://a:1#x=y"),
            read("code=http://b:1"),
            read("code=http://d:1"),
            read("feedback=http://c:1/v1"),
        ];
        let mut config = Config::new(Vec::new(), Vec::new());
        add(&mut config, &servers, &Environment::default());
        let names: Vec<&str> = config.servers.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["code", "code-2", "code-3", "feedback"]);
        assert_eq!(config.servers[0].models["code"], "x=y");
        assert_eq!(config.models[0].servers, ["code", "code-2", "code-3"]);
        assert!(config.validate().is_ok());
        for text in ["x", "=http://a", "a=", "a=http://b#"] {
            assert!(parse_server(text).is_err(), "{text}");
        }
    }
}
