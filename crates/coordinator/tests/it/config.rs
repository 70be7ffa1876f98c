//! Configurations that cannot be used name the key at fault.

use tandem_coordinator::{Config, ModelConfig, NodeConfig};

fn good() -> Config {
    let node = |name: &str, address: &str| NodeConfig {
        name: name.into(),
        address: address.into(),
        identity: None,
        profile: None,
    };
    let model = |name: &str| ModelConfig {
        name: name.into(),
        prefill: vec!["p".into()],
        decode: vec!["d".into(), "p".into()],
        servers: Vec::new(),
        mixed_quantisation: false,
        profile: None,
    };
    Config::new(
        vec![node("p", "10.0.0.1:7001"), node("d", "[fe80::1]:7001")],
        vec![model("a"), model("b")],
    )
}

#[test]
fn a_profile_that_there_is_not_is_named() {
    type Change = fn(&mut Config);
    let table: [(Change, &str); 2] = [
        (
            |c| c.nodes[1].profile = Some("abacus".into()),
            "`node[1].profile` cannot be used: no machine is called `abacus`",
        ),
        (
            |c| {
                c.nodes[0].profile = Some("spark".into());
                c.models[1].profile = Some("gpt-5".into());
            },
            "`model[1].profile` cannot be used: no model is called `gpt-5`",
        ),
    ];
    for (change, expected) in table {
        let mut config = good();
        change(&mut config);
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_key_at_fault_is_named() {
    type Change = fn(&mut Config);
    let table: [(Change, &str); 17] = [
        (|c| c.nodes.clear(), "`node` is missing: add"),
        (|c| c.models.clear(), "`model` is missing: add"),
        (
            |c| c.nodes[1].name.clear(),
            "`node[1].name` must have 1 to 128 bytes",
        ),
        (
            |c| c.nodes[1].name = "p".into(),
            "`node[1].name` repeats the name \"p\"",
        ),
        (
            |c| c.nodes[0].address = "host".into(),
            "`node[0].address` is \"host\": write host:port",
        ),
        (
            |c| c.nodes[0].address = "host:0".into(),
            "`node[0].address`",
        ),
        (
            |c| c.nodes[0].address = "http://host:1".into(),
            "`node[0].address`",
        ),
        (
            |c| c.nodes[0].address = "user@host:1".into(),
            "`node[0].address`",
        ),
        (
            |c| c.nodes[0].address = "fe80::1:1".into(),
            "`node[0].address`",
        ),
        (
            |c| c.nodes[1].identity = Some("me".into()),
            "`node[1].identity` cannot be used: an identity is 64",
        ),
        (
            |c| c.nodes[0].address = c.nodes[1].address.clone(),
            "`node[1].address` repeats the address",
        ),
        (
            |c| c.models[1].name = "a".into(),
            "`model[1].name` repeats the name \"a\"",
        ),
        (
            |c| c.models[1].decode[0] = "x".into(),
            "`model[1].decode[0]` names unknown node \"x\": add it as a [[node]]",
        ),
        (
            |c| c.models[0].prefill[0] = "x".into(),
            "`model[0].prefill[0]` names unknown node",
        ),
        (
            |c| c.models[0].decode[1] = "d".into(),
            "`model[0].decode[1]` names node \"d\" twice",
        ),
        (|c| c.models[0].decode.clear(), "`model[0].decode` is empty"),
        (|c| c.chunk = 0, "`chunk` is 0"),
    ];
    good().validate().expect("the start is good");
    for (change, expected) in table {
        let mut config = good();
        change(&mut config);
        let message = config.validate().expect_err(expected).to_string();
        assert!(message.starts_with(expected), "{message} / {expected}");
    }
}
