//! Serde types of the OpenAI-compatible API and its stream framing.
//!
//! Pure: no sockets, no clock, no randomness. A server parses request bodies with
//! [`parse_chat`] and [`parse_completion`], which answer every mistake with an OpenAI-shaped
//! [`ApiError`] that names the field; a client serialises [`ChatRequest`] and reads the
//! response types, all of which go both ways.
//!
//! The field names and their meanings follow the public OpenAI API reference
//! (chat completions, completions, models); [`TandemOptions`] and [`TandemInfo`] are this
//! project's extension under the single key `tandem`.

mod chat;
mod completion;
mod error;
mod fields;
mod format;
pub mod limits;
mod passed;
mod refused;
mod response;
mod sampling;
mod sse;
mod tandem;
mod unknown;

pub use chat::{ChatRequest, Message, Role, parse_chat};
pub use completion::{CompletionRequest, Prompt, parse_completion};
pub use error::{ApiError, ErrorBody, ErrorDetail, OTHER_SHAPE};
pub use passed::{Passed, model_of, pass_chat, pass_completion};
pub use refused::changes_nothing;
pub use response::{
    ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, ChatMessage, Completion,
    CompletionChoice, Delta, Model, ModelList, PromptTokensDetails, Usage,
};
pub use sampling::StreamOptions;
pub use sse::{SSE_DONE, sse_error, sse_event};
pub use tandem::{
    AloneInfo, ParityInfo, PhasesMs, RouteChoice, ServerInfo, TandemInfo, TandemOptions,
};
pub use tandem_proto::{FinishReason, Format, SamplingParams};
