//! What is wrong with the configured nodes, and the fix.

use tandem_coordinator::{Config, ModelConfig, ModelReport, NodeList, NodeReport, ServerReport};
use tandem_proto::Role;

/// One sentence per fault: nodes that cannot be reached, that lack a model, or have another role than
/// the configuration gives them; ends of a handoff that were started with other options than each
/// other.
///
/// `tls` says whether nodes are spoken to with TLS, for the commands that would fix a fault.
pub fn problems(config: &Config, nodes: &NodeList, tls: bool) -> Vec<String> {
    let of_one = nodes.data.iter().flat_map(|node| match &node.reason {
        Some(reason) => vec![unreachable(config, node, reason, tls)],
        None => mismatches(config, node),
    });
    let of_two = config.models.iter().flat_map(|m| unequal_ends(m, nodes));
    let of_servers = nodes.servers.iter().flat_map(|server| {
        let missing = server.missing.iter();
        let missing = missing.map(|reason| format!("server `{}` {reason}", server.name));
        let away = server.reason.as_ref().filter(|_| server.missing.is_empty());
        let away = away.map(|reason| {
            let (name, url) = (&server.name, &server.url);
            format!(
                "server `{name}` at {url} cannot be used: {reason}; start it, or correct its `url`"
            )
        });
        missing.chain(away)
    });
    let of_equals = config
        .models
        .iter()
        .filter_map(|m| unequal_servers(m, nodes));
    let of_equals = of_equals.map(|(reason, _)| reason);
    let of_servers = of_servers.chain(of_equals);
    of_one.chain(of_two).chain(of_servers).collect()
}

/// Options that a model's prefill and decode nodes must have in common for answers to have the same
/// bits wherever the prompt was prefilled.
fn unequal_ends(model: &ModelConfig, nodes: &NodeList) -> Vec<String> {
    let held_by = |name: &String| {
        let node = nodes.data.iter().find(|n| n.name == *name)?;
        node.models.iter().find(|m| m.name == model.name)
    };
    let mut found = Vec::new();
    if let Some(reason) = (model.decode.iter()).find_map(|d| held_by(d)?.stays.as_ref()) {
        found.extend(idle_prefill_nodes(model, reason));
        return found;
    }
    for prefill in &model.prefill {
        for decode in model.decode.iter().filter(|d| *d != prefill) {
            let (Some(p), Some(d)) = (held_by(prefill), held_by(decode)) else {
                continue;
            };
            found.extend(unequal_models(model, (prefill, p), (decode, d)));
            let (a, b) = (p.capacity, d.capacity);
            if let (Some(a), Some(b)) = (p.threads, d.threads)
                && a != b
            {
                found.push(unequal_options(
                    model,
                    (prefill, decode),
                    "--threads",
                    (a, b),
                ));
            }
            // Where a model has windows, the number of sequences decides on the size of their cache.
            let has_window = p.contract.window > 0;
            for (option, a, b) in [
                ("--ubatch", a.microbatch_tokens, b.microbatch_tokens),
                ("--slots", a.sequences, b.sequences),
            ] {
                if a != b && (option == "--ubatch" || has_window) {
                    found.push(unequal_options(model, (prefill, decode), option, (a, b)));
                }
            }
        }
    }
    found
}

/// Servers of one model that tell of different ones, and whether they do so by digests; other names may be of one model.
pub fn unequal_servers(model: &ModelConfig, nodes: &NodeList) -> Option<(String, bool)> {
    let of = |server: &ServerReport| {
        let served = server
            .models
            .iter()
            .find(|served| served.name == model.name)?;
        let told = match served.verified {
            true => served.reported.clone(),
            false => served.model.clone(),
        };
        Some((server.name.clone(), served.verified, told))
    };
    let all: Vec<_> = nodes.servers.iter().filter_map(of).collect();
    let (first, rest) = all.split_first()?;
    let other = rest
        .iter()
        .find(|(_, verified, told)| *verified == first.1 && *told != first.2)?;
    let reason = format!(
        "servers `{}` and `{}` have different models as `{}` ({} and {}): answers may be of either",
        first.0, other.0, model.name, first.2, other.2
    );
    Some((reason, first.1))
}

/// Prefill nodes of a model whose KV is not handed over.
fn idle_prefill_nodes(model: &ModelConfig, reason: &str) -> Option<String> {
    let others: Vec<String> = (model.prefill.iter())
        .filter(|node| !model.decode.contains(node))
        .map(|node| format!("`{node}`"))
        .collect();
    (!others.is_empty()).then(|| {
        format!(
            "KV of model `{}` is not handed over ({reason}), so {} would do nothing for it: give them `decode`, too, or leave \
             them out",
            model.name,
            others.join(", ")
        )
    })
}

fn unequal_options(
    model: &ModelConfig,
    nodes: (&str, &str),
    option: &str,
    (a, b): (u32, u32),
) -> String {
    let (prefill, decode) = nodes;
    format!(
        "nodes `{prefill}` and `{decode}` hold model `{}` with different {option} ({a} and {b}): answers may differ in \
         rounding from local ones; start both with equal {option}",
        model.name
    )
}

