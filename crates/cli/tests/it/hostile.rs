//! Requests that mean harm, over the whole way: no node dies of them, and nothing is tried twice.

use futures_util::{StreamExt, stream};
use serde_json::json;
use tandem_testkit::Architecture;

use super::client::{ask, ask_any, chat};
use super::daemon::{Daemon, write_config};

#[path = "../../../engine/tests/it/schemas.rs"]
mod schemas;

/// Schemas, beginning where those of the engine's tests end.
const SEEDS: std::ops::Range<u64> = 200..400;

#[tokio::test]
async fn no_schema_kills_a_node_or_is_a_fault_of_the_server() {
    let model = Architecture::Llama;
    let node = Daemon::node("decode", &[model], &["--context", "4096", "--slots", "4"]);
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [("d", node.address)];
    let config = write_config(dir.path(), 512, &nodes, &[(model, &[], &["d"])]);
    let coordinator = Daemon::serve(&config);
    // 413: the largest of them are no bodies of a request.
    let answer = |seed| async move {
        let mut body = chat(model.name(), "x", 20, "local");
        let schema = schemas::hostile(seed);
        body["response_format"] =
            json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
        let (status, answer) = ask_any(coordinator.address, &body).await;
        let told = answer["error"].to_string();
        assert!(
            [200, 400, 413].contains(&status),
            "seed {seed}: {status} {told}"
        );
        assert!(
            !told.contains("panic") && !told.contains("backtrace") && told.len() < 1000,
            "seed {seed}: {told}"
        );
        usize::from(status == 200)
    };
    let answered = stream::iter(SEEDS).map(answer).buffer_unordered(4);
    let answered: usize = answered.fold(0, |sum, one| async move { sum + one }).await;
    assert!(answered > 20, "only {answered} were answered");
    ask(coordinator.address, &chat(model.name(), "x", 1, "local")).await;
}
