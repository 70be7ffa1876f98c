//! Named limits of a request. A request beyond one of them is refused, naming the field.

/// Most bytes of one request body.
pub const MAX_BODY_BYTES: usize = 8 << 20;
/// Most messages in one chat request.
pub const MAX_MESSAGES: usize = 1024;
/// Most parts in the content array of one message.
pub const MAX_CONTENT_PARTS: usize = 256;
/// Most bytes of a model name.
pub const MAX_MODEL_NAME_BYTES: usize = 256;
/// Most stop strings in one request.
pub const MAX_STOP_STRINGS: usize = 16;
/// Most bytes of one stop string.
pub const MAX_STOP_BYTES: usize = 256;
/// Most token ids in a prompt given as tokens.
pub const MAX_PROMPT_TOKENS: usize = 1 << 20;
/// Most tokens that one request may ask to generate.
pub const MAX_GENERATED_TOKENS: u32 = 1 << 20;
/// Most levels of a JSON schema, which nodes read inside a message of their own.
pub const MAX_SCHEMA_DEPTH: usize = 100;
/// Most bytes of a JSON schema in `response_format`, serialised without spaces.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// Most bytes of a cache salt.
pub const MAX_SALT_BYTES: usize = 256;
/// Most characters of the name of a message's participant.
pub const MAX_PARTICIPANT_CHARS: usize = 64;
/// Most bytes of a schema name.
pub const MAX_SCHEMA_NAME_BYTES: usize = 64;
/// Highest temperature, as in the OpenAI reference.
pub const MAX_TEMPERATURE: f64 = 2.0;
/// Highest `top_k`; more than any vocabulary needs.
pub const MAX_TOP_K: u32 = 1 << 20;
