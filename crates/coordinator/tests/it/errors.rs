//! What is refused, with which status and which field.

use serde_json::json;

use tandem_coordinator::limits::MAX_BODIES_BYTES;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::fake::FakeNode;
use crate::rig::{Rig, chat_body, config, error_of};
use crate::security::PATIENCE;

/// Sends a body as it is and checks status, `param` and, if given, `code`.
async fn check(rig: &Rig, path: &str, body: &str, expected: (u16, Option<&str>, Option<&str>)) {
    let request = rig.http.post(format!("{}/v1/{path}", rig.base));
    let request = request.header("content-type", "application/json");
    let answer = request.body(body.to_owned()).send().await.unwrap();
    let (status, error) = error_of(answer).await;
    assert_eq!(status, expected.0, "{path} {body}");
    assert_eq!(error.param.as_deref(), expected.1, "{path} {body}");
    if expected.2.is_some() {
        assert_eq!(error.code.as_deref(), expected.2, "{path} {body}");
    }
    assert_eq!(error.kind, "invalid_request_error", "{path} {body}");
}

#[tokio::test]
async fn a_bad_chat_is_refused_with_its_field() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    for body in ["{\"model\": ", "", "[]", "\u{feff}"] {
        let expected = (400, None, Some("invalid_json"));
        check(&rig, "chat/completions", body, expected).await;
    }
    let table = [
        (json!({"messages": 3}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"model": 3}), "model"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": 9}), "temperature"),
        (json!({"max_tokens": 0}), "max_tokens"),
        // Within the API's limit, beyond the nodes'.
        (json!({"max_tokens": 1_000_000}), "max_tokens"),
        (json!({"stream": 1}), "stream"),
        (json!({"tandem": {"route": "x"}}), "tandem.route"),
    ];
    for (extra, param) in table {
        let body = chat_body(extra).to_string();
        check(&rig, "chat/completions", &body, (400, Some(param), None)).await;
    }
    for stream in [false, true] {
        let body = chat_body(json!({"model": "x", "stream": stream})).to_string();
        let expected = (404, Some("model"), Some("model_not_found"));
        check(&rig, "chat/completions", &body, expected).await;
    }
    assert!(!d.has_generate().await);
}

#[tokio::test]
async fn other_mistakes_are_refused_in_the_same_shape() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let prompt = (400, Some("prompt"), None);
    check(&rig, "completions", "{\"model\":\"m\"}", prompt).await;
    check(
        &rig,
        "completions",
        "{\"model\":\"m\",\"prompt\":[]}",
        prompt,
    )
    .await;
    check(&rig, "elsewhere", "{}", (404, None, Some("unknown_url"))).await;
    check(
        &rig,
        "models",
        "{}",
        (405, None, Some("method_not_allowed")),
    )
    .await;
    assert_eq!(rig.get("/v1/chat/completions").await.0, 405);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_after_it_was_sent() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let limit = tandem_api::limits::MAX_BODY_BYTES;
    for size in [limit + 1, 3 * limit] {
        let request = rig.http.post(format!("{}/v1/completions", rig.base));
        let request = request.header("content-type", "application/json");
        let answer = request.body("x".repeat(size)).send().await.unwrap();
        let (status, error) = error_of(answer).await;
        assert_eq!(
            (status, error.code.as_deref()),
            (413, Some("request_too_large"))
        );
    }
}

#[tokio::test]
async fn bodies_that_do_not_end_leave_room_for_nothing_else_until_they_go() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let address = rig.base.strip_prefix("http://").unwrap();
    let size = tandem_api::limits::MAX_BODY_BYTES;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
    );
    let most = vec![b' '; size - 1];
    let mut slow = Vec::new();
    for _ in 0..MAX_BODIES_BYTES / size {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.write_all(&most).await.unwrap();
        slow.push(connection);
    }
    // Each lacks a byte; there is room for those, and for no request.
    let small = chat_body(json!({"model": "x"})).to_string();
    let asked = || async {
        let request = rig.http.post(format!("{}/v1/chat/completions", rig.base));
        let request = request.header("content-type", "application/json");
        let (status, error) = error_of(request.body(small.clone()).send().await.unwrap()).await;
        (status, error.code)
    };
    let full = async {
        while asked().await.0 != 429 {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked().await, (429, Some("queue_full".to_owned())));
        slow.pop();
        while asked().await.0 == 429 {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked().await.0, 404);
    };
    tokio::time::timeout(PATIENCE, full)
        .await
        .expect("room is taken, and given back");
}

#[tokio::test]
async fn without_a_node_the_answer_is_503() {
    let mut d = FakeNode::decode("d", 1).await;
    let config = config(&[], &[&d]);
    d.stop().await;
    let rig = Rig::start(config).await;
    for stream in [false, true] {
        let (status, error) = error_of(rig.chat(json!({"stream": stream})).await.unwrap()).await;
        assert_eq!((status, error.code.as_deref()), (503, Some("no_node")));
        assert!(
            error.message.contains("`d` is down: cannot be reached"),
            "{}",
            error.message
        );
    }
}
