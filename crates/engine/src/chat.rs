//! The chat template of a model.
//!
//! A GGUF carries its template as Jinja. It is rendered as Hugging Face's `apply_chat_template`
//! does, with one difference: what people wrote is never rendered. Each content is a sentinel
//! while the template runs; the result is split at the sentinels, the pieces of the template are
//! tokenised with control tokens, and the contents without. So
//!
//! - nothing a person wrote becomes a control token, whatever it looks like;
//! - the tokens of a shared beginning are the same whatever follows;
//! - contents are taken as they are: a template cannot trim, escape or cut them.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::{Deserialize, Serialize};

use crate::tokenizer::{Token, Tokenizer};

/// Most messages of one conversation.
pub const MAX_MESSAGES: usize = 1024;

/// Roles a message may have. A role becomes part of the template's text, so it cannot be free.
pub const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// What `strftime_now` says if no date is given: the day that Llama's template itself falls back
/// to. A fixed day keeps prompts, and so their KV, equal from day to day.
pub const DEFAULT_DATE: &str = "2024-07-26";

/// Noncharacters of Unicode, which no text may use for its own purposes.
const SENTINEL_START: char = '\u{FDD0}';
const SENTINEL_END: char = '\u{FDD1}';

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// Who speaks: one of [`ROLES`].
    pub role: String,
    /// What is said.
    pub content: String,
    /// The tokens that it was generated as, if that is known: they need not be those of the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Token>,
}

impl ChatMessage {
    /// A message whose tokens are those of its content.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            tokens: Vec::new(),
        }
    }
}

/// Why messages cannot become tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The model has none.
    #[error(
        "the model has no chat template; use /v1/completions, or a GGUF with `tokenizer.chat_template`"
    )]
    NoTemplate,
    /// The template is not one we can render.
    #[error("the model's chat template cannot be used: {0}")]
    Template(String),
    /// Not a date.
    #[error("the date `{0}` is not of the form YYYY-MM-DD")]
    Date(String),
    /// There must be something to answer.
    #[error("`messages` is empty; at least one is needed")]
    NoMessages,
    /// Too many messages.
    #[error("`messages` has {0} entries; at most {MAX_MESSAGES} are allowed")]
    TooMany(usize),
    /// An unknown role. It is not quoted, since anything may stand there.
    #[error("`messages[{0}].role` must be system, developer, user or assistant")]
    Role(usize),
    /// The template refused the conversation, in its own words.
    #[error("the model's chat template refuses the messages: {0}")]
    Refused(String),
    /// The template left a message out.
    #[error("the model's chat template has no place for `messages[{index}]` (role {role})")]
    Dropped {
        /// Its place in the list.
        index: usize,
        /// Its role.
        role: String,
    },
    /// The template used a message twice.
    #[error("the model's chat template repeats `messages[{index}]` (role {role})")]
    Repeated {
        /// Its place in the list.
        index: usize,
        /// Its role.
        role: String,
    },
}

/// The chat template of a model, ready to render.
pub struct ChatTemplate {
    tokenizer: Arc<dyn Tokenizer>,
    environment: Environment<'static>,
    bos: Option<Token>,
    bos_text: String,
    eos_text: String,
}

/// A part of a rendered conversation.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// Text of the template.
    Template(&'a str),
    /// The content of the message with this index.
    Content(usize),
}

impl ChatTemplate {
    /// Compiles the template of a model; `strftime_now` says [`DEFAULT_DATE`].
    ///
    /// # Errors
    /// If the model has no template, or it does not compile.
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Result<Self, ChatError> {
        Self::with_date(tokenizer, DEFAULT_DATE)
    }

