//! What a browser sends for a page that somebody looks at.

use reqwest::{Method, RequestBuilder, Response};
use serde_json::json;

use crate::fake::FakeNode;
use crate::rig::{Rig, chat_body, config, error_of};

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/tokenize"];

async fn refused(request: RequestBuilder, status: u16, code: &str) {
    let shown = format!("{request:?}");
    let (found, error) = error_of(request.send().await.unwrap()).await;
    assert_eq!(
        (found, error.code.as_deref()),
        (status, Some(code)),
        "{shown}"
    );
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    let value = answer.headers().get(name);
    value.map_or("", |v| v.to_str().unwrap())
}

#[tokio::test]
async fn pages_of_others_may_not_ask() {
    let d = FakeNode::decode("d", 1).await;
    let rig = Rig::start(config(&[], &[&d])).await;
    let body = chat_body(json!({})).to_string();
    let ask = |path: &str| {
        let request = rig.http.post(format!("{}{path}", rig.base));
        request.body(body.clone())
    };
    for path in PATHS {
        // What a form or a script may post without asking before.
        for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
            let request = ask(path).header("content-type", kind);
            refused(request, 415, "unsupported_media_type").await;
        }
        refused(ask(path), 415, "unsupported_media_type").await;
        let json = |path| ask(path).header("content-type", "application/json; charset=utf-8");
        let zipped = json(path).header("content-encoding", "gzip");
        refused(zipped, 415, "unsupported_media_type").await;
        for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
            refused(json(path).header("origin", origin), 403, "foreign_origin").await;
        }
        // A name whose owner lets it stand for this machine.
        let rebound = json(path).header("host", "evil.example:8080");
        refused(rebound, 403, "unknown_host").await;
    }
    let rebound = rig.http.get(format!("{}/v1/nodes", rig.base));
    refused(rebound.header("host", "evil.example"), 403, "unknown_host").await;
    assert!(!d.has_generate().await);
}

#[tokio::test]
async fn pages_of_this_server_and_those_that_are_listed_may() {
    let d = FakeNode::decode("d", 1).await;
    let mut config = config(&[], &[&d]);
    config.cors.origins = vec!["https://course.example".into()];
    config.cors.hosts = vec!["tandem.example".into()];
    let rig = Rig::start(config).await;
    let models = || rig.http.get(format!("{}/v1/models", rig.base));
    let own = rig.base.clone();
    for (host, origin) in [
        ("localhost:8080", "http://localhost:8080"),
        ("tandem.example", "https://tandem.example"),
        ("tandem.example", "https://course.example"),
        (own.trim_start_matches("http://"), own.as_str()),
    ] {
        let request = models().header("host", host).header("origin", origin);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{origin}");
        let listed = origin == "https://course.example";
        let allowed = header(&answer, "access-control-allow-origin");
        assert_eq!(allowed, if listed { origin } else { "" }, "{origin}");
    }
    let preflight = |origin: &str| {
        let url = format!("{}/v1/chat/completions", rig.base);
        let request = rig.http.request(Method::OPTIONS, url);
        let request = request.header("origin", origin);
        let request = request.header("access-control-request-method", "POST");
        request.header(
            "access-control-request-headers",
            "authorization,content-type,x-stainless-lang",
        )
    };
    let answer = preflight("https://course.example").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let headers = header(&answer, "access-control-allow-headers");
    assert_eq!(headers, "authorization,content-type,x-stainless-lang");
    assert!(header(&answer, "access-control-allow-methods").contains("POST"));
    let foreign = preflight("https://evil.example");
    refused(foreign, 403, "foreign_origin").await;
}
