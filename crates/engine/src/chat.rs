//! The chat template of a model.
//!
//! A GGUF carries its template as Jinja. It is rendered as Hugging Face's `apply_chat_template` does, over the contents as
//! they are, and the whole text is tokenised with control tokens. So the tokens are those that the model was trained on.
//! Nothing that a person or a tool wrote becomes a control token: `shield` says how.
//!
//! - `jinja`: Jinja2's dialect; `python`: values as Python writes them; `date`: the day that templates are told;
//! - `shield`: texts of control tokens in contents.

mod date;
mod jinja;
mod python;
mod shield;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use minijinja::Environment;
use minijinja::value::Serde;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use self::date::Date;
use self::jinja::{TEMPLATE, environment, reason};
use self::shield::Shield;
use crate::tokenizer::{Token, Tokenizer};

/// Most messages of one conversation.
pub const MAX_MESSAGES: usize = 1024;

/// Roles a message may have. A role becomes part of the template's text, so it cannot be free.
pub const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What `strftime_now` says if no date is given: the day that Llama's template itself falls back
/// to. A fixed day keeps prompts, and so their KV, equal from day to day.
pub const DEFAULT_DATE: &str = "2024-07-26";

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
    /// What else a template may see of it, such as `tool_calls` and `tool_call_id`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

impl ChatMessage {
    /// A message whose tokens are those of its content.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            tokens: Vec::new(),
            fields: Map::new(),
        }
    }

    fn is(&self, role: &str) -> bool {
        self.role == role
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
    #[error("`messages[{0}].role` must be system, developer, user, assistant or tool")]
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
}

/// The chat template of a model, ready to render.
pub struct ChatTemplate {
    tokenizer: Arc<dyn Tokenizer>,
    environment: Environment<'static>,
    shield: Shield,
    bos: Option<Token>,
    bos_text: String,
    eos_text: String,
    /// True if the template wants contents in parts.
    wants_parts: bool,
}

/// A rendered conversation.
#[derive(Debug)]
struct Rendered {
    /// With cuts.
    text: String,
    /// Without.
    plain: String,
    cut: char,
    /// The messages in it, which may be others than were given: see [`ChatTemplate::render`].
    messages: Vec<ChatMessage>,
}

impl Rendered {
    fn uncut(&self, text: &str) -> String {
        text.chars().filter(|c| *c != self.cut).collect()
    }
}