    /// As [`ChatTemplate::new`] for templates that write the current day into the prompt: `date`
    /// is `YYYY-MM-DD`. No clock is asked.
    ///
    /// # Errors
    /// As `new`, and if the date is none.
    pub fn with_date(tokenizer: Arc<dyn Tokenizer>, date: &str) -> Result<Self, ChatError> {
        let date = Date::parse(date).ok_or_else(|| ChatError::Date(date.to_owned()))?;
        let source = tokenizer.chat_template().ok_or(ChatError::NoTemplate)?;
        let special = tokenizer.special();
        let text = |token: Option<Token>| {
            token
                .and_then(|token| tokenizer.control_name(token))
                .unwrap_or_default()
        };
        let (bos_text, eos_text) = (text(special.bos), text(special.eos));
        if [&source, &bos_text, &eos_text]
            .iter()
            .any(|text| text.contains([SENTINEL_START, SENTINEL_END]))
        {
            return Err(ChatError::Template(
                "it contains the noncharacters U+FDD0 or U+FDD1".to_owned(),
            ));
        }
        Ok(Self {
            environment: environment(source, date)?,
            bos: special.bos.filter(|_| special.add_bos),
            bos_text,
            eos_text,
            tokenizer,
        })
    }

    /// Tokens of a conversation, up to where the answer begins.
    ///
    /// # Errors
    /// If the template refuses the messages, leaves one out or repeats one.
    pub fn tokens(&self, messages: &[ChatMessage]) -> Result<Vec<Token>, ChatError> {
        check_messages(messages)?;
        let rendered = self.render(messages)?;
        let pieces = split(&rendered);
        check_pieces(&pieces, messages)?;
        let mut tokens = Vec::new();
        for piece in pieces {
            tokens.extend(match piece {
                Piece::Template(text) => self.tokenizer.encode(text, true),
                Piece::Content(index) => self.content(&messages[index]),
            });
        }
        match self.bos {
            Some(bos) if tokens.first() != Some(&bos) => tokens.insert(0, bos),
            _ => {}
        }
        Ok(tokens)
    }

    /// Tokens of a content: those that it was generated as, up to where they give something else than the
    /// text, or cut a character of it; then those of the rest. A token that is not text is none of a content.
    fn content(&self, message: &ChatMessage) -> Vec<Token> {
        let text = &message.content;
        let (mut at, mut kept, mut rest) = (0, 0, text.as_str());
        for (i, token) in message.tokens.iter().enumerate() {
            if *token >= self.tokenizer.len() || self.tokenizer.control_name(*token).is_some() {
                break;
            }
            let bytes = self.tokenizer.bytes(*token);
            if !text.as_bytes()[at..].starts_with(&bytes) {
                break;
            }
            at += bytes.len();
            if text.is_char_boundary(at) {
                (kept, rest) = (i + 1, &text[at..]);
            }
        }
        let mut tokens = message.tokens[..kept].to_vec();
        tokens.extend(self.tokenizer.encode(rest, false));
        let given = || tokens.iter().flat_map(|t| self.tokenizer.bytes(*t));
        // Some tokenizers put a space before whatever they are given.
        if kept > 0 && !given().eq(text.bytes()) {
            return self.tokenizer.encode(text, false);
        }
        tokens
    }

    /// The template's text with a sentinel for each content.
    fn render(&self, messages: &[ChatMessage]) -> Result<String, ChatError> {
        let messages: Value = messages
            .iter()
            .enumerate()
            .map(|(i, message)| {
                let content = format!("{SENTINEL_START}{i}{SENTINEL_END}");
                Value::from_pairs([("role", message.role.clone()), ("content", content)])
            })
            .collect();
        let variables = Value::from_pairs([
            ("messages", messages),
            ("add_generation_prompt", Value::from(true)),
            ("bos_token", Value::from(self.bos_text.as_str())),
            ("eos_token", Value::from(self.eos_text.as_str())),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ]);
        self.environment
            .get_template(TEMPLATE)
            .and_then(|template| template.render(variables))
            .map_err(|e| ChatError::Refused(reason(&e)))
    }
}

/// Tokens of a prompt without template. Control tokens in `text` are ordinary text.
#[must_use]
pub fn completion_tokens(tokenizer: &dyn Tokenizer, text: &str) -> Vec<Token> {
    let special = tokenizer.special();
    let bos = special.bos.filter(|_| special.add_bos);
    bos.into_iter()
        .chain(tokenizer.encode(text, false))
        .collect()
}

const TEMPLATE: &str = "chat";