/// Two nodes between which no KV of a model can pass, so that nothing would ever be handed over.
fn unequal_models(
    model: &ModelConfig,
    (prefill, p): (&str, &ModelReport),
    (decode, d): (&str, &ModelReport),
) -> Option<String> {
    let may_differ = model.mixed_quantisation && p.contract.quantisation != d.contract.quantisation;
    let is_quantisation = |field: &str| ["quantisation", "weights"].contains(&field);
    let fields = p.contract.fields().into_iter().zip(d.contract.fields());
    let (field, ours, theirs) = fields
        .map(|((field, ours), (_, theirs))| (field, ours, theirs))
        .find(|(field, ours, theirs)| ours != theirs && !(may_differ && is_quantisation(field)))?;
    Some(format!(
        "nodes `{prefill}` and `{decode}` hold different models as `{}`, so that `{prefill}` cannot prefill for \
         `{decode}`: contract field `{field}` is {ours} on `{prefill}` and {theirs} on `{decode}`; give both the \
         same file",
        model.name
    ))
}

/// A node that could not compute a chunk of the configured size.
fn unfit_chunk(config: &Config, node: &NodeReport, model: &ModelReport) -> Option<String> {
    let (chunk, c) = (config.chunk, model.capacity);
    if chunk <= c.prefill_tokens && chunk.is_multiple_of(c.microbatch_tokens.max(1)) {
        return None;
    }
    Some(format!(
        "node `{}` at {} computes chunks of `{}` of at most {} tokens, in multiples of {}, and `chunk` of the \
         configuration is {chunk}: every request would be refused; start it with --chunk {chunk} and an --ubatch \
         that divides it, or change `chunk`",
        node.name, node.address, model.name, c.prefill_tokens, c.microbatch_tokens
    ))
}

fn unreachable(config: &Config, node: &NodeReport, reason: &str, tls: bool) -> String {
    let (role, models) = use_of(config, &node.name);
    let models: String = models
        .iter()
        .map(|m| format!(" --model {m}=PATH"))
        .collect();
    format!(
        "node `{}` at {} cannot be used: {reason}; start it there with `tandem node --role {role}{models} \
         --listen {}{}`, or correct its `address`",
        node.name,
        node.address,
        listen(&node.address),
        if tls { "" } else { " --plaintext" }
    )
}

