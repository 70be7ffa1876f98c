//! Health, nodes and models.

use serde_json::json;
use tandem_coordinator::{HealthReport, NodeList};
use tandem_proto::Role;

use crate::fake::{FakeNode, status};
use crate::rig::{Rig, config};

#[tokio::test]
async fn nodes_tell_what_they_hold_and_do() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 2).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    let _answer = rig.chat(json!({"messages": [{"role": "user", "content": "private words"}]}));
    let call = d.generate().await;
    let (code, nodes) = rig.get("/v1/nodes").await;
    assert_eq!(code, 200);
    assert!(!nodes.to_string().contains("private"));
    let list: NodeList = serde_json::from_value(nodes).unwrap();
    assert_eq!(list.data.len(), 2);
    let (prefill, decode) = (&list.data[0], &list.data[1]);
    assert_eq!(
        (&*prefill.name, prefill.up, prefill.role),
        ("p", true, Some(Role::Prefill))
    );
    assert_eq!(decode.address, d.address);
    assert_eq!(decode.models[0].contract.tokenizer, "t");
    assert_eq!(decode.models[0].contract.layers, 1);
    assert_eq!(decode.models[0].capacity.sequences, 2);
    assert_eq!(
        (decode.models[0].decodes, decode.models[0].prefills),
        (1, 0)
    );
    assert_eq!(
        (prefill.models[0].decodes, prefill.models[0].prefills),
        (0, 1)
    );
    // A prefill that has ended no longer counts, though the request goes on.
    let (_, decode) = call.accept();
    decode.open(10, true).await;
    let (_, prefill) = p.prefill_call().await.accept();
    prefill.prefill_done().await;
    loop {
        let (_, nodes) = rig.get("/v1/nodes").await;
        let list: NodeList = serde_json::from_value(nodes).unwrap();
        assert_eq!(list.data[1].models[0].decodes, 1);
        if list.data[0].models[0].prefills == 0 {
            break;
        }
    }
}

#[tokio::test]
async fn models_are_listed() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let (code, models) = rig.get("/v1/models").await;
    assert_eq!((code, &models["object"]), (200, &json!("list")));
    assert_eq!(models["data"][0]["id"], "m");
}

#[tokio::test]
async fn health_follows_the_nodes() {
    let (p, d) = (FakeNode::prefill("p").await, FakeNode::decode("d", 1).await);
    let rig = Rig::start(config(&[&p], &[&d])).await;
    let health = || async {
        let (code, report) = rig.get("/health").await;
        let report: HealthReport = serde_json::from_value(report).unwrap();
        (code, report.reasons.join("; "))
    };
    assert_eq!(health().await, (200, String::new()));

    let good = serde_json::to_value(status(Role::Decode, 1, "t")).unwrap();
    let mut strange = good.clone();
    strange["protocol"] = json!(99);
    strange["version"] = json!("9.9.9");
    strange["new_field"] = json!(true);
    d.become_status(strange).await;
    let (code, reasons) = health().await;
    assert_eq!(code, 503);
    assert!(
        reasons.contains("speaks protocol 99 (tandem 9.9.9)"),
        "{reasons}"
    );
    let ours = format!(
        "this coordinator protocol {}",
        tandem_proto::PROTOCOL_VERSION
    );
    assert!(reasons.contains(&ours), "{reasons}");

    let mut bad_contract = good.clone();
    bad_contract["models"][0]["contract"]["layers"] = json!([]);
    d.become_status(bad_contract).await;
    let (code, reasons) = health().await;
    assert_eq!(code, 503);
    assert!(
        reasons.contains("holds `m`: contract field `layers` is invalid"),
        "{reasons}"
    );
    d.become_status(good).await;
    assert_eq!(health().await, (200, String::new()));

    d.become_status(serde_json::to_value(status(Role::Prefill, 1, "t")).unwrap())
        .await;
    let (code, reasons) = health().await;
    assert_eq!(code, 503);
    assert!(reasons.contains("`d` does not decode"), "{reasons}");
}

#[tokio::test]
async fn a_node_that_goes_and_comes_back_is_noticed() {
    let mut d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    assert_eq!(rig.get("/health").await.0, 200);
    d.stop().await;
    while rig.get("/health").await.0 == 200 {}
    let (_, nodes) = rig.get("/v1/nodes").await;
    assert_eq!(nodes["data"][0]["up"], false);
    let reason = nodes["data"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("cannot be reached"), "{reason}");
}

#[tokio::test]
async fn a_node_may_miss_some_polls() {
    for (missed_polls, expected) in [(u32::MAX, 200), (1, 503)] {
        let d = FakeNode::decode("d", 1).await;
        let mut config = config(&[], &[&d]);
        config.limits.missed_polls = missed_polls;
        let rig = Rig::start(config).await;
        assert_eq!(rig.get("/health").await.0, 200);
        d.become_status(serde_json::Value::Null).await;
        let (code, report) = rig.get("/health").await;
        assert_eq!(code, expected, "{report}");
    }
}