/// The environment that Hugging Face gives templates: Python's string methods,
/// `raise_exception`, `strftime_now`, and whitespace around blocks trimmed.
fn environment(source: String, date: Date) -> Result<Environment<'static>, ChatError> {
    let mut environment = Environment::new();
    environment.set_debug(false);
    environment.set_syntax(syntax()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| {
        Err::<Value, Error>(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: String| date.format(&format));
    environment
        .add_template_owned(TEMPLATE, source)
        .map_err(|e| ChatError::Template(reason(&e)))?;
    Ok(environment)
}

/// Jinja's own delimiters, with the whitespace rules of Hugging Face.
fn syntax() -> Result<SyntaxConfig, ChatError> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| ChatError::Template(reason(&e)))
}

/// What went wrong, in the template's own words where it has any.
fn reason(error: &Error) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned)
}

fn check_messages(messages: &[ChatMessage]) -> Result<(), ChatError> {
    match messages.len() {
        0 => return Err(ChatError::NoMessages),
        1..=MAX_MESSAGES => {}
        count => return Err(ChatError::TooMany(count)),
    }
    let known = |message: &ChatMessage| ROLES.contains(&message.role.as_str());
    match messages.iter().position(|message| !known(message)) {
        Some(index) => Err(ChatError::Role(index)),
        None => Ok(()),
    }
}

/// Cuts a rendered conversation at its sentinels.
fn split(rendered: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = rendered;
    while let Some((before, index, after)) = next_sentinel(rest) {
        pieces.push(Piece::Template(before));
        pieces.push(Piece::Content(index));
        rest = after;
    }
    pieces.push(Piece::Template(rest));
    pieces.retain(|piece| *piece != Piece::Template(""));
    pieces
}

/// The text before the first sentinel, its index, and the text after it.
fn next_sentinel(text: &str) -> Option<(&str, usize, &str)> {
    let (before, rest) = text.split_once(SENTINEL_START)?;
    let (index, after) = rest.split_once(SENTINEL_END)?;
    Some((before, index.parse().ok()?, after))
}

/// That every message is there once, and no sentinel was cut in pieces.
fn check_pieces(pieces: &[Piece<'_>], messages: &[ChatMessage]) -> Result<(), ChatError> {
    let mut uses = vec![0_usize; messages.len()];
    for piece in pieces {
        match piece {
            Piece::Content(index) => match uses.get_mut(*index) {
                Some(count) => *count += 1,
                None => return Err(ChatError::Template("it changes contents".to_owned())),
            },
            Piece::Template(text) => {
                if text.contains([SENTINEL_START, SENTINEL_END]) {
                    return Err(ChatError::Template("it cuts contents".to_owned()));
                }
            }
        }
    }
    for (index, (count, message)) in uses.into_iter().zip(messages).enumerate() {
        let role = message.role.clone();
        match count {
            1 => {}
            0 => return Err(ChatError::Dropped { index, role }),
            _ => return Err(ChatError::Repeated { index, role }),
        }
    }
    Ok(())
}

/// A day of the calendar.
#[derive(Debug, Clone, Copy)]
struct Date {
    year: u16,
    month: u8,
    day: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl Date {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut number = |digits: usize| {
            let part = parts.next()?;
            let plain = part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
            part.parse::<u16>().ok().filter(|_| plain)
        };
        let (year, month, day) = (number(4)?, number(2)?, number(2)?);
        let fits = (1..=12).contains(&month) && (1..=31).contains(&day) && parts.next().is_none();
        Some(Self {
            year,
            month: u8::try_from(month).ok().filter(|_| fits)?,
            day: u8::try_from(day).ok()?,
        })
    }

    fn month_name(self) -> &'static str {
        MONTHS[usize::from(self.month - 1) % MONTHS.len()]
    }

    /// The day in the form that a template asks for; times are not known here.
    fn format(self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match rest.next() {
                Some('Y') => out.push_str(&format!("{:04}", self.year)),
                Some('y') => out.push_str(&format!("{:02}", self.year % 100)),
                Some('m') => out.push_str(&format!("{:02}", self.month)),
                Some('d') => out.push_str(&format!("{:02}", self.day)),
                Some('B') => out.push_str(self.month_name()),
                Some('b') => out.push_str(&self.month_name()[..3]),
                Some('%') => out.push('%'),
                other => {
                    let name = other.map_or_else(String::new, String::from);
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        format!("strftime_now knows dates only, not `%{name}`"),
                    ));
                }
            }
        }
        Ok(out)
    }
}
