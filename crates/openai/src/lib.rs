//! Serde types of the OpenAI-compatible API and its stream framing.
