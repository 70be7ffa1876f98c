//! What a hello is compared with.

use std::sync::Arc;

use crate::contract::{Contract, Difference};
use crate::digest::token_digest;
use crate::limits::{
    AHEAD_BYTES, CREDIT_BYTES, MAX_CONTINUATION, MAX_CREDIT_BYTES, MAX_DIFFERENCES, MAX_STRING,
    MAX_WINDOW_BYTES,
};
use crate::message::{Hello, RefusalCode, Refuse};
use crate::policy::Quality;
use crate::segment::window_bytes;
use crate::text::harmless;

/// What a ticket permits.
#[derive(Clone)]
pub struct Expectation {
    /// What the rows must be.
    pub contract: Arc<Contract>,
    /// Id of the handoff.
    pub handoff: u64,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// KV must cover `[0, kv_end)`, as `covers` says.
    pub kv_end: u32,
    /// How much of it.
    pub covers: Covers,
    /// How far rows may differ from what was computed.
    pub quality: Quality,
    /// True if the rows may be those of another quantisation of the weights.
    pub mixed_quantisation: bool,
}

/// How much KV a handoff must bring, measured by [`Expectation::kv_end`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covers {
    /// That of a prompt: all of it and no more.
    All,
    /// That of a prompt and its answer: at least all of it. The sender may name tokens that follow.
    Beyond,
}

impl std::fmt::Debug for Expectation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Expectation")
            .field("handoff", &self.handoff)
            .field("n_tokens", &self.tokens.len())
            .field("kv_end", &self.kv_end)
            .finish_non_exhaustive()
    }
}

/// Credit with which a whole step of so many bytes can be on its way, beside [`AHEAD_BYTES`] of the one before.
#[must_use]
pub fn credit_for(step_bytes: u64) -> u64 {
    let all = step_bytes.saturating_add(AHEAD_BYTES);
    all.clamp(CREDIT_BYTES, MAX_CREDIT_BYTES)
}

/// Compares a hello with what its ticket permits; gives the end of its KV.
pub(super) fn compare(hello: &Hello, expected: &Expectation) -> Result<u32, Box<Refuse>> {
    for (name, text) in [
        ("ticket", &hello.ticket),
        ("token_digest", &hello.token_digest),
    ] {
        if text.len() > MAX_STRING {
            let message = format!("hello field `{name}` is longer than {MAX_STRING} bytes");
            return Err(refuse(RefusalCode::Hello, message));
        }
    }
    if let Err(e) = hello.contract.validate() {
        return Err(refuse(RefusalCode::Contract, e.to_string()));
    }
    let ours = &expected.contract;
    let mut differences = if expected.mixed_quantisation {
        ours.differences_but_quantisation(&hello.contract)
    } else {
        ours.differences(&hello.contract)
    };
    if !differences.is_empty() {
        differences.truncate(MAX_DIFFERENCES);
        return Err(Box::new(Refuse {
            code: RefusalCode::Contract,
            message: join(&differences),
            differences,
        }));
    }
    covers(hello, expected)?;
    let theirs = hello.kv_end;
    let window = window_bytes(&hello.contract, theirs);
    if window > MAX_WINDOW_BYTES {
        let message =
            format!("hello field `kv_end`: a window of {window} bytes, limit {MAX_WINDOW_BYTES}");
        return Err(refuse(RefusalCode::Contract, message));
    }
    let all: Vec<u32> = expected
        .tokens
        .iter()
        .chain(&hello.continuation)
        .copied()
        .collect();
    let digest = blake3::Hash::from(token_digest(&all)).to_hex();
    if hello.token_digest != digest.as_str() {
        let theirs = &hello.token_digest;
        let message = format!("hello field `token_digest` differs: ours {digest}, theirs {theirs}");
        return Err(refuse(RefusalCode::Tokens, message));
    }
    Ok(theirs)
}

/// Compares which tokens a hello is for with what its ticket permits.
fn covers(hello: &Hello, expected: &Expectation) -> Result<(), Box<Refuse>> {
    let count = hello.continuation.len();
    let limit = match expected.covers {
        Covers::Beyond => MAX_CONTINUATION,
        Covers::All => 0,
    };
    if count > limit {
        let message = format!("hello field `continuation` has {count} tokens, limit {limit}");
        return Err(refuse(RefusalCode::Tokens, message));
    }
    let most = expected.tokens.len().saturating_add(count);
    let (ours, theirs) = (expected.kv_end, hello.kv_end);
    let fits = match expected.covers {
        Covers::All => ours == theirs,
        Covers::Beyond => theirs >= ours && theirs as usize <= most,
    };
    if !fits {
        let message = format!("hello field `kv_end` differs: ours {ours}, theirs {theirs}");
        return Err(refuse(RefusalCode::Tokens, message));
    }
    if hello.exact_end > theirs {
        let message = format!(
            "hello field `exact_end` is {}, at most `kv_end`: {theirs}",
            hello.exact_end
        );
        return Err(refuse(RefusalCode::Hello, message));
    }
    Ok(())
}

fn refuse(code: RefusalCode, message: String) -> Box<Refuse> {
    Box::new(Refuse {
        code,
        message: harmless(&message),
        differences: Vec::new(),
    })
}

fn join(differences: &[Difference]) -> String {
    let all: Vec<String> = differences.iter().map(ToString::to_string).collect();
    all.join("; ")
}