/// Where a node with this address should listen: there, and nowhere else. A host name stands for an
/// IP that only its owner knows.
fn listen(address: &str) -> String {
    if address.parse::<std::net::SocketAddr>().is_ok() {
        return address.to_owned();
    }
    let port = address.rsplit_once(':').map_or("", |(_, port)| port);
    format!("IP:{port}")
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
        let held = node.models.iter().find(|m| m.name == model.name);
        found.extend(
            held.filter(|_| used)
                .and_then(|m| unfit_chunk(config, node, m)),
        );
        if used && held.is_none() {
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
    use tandem_proto::Capacity;

    use super::*;

    const ADDRESS: &str = "192.168.1.5:7001";

    fn config(prefill: &[&str], decode: &[&str]) -> Config {
        let names = |nodes: &[&str]| nodes.iter().map(|n| (*n).to_owned()).collect();
        let node = |name: &&str| NodeConfig {
            name: (*name).to_owned(),
            address: ADDRESS.to_owned(),
            identity: None,
            profile: None,
        };
        Config::new(
            prefill.iter().chain(decode).map(node).collect(),
            vec![ModelConfig {
                name: "code".into(),
                prefill: names(prefill),
                decode: names(decode),
                servers: Vec::new(),
                mixed_quantisation: false,
                profile: None,
            }],
        )
    }

    fn report(name: &str, role: Role, models: Vec<ModelReport>) -> NodeReport {
        NodeReport {
            name: name.into(),
            address: ADDRESS.into(),
            up: true,
            reason: None,
            role: Some(role),
            version: None,
            draining: false,
            models,
        }
    }

    fn list(data: Vec<NodeReport>) -> NodeList {
        NodeList {
            object: "list".into(),
            data,
            servers: Vec::new(),
            queued: Vec::new(),
            pairs: Vec::new(),
        }
    }

    /// The model with this window, microbatch and number of sequences.
    fn held(window: u32, microbatch_tokens: u32, sequences: u32) -> Vec<ModelReport> {
        let contract = serde_json::json!({
            "layout_version": 1, "engine": "", "architecture": "", "quantisation": "", "weights": "",
            "tokenizer": "", "rope": "", "rotation": "", "window": window, "key_type": "f16",
            "value_type": "f16", "layers": 1,
        });
        vec![ModelReport {
            name: "code".into(),
            contract: serde_json::from_value(contract).unwrap(),
            capacity: Capacity {
                sequences,
                tokens_per_sequence: 1024,
                prefill_tokens: 512,
                microbatch_tokens,
            },
            threads: Some(1),
            no_chat: None,
            stays: None,
            busy_percent: 0,
            decodes: 0,
            prefills: 0,
            sequences: Vec::new(),
        }]
    }

    #[test]
    fn every_fault_names_the_node_its_address_and_the_mend() {
        for (reason, role, expected) in [
            (
                Some("connection refused"),
                Role::Decode,
                vec![
                    "connection refused",
                    "tandem node --role decode --model code=PATH --listen 192.168.1.5:7001`",
                ],
            ),
            (
                None,
                Role::Decode,
                vec!["does not hold model `code`", "--model code=PATH"],
            ),
            (None, Role::Prefill, vec!["does not decode", "--role both"]),
        ] {
            let mut node = report("big", role, Vec::new());
            node.reason = reason.map(str::to_owned);
            let found = problems(&config(&[], &["big"]), &list(vec![node]), true).join("\n");
            for part in expected.iter().chain(&["`big`", ADDRESS]) {
                assert!(found.contains(part), "`{part}` is not in: {found}");
            }
        }
    }

    #[test]
    fn no_node_is_told_to_listen_on_more_than_its_address() {
        for (address, expected) in [
            ("127.0.0.1:7001", "127.0.0.1:7001"),
            ("[::1]:7001", "[::1]:7001"),
            ("192.168.1.5:7001", "192.168.1.5:7001"),
            ("studio.local:7001", "IP:7001"),
        ] {
            assert_eq!(listen(address), expected);
        }
    }

    #[test]
    fn different_models_under_one_name_are_told() {
        let mut nodes = list(vec![
            report("p", Role::Prefill, held(0, 512, 4)),
            report("d", Role::Decode, held(0, 512, 4)),
        ]);
        nodes.data[0].models[0].contract.quantisation = "q8_0".into();
        nodes.data[1].models[0].contract.quantisation = "f16".into();
        let mut config = config(&["p"], &["d"]);
        let found = problems(&config, &nodes, true);
        assert_eq!(found.len(), 1, "{found:?}");
        for part in [
            "`p` and `d` hold different models as `code`",
            "`quantisation` is q8_0 on `p` and f16 on `d`",
        ] {
            assert!(found[0].contains(part), "{found:?}");
        }
        config.models[0].mixed_quantisation = true;
        assert_eq!(problems(&config, &nodes, true), Vec::<String>::new());
        nodes.data[0].models[0].contract.tokenizer = "other".into();
        assert!(problems(&config, &nodes, true)[0].contains("`tokenizer`"));
    }

    #[test]
    fn chunks_that_a_node_cannot_compute_are_told() {
        let nodes = list(vec![report("b", Role::Both, held(0, 256, 4))]);
        let mut config = config(&[], &["b"]);
        for (chunk, fits) in [(256, true), (512, true), (1024, false), (300, false)] {
            config.chunk = chunk;
            let found = problems(&config, &nodes, true);
            assert_eq!(found.is_empty(), fits, "{chunk}: {found:?}");
            if let Some(told) = found.first() {
                let wanted = format!("--chunk {chunk}");
                assert!(
                    told.contains(&wanted) && told.contains("at most 512 tokens"),
                    "{told}"
                );
            }
        }
    }

    #[test]
    fn ends_with_different_options_are_told() {
        // (window, microbatch and sequences of the prefill node, of the decode node, options told)
        for (window, prefill, decode, expected) in [
            (0, (512, 4), (512, 4), vec![]),
            (0, (512, 4), (512, 8), vec![]),
            (0, (512, 4), (256, 4), vec!["--ubatch (512 and 256)"]),
            (1024, (512, 4), (512, 4), vec![]),
            (1024, (512, 4), (512, 8), vec!["--slots (4 and 8)"]),
            (
                1024,
                (512, 4),
                (256, 8),
                vec!["--ubatch (512 and 256)", "--slots (4 and 8)"],
            ),
        ] {
            let held = |(ubatch, slots)| held(window, ubatch, slots);
            let nodes = list(vec![
                report("p", Role::Prefill, held(prefill)),
                report("d", Role::Decode, held(decode)),
            ]);
            let found = problems(&config(&["p"], &["d"]), &nodes, true);
            let case = format!("{window} {prefill:?} {decode:?}: {found:?}");
            assert_eq!(found.len(), expected.len(), "{case}");
            for (sentence, option) in found.iter().zip(expected) {
                assert!(sentence.contains(option), "{case}");
                assert!(sentence.contains("`p` and `d` hold model `code`"), "{case}");
            }
        }
        let mut nodes = list(vec![
            report("p", Role::Prefill, held(0, 512, 4)),
            report("d", Role::Decode, held(0, 512, 4)),
        ]);
        nodes.data[0].models[0].threads = Some(2);
        let found = problems(&config(&["p"], &["d"]), &nodes, true);
        assert!(
            found.len() == 1 && found[0].contains("--threads (2 and 1)"),
            "{found:?}"
        );
        // A node is equal to itself, and one that is not there is told of as such.
        let both = list(vec![report("b", Role::Both, held(9, 512, 4))]);
        assert_eq!(
            problems(&config(&["b"], &["b"]), &both, true),
            Vec::<String>::new()
        );
        let alone = list(vec![report("p", Role::Prefill, held(9, 512, 4))]);
        assert_eq!(
            problems(&config(&["p"], &["d"]), &alone, true),
            Vec::<String>::new()
        );
    }
}
