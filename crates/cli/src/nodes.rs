//! What is wrong with the configured nodes, and the mend.

use tandem_coordinator::{Config, ModelConfig, NodeList, NodeReport};
use tandem_proto::Role;

/// One sentence per fault: nodes that cannot be reached, that lack a model, or have another role than
/// the configuration gives them.
pub fn problems(config: &Config, nodes: &NodeList) -> Vec<String> {
    nodes
        .data
        .iter()
        .flat_map(|node| match &node.reason {
            Some(reason) => vec![unreachable(config, node, reason)],
            None => mismatches(config, node),
        })
        .collect()
}

fn unreachable(config: &Config, node: &NodeReport, reason: &str) -> String {
    let (role, models) = use_of(config, &node.name);
    let models: String = models
        .iter()
        .map(|m| format!(" --model {m}=PATH"))
        .collect();
    let port = node.address.rsplit_once(':').map_or("", |(_, port)| port);
    format!(
        "node `{}` at {} cannot be used: {reason}; start it there with `tandem node --role {role}{models} \
         --listen 0.0.0.0:{port}`, or correct its `address`",
        node.name, node.address
    )
}

/// The role and the models that the configuration gives a node.
fn use_of<'a>(config: &'a Config, node: &str) -> (&'static str, Vec<&'a str>) {
    let is_in = |list: &[String]| list.iter().any(|n| n == node);
    let prefills = config.models.iter().any(|m| is_in(&m.prefill));
    let decodes = config.models.iter().any(|m| is_in(&m.decode));
    let role = match (prefills, decodes) {
        (true, true) => "both",
        (true, false) => "prefill",
        (false, _) => "decode",
    };
    let serves = |m: &&ModelConfig| is_in(&m.prefill) || is_in(&m.decode);
    let models = config.models.iter().filter(serves);
    (role, models.map(|m| m.name.as_str()).collect())
}

fn mismatches(config: &Config, node: &NodeReport) -> Vec<String> {
    let mut found = Vec::new();
    let role = node.role.unwrap_or(Role::Both);
    for model in &config.models {
        let listed = |list: &[String]| list.contains(&node.name);
        for (key, used, able) in [
            ("prefill", listed(&model.prefill), role.prefills()),
            ("decode", listed(&model.decode), role.decodes()),
        ] {
            if used && !able {
                found.push(format!(
                    "node `{}` at {} does not {key}, but model `{}` lists it under `{key}`: start it with \
                     --role {key} or --role both, or take it out of the list",
                    node.name, node.address, model.name
                ));
            }
        }
        let used = listed(&model.prefill) || listed(&model.decode);
        if used && !node.models.iter().any(|m| m.name == model.name) {
            found.push(format!(
                "node `{}` at {} does not hold model `{name}`: start it with --model {name}=PATH, or take it \
                 out of the lists of `{name}`",
                node.name,
                node.address,
                name = model.name
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use tandem_coordinator::NodeConfig;

    use super::*;

    fn config() -> Config {
        Config::new(
            vec![NodeConfig {
                name: "big".into(),
                address: "192.168.1.5:7001".into(),
            }],
            vec![ModelConfig {
                name: "code".into(),
                prefill: Vec::new(),
                decode: vec!["big".into()],
            }],
        )
    }

    fn report(reason: Option<&str>, role: Role) -> NodeList {
        NodeList {
            object: "list".into(),
            data: vec![NodeReport {
                name: "big".into(),
                address: "192.168.1.5:7001".into(),
                up: reason.is_none(),
                reason: reason.map(str::to_owned),
                role: Some(role),
                version: None,
                models: Vec::new(),
            }],
            queued: Vec::new(),
        }
    }

    #[test]
    fn every_fault_names_the_node_its_address_and_the_mend() {
        for (reason, role, expected) in [
            (
                Some("connection refused"),
                Role::Decode,
                vec![
                    "connection refused",
                    "tandem node --role decode --model code=PATH --listen 0.0.0.0:7001",
                ],
            ),
            (
                None,
                Role::Decode,
                vec!["does not hold model `code`", "--model code=PATH"],
            ),
            (None, Role::Prefill, vec!["does not decode", "--role both"]),
        ] {
            let found = problems(&config(), &report(reason, role)).join("\n");
            for part in expected.iter().chain(&["`big`", "192.168.1.5:7001"]) {
                assert!(found.contains(part), "`{part}` is not in: {found}");
            }
        }
    }
}