impl ChatTemplate {
    /// Compiles the template of a model; `strftime_now` says [`DEFAULT_DATE`].
    ///
    /// # Errors
    /// If the model has no template, or it does not compile, or cannot render a single message of a user.
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
        let shield = Shield::new(tokenizer.special_texts(), &source);
        let mut template = Self {
            environment: environment(&source, date)?,
            shield: shield.ok_or_else(|| {
                ChatError::Template("the model has too many control tokens".into())
            })?,
            bos: special.bos.filter(|_| special.add_bos),
            bos_text: text(special.bos),
            eos_text: text(special.eos),
            wants_parts: false,
            tokenizer,
        };
        template.try_out()?;
        Ok(template)
    }

    /// Renders a plain chat, so that a template that cannot is known before somebody asks; and finds out whether contents
    /// must be in parts.
    fn try_out(&mut self) -> Result<(), ChatError> {
        let plain = [ChatMessage::new("user", PLAIN)];
        let first = self.render(&plain, &[]);
        if first.is_ok() {
            return Ok(());
        }
        self.wants_parts = true;
        let cannot =
            |e: ChatError| ChatError::Template(format!("it cannot render a plain chat: {e}"));
        if self.render(&plain, &[]).is_err() {
            first.map_err(cannot)?;
        }
        Ok(())
    }

    /// Tokens of a conversation, up to where the answer begins.
    ///
    /// # Errors
    /// If the template refuses the messages or leaves one out.
    pub fn tokens(&self, messages: &[ChatMessage]) -> Result<Vec<Token>, ChatError> {
        check_messages(messages)?;
        let rendered = self.render(messages, &[])?;
        let mut tokens = Vec::new();
        let mut done = 0;
        for (index, place) in self.answers(&rendered) {
            if place.start < done {
                continue;
            }
            let text = rendered.uncut(&rendered.text[place.clone()]);
            if let Some(answer) = self.answer(&text, &rendered.messages[index].tokens) {
                tokens.extend(self.encode(&rendered.text[done..place.start], rendered.cut));
                tokens.extend(answer);
                done = place.end;
            }
        }
        tokens.extend(self.encode(&rendered.text[done..], rendered.cut));
        match self.bos {
            Some(bos) if tokens.first() != Some(&bos) => tokens.insert(0, bos),
            _ => {}
        }
        Ok(tokens)
    }

    /// The text of a conversation as the template writes it.
    ///
    /// # Errors
    /// As [`ChatTemplate::tokens`].
    pub fn text(&self, messages: &[ChatMessage], tools: &[Value]) -> Result<String, ChatError> {
        check_messages(messages)?;
        Ok(self.render(messages, tools)?.plain)
    }

    /// The same for somebody who takes a text for tokens with control tokens in it: `between` stands in each one that a
    /// person wrote, so that it becomes none.
    ///
    /// # Errors
    /// As [`ChatTemplate::tokens`].
    pub fn shielded_text(
        &self,
        messages: &[ChatMessage],
        between: &str,
    ) -> Result<String, ChatError> {
        check_messages(messages)?;
        let rendered = self.render(messages, &[])?;
        Ok(rendered.text.replace(rendered.cut, between))
    }

    /// Where contents stand that were generated as known tokens, with their messages. They are rendered once more with a
    /// mark at both ends of such a content, inside the white space that templates trim; a content that a template has
    /// changed otherwise has no place.
    fn answers(&self, rendered: &Rendered) -> Vec<(usize, Range<usize>)> {
        if rendered.messages.iter().all(|m| m.tokens.is_empty()) {
            return Vec::new();
        }
        let used: BTreeSet<char> = rendered
            .text
            .chars()
            .filter(|c| shield::CUTS.contains(c))
            .collect();
        let free = |mark: &char| !used.contains(mark) && *mark != rendered.cut;
        let Some(mark) = shield::CUTS.rev().find(free) else {
            return Vec::new();
        };
        let mut marked = rendered.messages.clone();
        let known = |(_, m): &(usize, &mut ChatMessage)| {
            !m.tokens.is_empty() && !m.content.trim().is_empty()
        };
        for (index, message) in marked.iter_mut().enumerate().filter(known) {
            let core = message.content.trim();
            let around = format!("{mark}{index}{mark}{core}{mark}{index}{mark}");
            message.content = message.content.replacen(core, &around, 1);
        }
        let Ok(with_marks) = self.render_once(&marked, &[]) else {
            return Vec::new();
        };
        let (mut text, mut places) = (String::new(), BTreeMap::<usize, Vec<usize>>::new());
        for (i, piece) in with_marks.text.split(mark).enumerate() {
            match piece.parse() {
                Ok(index) if i % 2 == 1 => places.entry(index).or_default().push(text.len()),
                _ => text.push_str(piece),
            }
        }
        if text != rendered.text {
            return Vec::new();
        }
        let whole = |(index, ends): (usize, Vec<usize>)| match ends[..] {
            [start, end] => Some((index, start..end)),
            _ => None,
        };
        let mut places: Vec<_> = places.into_iter().filter_map(whole).collect();
        places.sort_by_key(|(_, place)| place.start);
        places
    }

    /// Tokens of a rendered text. No piece between cuts has the text of a control token that a person wrote; one of a
    /// single character is a person's.
    fn encode(&self, text: &str, cut: char) -> Vec<Token> {
        let pieces = text.split(cut).filter(|piece| !piece.is_empty());
        let is_cut = text.contains(cut);
        let of_template = |piece: &str| !is_cut || piece.chars().nth(1).is_some();
        pieces
            .flat_map(|piece| self.tokenizer.encode(piece, of_template(piece)))
            .collect()
    }

    /// Tokens of an answer: those that it was generated as, up to where they give something else than the
    /// text, or cut a character of it; then those of the rest. A token that is not text is none of a content. `None` if
    /// there is nothing of them, or the rest would change the text.
    fn answer(&self, text: &str, generated: &[Token]) -> Option<Vec<Token>> {
        let (mut at, mut kept, mut rest) = (0, 0, text);
        for (i, token) in generated.iter().enumerate() {
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
        let mut tokens = generated[..kept].to_vec();
        tokens.extend(self.tokenizer.encode(rest, false));
        // Some tokenizers put a space before whatever they are given.
        let mut given = tokens.iter().flat_map(|t| self.tokenizer.bytes(*t));
        (kept > 0 && given.by_ref().eq(text.bytes())).then_some(tokens)
    }

    /// Renders a conversation. What a template has no place for is put where it has one: the text of a `developer` into a
    /// `system` message, and that of a leading `system` message before that of the user.
    fn render(&self, messages: &[ChatMessage], tools: &[Value]) -> Result<Rendered, ChatError> {
        let refused = match self.render_whole(messages, tools) {
            Ok(rendered) => return Ok(rendered),
            Err(refused) => refused,
        };
        let mut messages = messages.to_vec();
        let mut changed = false;
        for message in messages.iter_mut().filter(|m| m.is("developer")) {
            "system".clone_into(&mut message.role);
            changed = true;
        }
        if changed && let Ok(rendered) = self.render_whole(&messages, tools) {
            return Ok(rendered);
        }
        if let [system, user, ..] = messages.as_mut_slice()
            && system.is("system")
            && user.is("user")
        {
            user.content = format!("{}\n\n{}", system.content, user.content);
            messages.remove(0);
            if let Ok(rendered) = self.render_whole(&messages, tools) {
                return Ok(rendered);
            }
        }
        Err(refused)
    }

    /// Renders these messages, and sees that each of a person is there.
    fn render_whole(
        &self,
        messages: &[ChatMessage],
        tools: &[Value],
    ) -> Result<Rendered, ChatError> {
        let rendered = self.render_once(messages, tools)?;
        // A short text may stand somewhere by chance.
        let is_missing = |i: &usize| {
            let content = messages[*i].content.trim();
            let of_person = ["system", "developer", "user"].contains(&messages[*i].role.as_str());
            let is_there = content.len() >= LONG && rendered.plain.contains(content);
            of_person && !content.is_empty() && !is_there
        };
        let missing: Vec<usize> = (0..messages.len()).filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(rendered);
        }
        // The template has changed a content, or left it out: it does the latter to any.
        let mut others = messages.to_vec();
        for i in &missing {
            others[*i].content = format!("{PLAIN}{i}.");
        }
        let with_others = self.render_once(&others, tools);
        for index in missing {
            let has_place = |r: &Rendered| r.plain.contains(&others[index].content);
            if !with_others.as_ref().is_ok_and(has_place) {
                let role = messages[index].role.clone();
                return Err(ChatError::Dropped { index, role });
            }
        }
        Ok(rendered)
    }

    fn render_once(
        &self,
        messages: &[ChatMessage],
        tools: &[Value],
    ) -> Result<Rendered, ChatError> {
        let mut values: Vec<Value> = messages.iter().map(|m| self.value(m)).collect();
        let mut tools = tools.to_vec();
        let cut = self.shield.cut_for(&values, &tools).ok_or_else(|| {
            let all = "the messages use every private-use character of Unicode";
            ChatError::Template(all.to_owned())
        })?;
        let plain = self.run(&values, &tools)?;
        let text = if self.shield.cut_all(&mut values, &mut tools, cut) {
            let cut_all = self.run(&values, &tools)?;
            self.shield.merged(&plain, cut_all, cut)
        } else {
            plain.clone()
        };
        Ok(Rendered {
            text,
            plain,
            cut,
            messages: messages.to_vec(),
        })
    }

    /// Runs the template.
    fn run(&self, messages: &[Value], tools: &[Value]) -> Result<String, ChatError> {
        let tools = (!tools.is_empty()).then_some(tools);
        let variables = json!({
            "messages": messages,
            "add_generation_prompt": true,
            "bos_token": self.bos_text,
            "eos_token": self.eos_text,
            "tools": tools,
            "documents": null,
        });
        self.environment
            .get_template(TEMPLATE)
            .and_then(|template| template.render(Serde(variables)))
            .map_err(|e| ChatError::Refused(reason(&e)))
    }

    /// A message as templates see it.
    fn value(&self, message: &ChatMessage) -> Value {
        let content = if self.wants_parts {
            json!([{"type": "text", "text": message.content}])
        } else {
            json!(message.content)
        };
        let mut value = json!({"role": message.role, "content": content});
        for (name, field) in &message.fields {
            value[name] = field.clone();
        }
        value
    }
}

/// Bytes from which on a text that stands in a rendered conversation is taken for that of a message.
const LONG: usize = 64;

/// What a message of a user says when a template is tried out.
const PLAIN: &str = "Hi, how are you ";

/// Tokens of a prompt without template. Control tokens in `text` are ordinary text.
#[must_use]
pub fn completion_tokens(tokenizer: &dyn Tokenizer, text: &str) -> Vec<Token> {
    let special = tokenizer.special();
    let bos = special.bos.filter(|_| special.add_bos);
    bos.into_iter()
        .chain(tokenizer.encode(text, false))
        .collect()
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
