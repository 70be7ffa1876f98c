//! `POST /tokenize`: how many tokens the prompt of a request has. Field names as in vLLM.

use std::time::Instant;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tandem_api::{ApiError, parse_chat, parse_completion};
use tandem_proto::{ErrorCode, TokenizeRequest};

use crate::error::CallError;
use crate::service::Service;
use crate::translate;

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokenization {
    /// Tokens of the prompt.
    pub count: usize,
    /// Most tokens of a prompt and its answer together, on the node that has room for most.
    pub max_model_len: u32,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Fields of the request that were ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

/// Only whether the request is one of the chat API.
#[derive(Deserialize)]
struct Kind {
    messages: Option<IgnoredAny>,
}

/// Takes the body of a chat or of a completion.
pub(crate) async fn tokenize(service: &Service, body: &[u8]) -> Result<Tokenization, ApiError> {
    let kind: Result<Kind, _> = serde_json::from_slice(body);
    let is_chat = kind.is_ok_and(|kind| kind.messages.is_some());
    let (model, mut prompt, salt, (field, ignored)) = if is_chat {
        let request = parse_chat(body, service.config.lenient)?;
        let prompt = translate::chat_prompt(&request);
        (
            request.model,
            prompt,
            request.tandem.cache_salt,
            ("messages", request.ignored),
        )
    } else {
        let request = parse_completion(body, service.config.lenient)?;
        let prompt = translate::completion_prompt(&request);
        (
            request.model,
            prompt,
            request.tandem.cache_salt,
            ("prompt", request.ignored),
        )
    };
    service.answers.recall(&salt, &model, &mut prompt);
    if !service.config.models.iter().any(|m| m.name == model) {
        return Err(ApiError::model_not_found(&model));
    }
    if service.config.is_served_only(&model) {
        let message =
            format!("`{model}` is answered by servers, which count tokens only in answers");
        let kind = "invalid_request_error";
        return Err(ApiError::new(
            501,
            kind,
            None,
            Some("no_tokenizer"),
            message,
        ));
    }
    let _open = service.cluster.enter()?;
    let poison = service.poisons.key(&(&model, &prompt));
    service.poisons.check(poison, Instant::now())?;
    let look = service.cluster.look().await?;
    let able = look.decoders.get(&model).into_iter().flatten();
    let (node, _) = able
        .max_by_key(|(_, context)| *context)
        .ok_or_else(|| ApiError::unavailable(format!("no node can decode `{model}` now")))?;
    let request = TokenizeRequest { model, prompt };
    let address = service.config.address(node);
    let told = service.calls.tokenize(address, &request).await;
    let told = told.map_err(|e| match e {
        CallError::Refused(error) if !error.code.try_elsewhere() => {
            translate::bad_request(&error, field)
        }
        CallError::Refused(error) if error.code == ErrorCode::Busy => ApiError::busy(error.message),
        e => {
            if e.may_have_died() {
                service.poisons.add(poison, Instant::now());
            }
            ApiError::bad_gateway(format!("node `{node}` {e}"))
        }
    })?;
    Ok(Tokenization {
        count: told.tokens.len(),
        max_model_len: told.context,
        tokens: told.tokens,
        ignored,
    })
}
