//! Handoffs between processes, and the loss of each of them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tandem_proto::Phase;
#[cfg(unix)]
use tandem_proto::limits::SILENCE;
use tandem_testkit::{Architecture, Spec, TokenizerVariant, WeightType};
use tokio::task::JoinHandle;

use super::client::{
    ask, ask_any, chat, exact, get, handoff_status, http, node_status, text, tokens,
};
use super::daemon::{Daemon, write_config};

/// Tokens per chunk, so that prompts have many.
const CHUNK: u32 = 64;
/// Longer than the windows of the fixtures.
const LONG: usize = 1500;
/// How often a test tries to be in time for the middle of a handoff.
const ATTEMPTS: usize = 8;

/// Further arguments of every node here.
const NODE: [&str; 6] = ["--chunk", "64", "--context", "16384", "--slots", "2"];

struct Cluster {
    prefill: Daemon,
    decodes: Vec<Daemon>,
    coordinator: Daemon,
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// One prefill node, some decode nodes and a coordinator.
    fn start(models: &[Architecture], decodes: usize) -> Self {
        Self::in_chunks(models, decodes, CHUNK)
    }

    /// The same with chunks of so many tokens.
    fn in_chunks(models: &[Architecture], decodes: usize, chunk: u32) -> Self {
        let tokens = chunk.to_string();
        let arguments = [&["--chunk", &tokens], &NODE[2..]].concat();
        let prefill = Daemon::node("prefill", models, &arguments);
        let decodes: Vec<Daemon> = (0..decodes)
            .map(|_| Daemon::node("decode", models, &arguments))
            .collect();
        let names: Vec<String> = (0..decodes.len()).map(|i| format!("d{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut nodes = vec![("p", prefill.address)];
        nodes.extend(names.iter().copied().zip(decodes.iter().map(|d| d.address)));
        let routes: Vec<_> = models
            .iter()
            .map(|m| (*m, &["p"][..], names.as_slice()))
            .collect();
        let dir = tempfile::tempdir().expect("dir");
        let config = write_config(dir.path(), chunk, &nodes, &routes);
        Self {
            coordinator: Daemon::serve(&config),
            prefill,
            decodes,
            _dir: dir,
        }
    }

    fn address(&self) -> SocketAddr {
        self.coordinator.address
    }

    /// Asks while the test does something else.
    fn asking(&self, body: Value) -> JoinHandle<Value> {
        let coordinator = self.address();
        tokio::spawn(async move { ask(coordinator, &body).await })
    }
}

#[tokio::test]
async fn what_another_process_prefilled_continues_with_the_same_tokens() {
    let cluster = Cluster::start(&Architecture::ALL, 1);
    for architecture in Architecture::ALL {
        for (length, temperature) in [(10, 0.0), (200, 0.0), (LONG, 0.0), (LONG, 0.8)] {
            let with = |route| {
                let mut body = exact(chat(architecture.name(), &text(length), 32, route));
                body["temperature"] = json!(temperature);
                body["seed"] = json!(7);
                body
            };
            let remote = ask(cluster.address(), &with("remote")).await;
            // Otherwise the order in which the next one's rows lie in the cache would be another.
            let status = node_status(cluster.decodes[0].address).await;
            assert!(status.models.iter().all(|m| m.sequences.is_empty()));
            let local = ask(cluster.address(), &with("local")).await;
            let case = format!("{architecture}, {length} bytes, temperature {temperature}");
            assert_eq!(remote["tandem"]["mode"], "remote", "{case}: {remote}");
            assert_eq!(remote["tandem"]["prefill_node"], "p", "{case}");
            assert!(
                remote["tandem"]["handoff_bytes"].as_u64() > Some(0),
                "{case}"
            );
            assert_eq!(local["tandem"]["mode"], "local", "{case}");
            assert_eq!(local["tandem"]["handoff_bytes"], 0, "{case}");
            assert_eq!(tokens(&remote), tokens(&local), "{case}");
        }
    }
}

#[tokio::test]
async fn the_tokens_of_a_prompt_are_told_before_it_is_computed() {
    let model = Architecture::Gemma3;
    let cluster = Cluster::start(&[model], 1);
    let post = async |path: &str, body: &Value| {
        let url = format!("http://{}{path}", cluster.address());
        let answer = http().post(url).json(body).send().await.expect("an answer");
        (
            answer.status().as_u16(),
            answer.json::<Value>().await.expect("JSON"),
        )
    };
    let chat = chat(model.name(), &text(300), 4, "local");
    let completion = json!({"model": model.name(), "prompt": "abc", "max_tokens": 4});
    for (path, body) in [
        ("/v1/chat/completions", &chat),
        ("/v1/completions", &completion),
    ] {
        let (_, told) = post("/tokenize", body).await;
        let (_, answer) = post(path, body).await;
        assert_eq!(
            told["count"], answer["usage"]["prompt_tokens"],
            "{told} {answer}"
        );
        assert_eq!(
            told["tokens"].as_array().map(Vec::len),
            told["count"].as_u64().and_then(|n| usize::try_from(n).ok())
        );
        assert_eq!(told["max_model_len"], 16384);
    }
    let (status, error) = post("/tokenize", &json!({"model": "x", "prompt": "abc"})).await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

/// The end of a prompt is computed in steps, and pages of an earlier prompt end before, in and behind them.
#[tokio::test]
async fn steps_at_the_end_of_a_prompt_and_pages_that_end_among_them_change_no_token() {
    let cluster = Cluster::in_chunks(&Architecture::ALL, 1, 512);
    let known = text(2000);
    for architecture in Architecture::ALL {
        let answer = async |prompt: &str, salt: &str, route| {
            let mut body = exact(chat(architecture.name(), prompt, 24, route));
            body["tandem"]["cache_salt"] = json!(salt);
            let answer = ask(cluster.address(), &body).await;
            assert_eq!(answer["tandem"]["mode"], route, "{architecture}: {answer}");
            tokens(&answer)
        };
        answer(&known, "", "remote").await;
        for (shared, own) in [(0, 1200), (600, 40), (700, 200), (1200, 30), (1300, 150)] {
            let own: String = text(own).chars().rev().collect();
            let prompt = format!("{}{own}", &known[..shared]);
            let case = format!("{architecture}, {shared} and {}", own.len());
            // Another tenant's: no pages.
            let alone = answer(&prompt, &case, "local").await;
            assert_eq!(answer(&prompt, "", "local").await, alone, "{case}: local");
            assert_eq!(answer(&prompt, "", "remote").await, alone, "{case}: remote");
        }
    }
}

/// The coordinator knows only the address for requests; the node knows where it takes KV in.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn kv_comes_in_on_another_address_of_the_machine() {
    let model = Architecture::Qwen3;
    let prefill = Daemon::node("prefill", &[model], &NODE);
    let elsewhere = [&NODE[..], &["--handoff", "127.0.0.2:0"]].concat();
    let decode = Daemon::node("decode", &[model], &elsewhere);
    let nodes = [("p", prefill.address), ("d", decode.address)];
    let dir = tempfile::tempdir().expect("dir");
    let config = write_config(dir.path(), CHUNK, &nodes, &[(model, &["p"], &["d"])]);
    let coordinator = Daemon::serve(&config);
    let ask = async |route| {
        ask(
            coordinator.address,
            &chat(model.name(), &text(500), 16, route),
        )
        .await
    };
    let (remote, local) = (ask("remote").await, ask("local").await);
    assert_eq!(remote["tandem"]["mode"], "remote", "{remote}");
    assert_eq!(tokens(&remote), tokens(&local));
}

/// Tokens whose KV a node has of a sequence that still receives, if it has some but not all.
async fn received(node: &Daemon) -> Option<u32> {
    let status = node_status(node.address).await;
    let mut sequences = status.models.iter().flat_map(|m| &m.sequences);
    let found = sequences.find(|s| {
        s.phase == Phase::Receiving && s.held_tokens > 0 && s.held_tokens < s.prompt_tokens - 1
    });
    found.map(|s| s.held_tokens)
}

/// Waits until one of these nodes is in the middle of a handoff; tells which.
async fn in_the_middle(nodes: &[Daemon]) -> usize {
    loop {
        for (i, node) in nodes.iter().enumerate() {
            if received(node).await.is_some() {
                return i;
            }
        }
    }
}

#[tokio::test]
async fn a_prefill_node_lost_in_the_middle_of_a_handoff_costs_no_answer() {
    let model = Architecture::Llama;
    let body = chat(model.name(), &text(6_000), 16, "remote");
    for _ in 0..ATTEMPTS {
        let mut cluster = Cluster::start(&[model], 1);
        let coordinator = cluster.address();
        let asking = cluster.asking(body.clone());
        in_the_middle(&cluster.decodes).await;
        cluster.prefill.kill();
        let answer = asking.await.expect("an answer");
        if answer["tandem"]["mode"] == "remote" {
            // The handoff was faster than the signal; another attempt.
            continue;
        }
        // What came before the loss is kept: the decode node prefilled only the rest.
        let prompt = answer["tandem"]["prompt_tokens"].as_u64().expect("a count");
        let own = prefilled_by_itself(&answer);
        assert!(own > 0 && own < prompt - 1, "{own} of {prompt}: {answer}");
        assert!(
            answer["tandem"]["handoff_bytes"].as_u64() > Some(0),
            "{answer}"
        );
        let local = ask(coordinator, &chat(model.name(), &text(6_000), 16, "local")).await;
        assert_eq!(tokens(&answer), tokens(&local));
        return;
    }
    panic!("no handoff was caught in the middle in {ATTEMPTS} attempts");
}

/// How long a process is stopped: longer than it is silent by itself, shorter than the limits.
#[cfg(unix)]
const PAUSE: Duration = Duration::from_secs(5);

/// Stops a process in the middle of a handoff and lets it go on after a while. Nothing is computed
/// twice, and the tokens are those of a local answer.
#[cfg(unix)]
async fn paused(process: fn(&Cluster) -> &Daemon) {
    let model = Architecture::Llama;
    let body = |route| chat(model.name(), &text(6_000), 16, route);
    for _ in 0..ATTEMPTS {
        let cluster = Cluster::start(&[model], 1);
        let coordinator = cluster.address();
        let asking = cluster.asking(body("remote"));
        in_the_middle(&cluster.decodes).await;
        process(&cluster).signal("STOP");
        tokio::time::sleep(PAUSE).await;
        process(&cluster).signal("CONT");
        let answer = asking.await.expect("an answer");
        let first_token = answer["tandem"]["phases_ms"]["first_token"].as_f64();
        if first_token.expect("a time") < PAUSE.as_secs_f64() * 1e3 {
            // The handoff was faster than the signal; another attempt.
            continue;
        }
        assert_eq!(answer["tandem"]["mode"], "remote", "{answer}");
        assert_eq!(answer["tandem"]["reconnects"], 0, "{answer}");
        let local = ask(coordinator, &body("local")).await;
        assert_eq!(local["tandem"]["mode"], "local", "{local}");
        assert_eq!(tokens(&answer), tokens(&local));
        return;
    }
    panic!("no handoff was caught in the middle in {ATTEMPTS} attempts");
}

#[cfg(unix)]
#[tokio::test]
async fn a_decode_process_that_is_stopped_for_five_seconds_is_waited_for() {
    paused(|cluster| &cluster.decodes[0]).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_prefill_process_that_is_stopped_for_five_seconds_is_waited_for() {
    paused(|cluster| &cluster.prefill).await;
}

/// Longer than the coordinator waits for a node that says nothing.
#[cfg(unix)]
fn is_given_up(answer: &Value) -> bool {
    let limit = format!("was silent for {} s", SILENCE.as_secs());
    answer["tandem"]["events"].to_string().contains(&limit)
}

/// Nobody waits for it any longer: the answer comes while it still stands.
#[cfg(unix)]
#[tokio::test]
async fn a_prefill_process_that_is_stopped_for_longer_is_given_up() {
    let model = Architecture::Llama;
    let body = |route| chat(model.name(), &text(6_000), 16, route);
    for _ in 0..ATTEMPTS {
        let cluster = Cluster::start(&[model], 1);
        let coordinator = cluster.address();
        let asking = cluster.asking(body("remote"));
        in_the_middle(&cluster.decodes).await;
        cluster.prefill.signal("STOP");
        let answer = asking.await.expect("an answer");
        cluster.prefill.signal("CONT");
        if answer["tandem"]["mode"] == "remote" {
            // The handoff was faster than the signal; another attempt.
            continue;
        }
        assert!(is_given_up(&answer), "{answer}");
        let prompt = answer["tandem"]["prompt_tokens"].as_u64().expect("a count");
        let own = prefilled_by_itself(&answer);
        if own == 0 {
            // Only the commit was missing; another attempt.
            continue;
        }
        assert!(own < prompt - 1, "{own} of {prompt}: {answer}");
        settled(&cluster.prefill).await;
        settled(&cluster.decodes[0]).await;
        let local = ask(coordinator, &body("local")).await;
        assert_eq!(tokens(&answer), tokens(&local));
        return;
    }
    panic!("no handoff was caught in the middle in {ATTEMPTS} attempts");
}

/// Another node answers; the one that stood still leaves nothing behind when it goes on.
#[cfg(unix)]
#[tokio::test]
async fn a_decode_process_that_is_stopped_for_longer_is_given_up() {
    let model = Architecture::Llama;
    let body = |route| chat(model.name(), &text(6_000), 16, route);
    for _ in 0..ATTEMPTS {
        let cluster = Cluster::start(&[model], 2);
        let coordinator = cluster.address();
        let asking = cluster.asking(body("remote"));
        let lost = in_the_middle(&cluster.decodes).await;
        cluster.decodes[lost].signal("STOP");
        let answer = asking.await.expect("an answer");
        cluster.decodes[lost].signal("CONT");
        let other = format!("d{}", 1 - lost);
        if answer["tandem"]["decode_node"] != other.as_str() {
            // It had answered before the signal; another attempt.
            continue;
        }
        assert!(is_given_up(&answer), "{answer}");
        settled(&cluster.prefill).await;
        settled(&cluster.decodes[lost]).await;
        let local = ask(coordinator, &body("local")).await;
        assert_eq!(tokens(&answer), tokens(&local));
        return;
    }
    panic!("no handoff was caught in the middle in {ATTEMPTS} attempts");
}

/// The number of tokens that, by the timeline's notes, the decode node prefilled itself.
fn prefilled_by_itself(answer: &Value) -> u64 {
    let events = answer["tandem"]["events"].as_array().expect("events");
    let mut told = events.iter().rev().filter_map(|e| {
        let (_, rest) = e.as_str()?.split_once("decode node `d0` prefilled ")?;
        rest.split(' ').next()?.parse().ok()
    });
    told.next()
        .unwrap_or_else(|| panic!("the timeline tells no fallback: {answer}"))
}

/// Waits until a node receives nothing any more; true if it is in the middle of a handoff then.
#[cfg(unix)]
async fn stays_in_the_middle(node: &Daemon) -> bool {
    let mut before = None;
    loop {
        let now = received(node).await;
        if now.is_none() || now == before {
            return now.is_some();
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_whole_answer_is_retried_when_its_decode_node_is_lost() {
    let model = Architecture::Llama;
    let body = |route| chat(model.name(), &text(6_000), 16, route);
    for _ in 0..ATTEMPTS {
        let mut cluster = Cluster::start(&[model], 2);
        let coordinator = cluster.address();
        let asking = cluster.asking(body("remote"));
        let lost = in_the_middle(&cluster.decodes).await;
        // The rest cannot come before the end of the decode node.
        cluster.prefill.signal("STOP");
        let is_caught = stays_in_the_middle(&cluster.decodes[lost]).await;
        cluster.decodes[lost].kill();
        cluster.prefill.signal("CONT");
        let answer = asking.await.expect("an answer");
        if !is_caught {
            // The handoff was faster than the signal; another attempt.
            continue;
        }
        let other = format!("d{}", 1 - lost);
        assert_eq!(answer["tandem"]["decode_node"], other.as_str(), "{answer}");
        let events = answer["tandem"]["events"].to_string();
        assert!(events.contains(&format!("d{lost}")), "{events}");
        let local = ask(coordinator, &body("local")).await;
        assert_eq!(local["tandem"]["mode"], "local", "{local}");
        assert_eq!(tokens(&answer), tokens(&local));
        return;
    }
    panic!("no handoff was caught in the middle in {ATTEMPTS} attempts");
}

/// Also if it generates already: nothing of a whole answer has been given away.
#[tokio::test]
async fn a_whole_answer_is_retried_when_its_decode_node_is_lost_while_it_generates() {
    let model = Architecture::Llama;
    let body = |route| exact(chat(model.name(), &text(1_000), 2_000, route));
    for _ in 0..ATTEMPTS {
        let mut cluster = Cluster::start(&[model], 2);
        let coordinator = cluster.address();
        let asking = cluster.asking(body("remote"));
        let Some(lost) = generating(&cluster.decodes, &asking).await else {
            // It was faster than the look at it; another attempt.
            continue;
        };
        cluster.decodes[lost].kill();
        let answer = asking.await.expect("an answer");
        let other = format!("d{}", 1 - lost);
        if answer["tandem"]["decode_node"] != other.as_str() {
            // It had answered before the signal; another attempt.
            continue;
        }
        let events = answer["tandem"]["events"].to_string();
        assert!(events.contains(&format!("d{lost}")), "{events}");
        let local = ask(coordinator, &body("local")).await;
        assert_eq!(tokens(&answer), tokens(&local));
        return;
    }
    panic!("no node was caught while it generated in {ATTEMPTS} attempts");
}

/// The node that generates an answer, unless that has come before.
async fn generating(nodes: &[Daemon], asking: &JoinHandle<Value>) -> Option<usize> {
    while !asking.is_finished() {
        for (i, node) in nodes.iter().enumerate() {
            let status = node_status(node.address).await;
            let mut sequences = status.models.iter().flat_map(|m| &m.sequences);
            if sequences.any(|s| s.phase == Phase::Decoding) {
                return Some(i);
            }
        }
    }
    None
}

#[tokio::test]
async fn a_streamed_answer_ends_with_an_error_when_its_decode_node_is_lost() {
    a_streamed_answer_ends_with_an_error(Daemon::kill).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_streamed_answer_ends_with_an_error_when_its_decode_process_is_stopped() {
    a_streamed_answer_ends_with_an_error(|node| node.signal("STOP")).await;
}

async fn a_streamed_answer_ends_with_an_error(lose: impl Fn(&mut Daemon)) {
    let model = Architecture::Llama;
    let mut cluster = Cluster::start(&[model], 1);
    let mut body = chat(model.name(), &text(100), 8000, "remote");
    body["stream"] = json!(true);
    let response = http()
        .post(format!("http://{}/v1/chat/completions", cluster.address()))
        .json(&body)
        .send()
        .await
        .expect("a stream");
    assert_eq!(response.status().as_u16(), 200);
    let mut stream = response.bytes_stream();
    let mut seen = String::new();
    let mut lost = false;
    while let Some(bytes) = stream.next().await {
        seen += &String::from_utf8_lossy(&bytes.expect("the stream goes on"));
        if !lost && seen.matches("\"content\"").count() > 2 {
            lose(&mut cluster.decodes[0]);
            lost = true;
        }
    }
    let last = seen.trim_end().lines().last().expect("a line");
    let last: Value = serde_json::from_str(last.trim_start_matches("data: ")).expect("JSON");
    assert!(last["error"]["message"].is_string(), "{last}");
    assert!(!seen.contains("[DONE]"));
    // The next request is told what is missing, with the right status.
    let (status, answer) = ask_any(cluster.address(), &chat(model.name(), "x", 1, "auto")).await;
    assert_eq!(status, 503, "{answer}");
}

/// A configuration with further lines on handoffs.
fn with_handoff(config: &Path, lines: &str) {
    let text = std::fs::read_to_string(config).expect("config");
    let text = text.replacen("[[node]]", &format!("[handoff]\n{lines}\n[[node]]"), 1);
    std::fs::write(config, text).expect("config");
}

/// The second turn of a conversation: what was asked and answered, and something new.
fn second_turn(model: Architecture, first: &Value, answer: &Value, new: &str) -> Value {
    let mut body = chat(model.name(), new, 24, "local");
    body["messages"] = json!([
        first["messages"][0],
        {"role": "assistant", "content": answer["choices"][0]["message"]["content"]},
        {"role": "user", "content": new},
    ]);
    body["tandem"]["cache_salt"] = first["tandem"]["cache_salt"].clone();
    body
}

/// Waits until a node neither computes nor sends nor takes in.
async fn settled(node: &Daemon) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        assert!(tokio::time::Instant::now() < limit, "the node is busy");
        tokio::time::sleep(Duration::from_millis(5)).await;
        let handoffs = handoff_status(node.address).await;
        let status = node_status(node.address).await;
        let is_idle = status.models.iter().all(|m| m.sequences.is_empty());
        if is_idle && (handoffs.returns, handoffs.receiving, handoffs.sending) == (0, 0, 0) {
            return;
        }
    }
}

#[tokio::test]
async fn the_next_turn_needs_only_the_new_text_on_either_node() {
    let models = Architecture::ALL;
    let (p, d) = (
        Daemon::node("both", &models, &NODE),
        Daemon::node("both", &models, &NODE),
    );
    let nodes = [("p", p.address), ("d", d.address)];
    let serve = |routes: &[(Architecture, &[&str], &[&str])]| {
        let dir = tempfile::tempdir().expect("dir");
        let config = write_config(dir.path(), CHUNK, &nodes, routes);
        Daemon::serve(&config)
    };
    let handing_over = serve(&models.map(|m| (m, &["p"][..], &["d"][..])));
    let first_node = serve(&models.map(|m| (m, &[][..], &["p"][..])));
    let count = |of: &Value, key: &str| of["tandem"][key].as_u64().expect("a count");
    for model in models {
        // A tenant for each, so that they share nothing.
        for together in [false, true] {
            let salted = |mut body: Value| {
                body["tandem"]["cache_salt"] = json!(together.to_string());
                body["tandem"]["keep"] = json!(true);
                body
            };
            // What is said is fixed, so that its tokens are those of its text.
            let mut first = salted(chat(model.name(), &text(333), 200, "remote"));
            first["response_format"] = json!({"type": "json_schema", "json_schema":
                {"name": "fixed", "strict": true, "schema": {"enum": [text(150)]}}});
            let answer = ask(handing_over.address, &first).await;
            assert_eq!(answer["tandem"]["mode"], "remote", "{answer}");
            // The last token has no KV.
            let known = count(&answer, "prompt_tokens") + tokens(&answer).len() as u64 - 1;
            // The permission to hand back stays at `p` until `d` is done with it.
            settled(&p).await;
            settled(&d).await;
            let next = |new| salted(second_turn(model, &first, &answer, new));
            if !together {
                // Each node alone goes on where the answer ended.
                for (coordinator, new) in [(&handing_over, "and now?"), (&first_node, "why?")] {
                    let local = ask(coordinator.address, &next(new)).await;
                    assert_eq!(count(&local, "held_tokens"), known, "{model}: {local}");
                }
                continue;
            }
            // Both together: what has to be sent is what is new, and what is left of the last page.
            let mut body = next("how come?");
            body["tandem"]["route"] = json!("remote");
            let remote = ask(handing_over.address, &body).await;
            assert_eq!(remote["tandem"]["mode"], "remote", "{remote}");
            assert_eq!(count(&remote, "held_tokens"), known / 64 * 64, "{model}");
            assert_eq!(remote["tandem"]["parity"]["holds"], true, "{remote}");
            settled(&d).await;
            body["tandem"]["route"] = json!("local");
            let local = ask(handing_over.address, &body).await;
            assert_eq!(tokens(&local), tokens(&remote), "{model}");
        }
    }
}

/// A model does not split its answer as the tokenizer would. The next turn has the tokens of the answer
/// all the same; a coordinator that does not know them, those of its text.
#[tokio::test]
async fn the_next_turn_needs_only_the_new_text_however_the_answer_was_split() {
    // Their tokenizer finds `<think>` in any text; they write it byte by byte.
    let models = [Architecture::Llama, Architecture::Qwen3];
    let (p, d) = (
        Daemon::node("both", &models, &NODE),
        Daemon::node("decode", &models, &NODE),
    );
    let nodes = [("p", p.address), ("d", d.address)];
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("dir"));
    let [knows, new_here] = dirs.each_ref().map(|dir| {
        let routes = models.map(|m| (m, &["p"][..], &["d"][..]));
        Daemon::serve(&write_config(dir.path(), CHUNK, &nodes, &routes))
    });
    let count = |of: &Value, key: &str| of["tandem"][key].as_u64().expect("a count");
    for model in models {
        let salted = |mut body: Value, route: &str| {
            body["tandem"]["keep"] = json!(true);
            body["tandem"]["route"] = json!(route);
            body
        };
        let mut first = salted(chat(model.name(), &text(333), 200, "remote"), "remote");
        let marked = "<think>".repeat(22);
        first["response_format"] = json!({"type": "json_schema", "json_schema":
            {"name": "fixed", "strict": true, "schema": {"enum": [marked]}}});
        let answer = ask(knows.address, &first).await;
        assert_eq!(answer["tandem"]["mode"], "remote", "{answer}");
        let known = count(&answer, "prompt_tokens") + tokens(&answer).len() as u64 - 1;
        settled(&p).await;
        settled(&d).await;
        let next = |new, route| salted(second_turn(model, &first, &answer, new), route);
        let unknown = ask(new_here.address, &next("and now?", "remote")).await;
        settled(&d).await;
        let pages = known / 64 * 64;
        assert!(
            count(&unknown, "held_tokens") < pages,
            "{model}: split alike"
        );
        let remote = ask(knows.address, &next("how come?", "remote")).await;
        assert_eq!(count(&remote, "held_tokens"), pages, "{model}: {remote}");
        assert_eq!(remote["tandem"]["parity"]["holds"], true, "{remote}");
        settled(&d).await;
        let local = ask(knows.address, &next("how come?", "local")).await;
        assert_eq!(tokens(&local), tokens(&remote), "{model}");
        settled(&d).await;
        let local = ask(knows.address, &next("why?", "local")).await;
        assert!(count(&local, "held_tokens") >= known, "{model}: {local}");
        // What a client adds or takes away behind the answer is all that is new.
        let mut changed = next("why?", "local");
        let said = answer["choices"][0]["message"]["content"].as_str();
        let said = said.expect("text");
        changed["messages"][1]["content"] = json!(format!("{said}\n"));
        let local = ask(knows.address, &changed).await;
        assert!(count(&local, "held_tokens") >= pages, "{model}: {local}");
    }
}

/// As `tandem grade` asks on one machine: no answer is kept, and a prompt that begins like the last one begins with its
/// rows. A reproducible answer is that of a node which has nothing of it, to the bit as far as tokens at a temperature show
/// it.
#[tokio::test]
async fn a_shared_beginning_is_computed_once_on_one_machine_and_changes_no_token() {
    let model = Architecture::Llama;
    let alone = Daemon::node("both", &[model], &NODE);
    let dir = tempfile::tempdir().expect("dir");
    let routes = [(model, &[][..], &["a"][..])];
    let nodes = [("a", alone.address)];
    let coordinator = Daemon::serve(&write_config(dir.path(), CHUNK, &nodes, &routes));
    let shared = text(700);
    for (i, own) in [3, 80, 200, 200].into_iter().enumerate() {
        let prompt = format!("{shared}{i}{}", &text(900)[700 - own..700]);
        let mut body = chat(model.name(), &prompt, 48, "local");
        body["temperature"] = json!(1.5);
        body["tandem"]["cache_salt"] = json!("course");
        let answer = ask(coordinator.address, &body).await;
        // At once: the rows have stayed in the engine.
        let cached = answer["tandem"]["cached_tokens"].as_u64().expect("a count");
        let least = if i == 0 { 0 } else { 512 };
        assert!((least..=least + 300).contains(&cached), "{i}: {answer}");
        let mut body = exact(body);
        let answer = ask(coordinator.address, &body).await;
        settled(&alone).await;
        body["tandem"]["cache_salt"] = json!(format!("nobody else {i}"));
        let fresh = ask(coordinator.address, &body).await;
        assert_eq!(fresh["tandem"]["cached_tokens"], 0, "{fresh}");
        assert_eq!(tokens(&answer), tokens(&fresh), "{i}");
    }
}

/// The same prompt again begins with the pages of both nodes, and with the window at its end.
#[tokio::test]
async fn cached_tokens_are_those_that_nobody_computed() {
    let models = [Architecture::Llama, Architecture::Gemma3];
    let (p, d) = (
        Daemon::node("prefill", &models, &NODE),
        Daemon::node("decode", &models, &NODE),
    );
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [("p", p.address), ("d", d.address)];
    let routes = models.map(|m| (m, &["p"][..], &["d"][..]));
    let coordinator = Daemon::serve(&write_config(dir.path(), CHUNK, &nodes, &routes));
    for model in models {
        let body = chat(model.name(), &text(700), 8, "remote");
        let mut last = Value::Null;
        for _ in 0..2 {
            last = ask(coordinator.address, &body).await;
            assert_eq!(last["tandem"]["mode"], "remote", "{last}");
            settled(&p).await;
            settled(&d).await;
        }
        let count = |key: &str| last["tandem"][key].as_u64().expect("a count");
        let cached = &last["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(*cached, count("cached_tokens"), "{last}");
        assert!(count("held_tokens") >= 512, "{last}");
        let saved = count("cached_tokens");
        assert!((512..count("prompt_tokens")).contains(&saved), "{last}");
    }
}

/// Of two pairs, the one that had the turn before gets the next one, whichever comes first.
#[tokio::test]
async fn the_next_turn_goes_to_the_pair_that_had_the_one_before() {
    let model = Architecture::Llama;
    let prefills = [(); 2].map(|()| Daemon::node("prefill", &[model], &NODE));
    let decodes = [(); 2].map(|()| Daemon::node("decode", &[model], &NODE));
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [
        ("p0", prefills[0].address),
        ("p1", prefills[1].address),
        ("d0", decodes[0].address),
        ("d1", decodes[1].address),
    ];
    let routes = [(model, &["p0", "p1"][..], &["d0", "d1"][..])];
    let config = write_config(dir.path(), CHUNK, &nodes, &routes);
    let coordinator = Daemon::serve(&config);
    let first = |topic: &str| {
        let opening = format!("{topic} {}", text(1000));
        let mut body = chat(model.name(), &opening, 200, "remote");
        body["tandem"]["keep"] = json!(true);
        body["response_format"] = json!({"type": "json_schema", "json_schema":
            {"name": "fixed", "strict": true, "schema": {"enum": [text(150)]}}});
        body
    };
    // At the same time, so that each pair gets one; which one has which is for chance.
    let pairs =
        |answer: &Value| ["decode_node", "prefill_node"].map(|key| answer["tandem"][key].clone());
    let mut asked = Vec::new();
    for attempt in 0..ATTEMPTS {
        let bodies = ["first", "other"].map(|topic| first(&format!("{topic} {attempt}")));
        let (one, two) = tokio::join!(
            ask(coordinator.address, &bodies[0]),
            ask(coordinator.address, &bodies[1])
        );
        let [(d, p), (e, q)] = [&one, &two].map(pairs).map(|[d, p]| (d, p));
        if d != e && p != q {
            asked = bodies.into_iter().zip([one, two]).collect();
            break;
        }
    }
    assert_eq!(asked.len(), 2, "never at the same time");
    for node in prefills.iter().chain(&decodes) {
        settled(node).await;
    }
    // All are idle, and order alone would send both to the same pair.
    for (body, answer) in asked.iter().rev() {
        let mut next = second_turn(model, body, answer, "and now?");
        next["tandem"]["route"] = json!("remote");
        let said = ask(coordinator.address, &next).await;
        assert_eq!(pairs(&said), pairs(answer), "{said}");
        let known = answer["tandem"]["prompt_tokens"].as_u64().expect("a count")
            + tokens(answer).len() as u64
            - 1;
        assert_eq!(said["tandem"]["held_tokens"], known / 64 * 64, "{said}");
    }
}

/// What a coordinator tells of its nodes.
async fn nodes_of(coordinator: SocketAddr) -> Value {
    get(coordinator, "v1/nodes").await
}

/// Waits until the coordinator knows that a node is gone.
async fn until_down(coordinator: SocketAddr, name: &str) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        assert!(tokio::time::Instant::now() < limit, "`{name}` is up");
        let nodes = nodes_of(coordinator).await;
        let nodes = nodes["data"].as_array().expect("nodes");
        if nodes
            .iter()
            .any(|n| n["name"] == name && n["up"] == json!(false))
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A prefill node that has not heard of the conversation would compute all of it. The decode node computes what is new
/// instead, turn after turn, unless it is told otherwise.
#[tokio::test]
async fn with_another_prefill_node_the_next_turn_still_computes_only_the_new_text() {
    let model = Architecture::Llama;
    let mut prefills = [(); 2].map(|()| Some(Daemon::node("prefill", &[model], &NODE)));
    let decode = Daemon::node("decode", &[model], &NODE);
    let dir = tempfile::tempdir().expect("dir");
    let address = |node: &Option<Daemon>| node.as_ref().expect("it runs").address;
    let nodes = [
        ("p0", address(&prefills[0])),
        ("p1", address(&prefills[1])),
        ("d", decode.address),
    ];
    let config = write_config(dir.path(), CHUNK, &nodes, &[(model, &["p0", "p1"], &["d"])]);
    let coordinator = Daemon::serve(&config);
    let keep = |mut body: Value, route: &str| {
        body["tandem"]["keep"] = json!(true);
        body["tandem"]["route"] = json!(route);
        body
    };
    let opening = keep(chat(model.name(), &text(1500), 60, "auto"), "auto");
    let mut answer = ask(coordinator.address, &opening).await;
    assert_eq!(answer["tandem"]["prefill_node"], "p0", "{answer}");
    settled(prefills[0].as_ref().expect("it runs")).await;
    settled(&decode).await;
    prefills[0] = None;
    until_down(coordinator.address, "p0").await;
    let mut body = opening.clone();
    for new in ["and now?", "why?"] {
        let known = answer["tandem"]["prompt_tokens"].as_u64().expect("a count")
            + tokens(&answer).len() as u64
            - 1;
        let said = answer["choices"][0]["message"]["content"].clone();
        let messages = body["messages"].as_array_mut().expect("messages");
        messages.push(json!({"role": "assistant", "content": said}));
        messages.push(json!({"role": "user", "content": new}));
        let alone = ask(coordinator.address, &keep(body.clone(), "auto")).await;
        let told = &alone["tandem"];
        assert_eq!(
            (&told["mode"], &told["prefill_node"]),
            (&json!("local"), &json!("d")),
            "{alone}"
        );
        assert_eq!(told["held_tokens"], known, "{alone}");
        let events = told["events"].to_string();
        assert!(events.contains("itself; `p1` was not asked"), "{events}");
        settled(&decode).await;
        let local = ask(coordinator.address, &keep(body.clone(), "local")).await;
        assert_eq!(tokens(&alone), tokens(&local));
        settled(&decode).await;
        answer = alone;
    }
    // Nothing has passed between these two.
    let between = |nodes: &Value| {
        let pairs = nodes["pairs"].as_array().expect("pairs").clone();
        pairs.iter().any(|pair| pair["prefill"] == "p1")
    };
    assert!(!between(&nodes_of(coordinator.address).await));
    // Whoever wants the other node gets it.
    let remote = ask(coordinator.address, &keep(body, "remote")).await;
    assert_eq!(remote["tandem"]["prefill_node"], "p1", "{remote}");
    assert_eq!(tokens(&remote), tokens(&answer));
    assert!(between(&nodes_of(coordinator.address).await));
    assert_eq!(remote["tandem"]["parity"]["holds"], true, "{remote}");
}

#[tokio::test]
async fn another_quantisation_prefills_with_permission_and_the_receipt_tells_how_well_it_fits() {
    let model = Architecture::Llama;
    let quantised = Spec {
        weights: WeightType::Q8_0,
        ..Spec::new(model)
    };
    let prefill = Daemon::node("prefill", &[model], &NODE);
    let decode = Daemon::node_with("decode", &[quantised], &NODE);
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [("p", prefill.address), ("d", decode.address)];
    let config = write_config(dir.path(), CHUNK, &nodes, &[(model, &["p"], &["d"])]);
    with_handoff(&config, "parity = \"refuse\"");
    let written = std::fs::read_to_string(&config).expect("config");
    // A bound that nothing but equal numbers is within has the pair refused after the first answer.
    for (bound, holds) in [("parity_kl = 0.1", true), ("parity_kl = 0.0", false)] {
        let bounded = written.replacen("[handoff]", &format!("[handoff]\n{bound}"), 1);
        let changed = bounded + "mixed_quantisation = true\n";
        std::fs::write(&config, changed).expect("config");
        let serving = Daemon::serve(&config);
        let body = |route| chat(model.name(), &text(700), 8, route);
        let local = ask(serving.address, &body("local")).await;
        // The second time there is nothing that could be used again.
        for is_first in [true, false] {
            let answer = ask(serving.address, &body("auto")).await;
            let tandem = &answer["tandem"];
            assert_eq!(tandem["held_tokens"], 0, "{answer}");
            let events = tandem["events"].to_string();
            if !(is_first || holds) {
                assert_eq!(tandem["mode"], "local", "{answer}");
                assert!(events.contains("do not compute the same"), "{events}");
                assert_eq!(tokens(&answer), tokens(&local));
                continue;
            }
            assert_eq!(tandem["mode"], "remote", "{answer}");
            let told = "prefill with quantisation ";
            assert!(events.contains(told), "{events}");
            let parity = &tandem["parity"];
            let kl = parity["kl"].as_f64().expect("a divergence");
            assert!(kl > 0.0 && kl < 0.1, "{parity}");
            assert_eq!(parity["holds"], holds, "{parity}");
        }
    }
}

#[tokio::test]
async fn models_that_differ_exchange_nothing_and_the_field_is_named() {
    let model = Architecture::Llama;
    let usual = Spec::new(model);
    let table = [
        (
            "quantisation",
            Spec {
                weights: WeightType::Q8_0,
                ..usual.clone()
            },
        ),
        (
            "tokenizer",
            Spec {
                tokenizer: TokenizerVariant::Shifted,
                ..usual.clone()
            },
        ),
    ];
    let decode = Daemon::node("decode", &[model], &NODE);
    for (field, other) in table {
        let prefill = Daemon::node_with("prefill", &[other], &NODE);
        let dir = tempfile::tempdir().expect("dir");
        let nodes = [("p", prefill.address), ("d", decode.address)];
        let config = write_config(dir.path(), CHUNK, &nodes, &[(model, &["p"], &["d"])]);
        let serving = Daemon::serve(&config);
        let coordinator = serving.address;
        let expected = format!("contract field `{field}` differs");

        let body = |route| chat(model.name(), &text(200), 8, route);
        let local = ask(coordinator, &body("local")).await;
        for route in ["auto", "remote"] {
            let answer = ask(coordinator, &body(route)).await;
            assert_eq!(answer["tandem"]["mode"], "local", "{answer}");
            assert_eq!(answer["tandem"]["handoff_bytes"], 0, "{answer}");
            let events = answer["tandem"]["events"].to_string();
            assert!(events.contains(&expected), "{events}");
            assert_eq!(tokens(&answer), tokens(&local), "{field}");
        }
    }
}
