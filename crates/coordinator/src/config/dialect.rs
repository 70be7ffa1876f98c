//! How servers are spoken to, and what each way can do: the one table of what differs.

/// A way to speak to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's: vLLM, LM Studio, llama-server, mlx_lm.server and others.
    OpenAi,
    /// Ollama's own, in which the size of the context is part of a request. With its OpenAI dialect, Ollama cuts longer
    /// prompts without a word.
    Ollama,
    /// `POST /generate` with a prompt as it is, as small servers around MLX have it.
    Generate,
}

/// What a dialect can do.
pub(crate) struct Traits {
    /// Its name.
    pub(crate) name: &'static str,
    /// Tokens come as they are made.
    pub(crate) streams: bool,
    /// A closed connection ends the work.
    pub(crate) cancels: bool,
    /// The server applies the chat template.
    pub(crate) has_template: bool,
    /// The server may bind the answer to a schema.
    pub(crate) has_schemas: bool,
    /// The model may call tools.
    pub(crate) has_tools: bool,
    /// The answer says why it ended and how many tokens it took.
    pub(crate) tells_end: bool,
    /// Requests at once unless the configuration says it.
    pub(crate) parallel: u32,
}

impl Dialect {
    /// All, in the order in which they are tried: Ollama speaks OpenAI's, too.
    pub const ALL: [Self; 3] = [Self::Ollama, Self::OpenAi, Self::Generate];

    pub(crate) const fn traits(self) -> Traits {
        const WHOLE: Traits = Traits {
            name: "openai",
            streams: true,
            cancels: true,
            has_template: true,
            has_schemas: true,
            has_tools: true,
            tells_end: true,
            parallel: 4,
        };
        match self {
            Self::OpenAi => WHOLE,
            Self::Ollama => Traits {
                name: "ollama",
                ..WHOLE
            },
            // Threads that share one model without a lock: one request at a time.
            Self::Generate => Traits {
                name: "generate",
                streams: false,
                cancels: false,
                has_template: false,
                has_schemas: false,
                has_tools: false,
                tells_end: false,
                parallel: 1,
            },
        }
    }

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.traits().name
    }

    /// What it cannot do, in words.
    #[must_use]
    pub fn lacks(self) -> Vec<&'static str> {
        let traits = self.traits();
        [
            (traits.streams, "stream: the answer comes whole"),
            (
                traits.cancels,
                "cancel: an answer that nobody wants is computed to its end",
            ),
            (
                traits.has_template,
                "apply a chat template: `template` names one, else the prompt is plain text",
            ),
            (
                traits.has_schemas,
                "enforce a schema: answers are checked, and asked for again",
            ),
            (traits.has_tools, "call tools"),
            (
                traits.tells_end,
                "tell why an answer ended and how many tokens it took",
            ),
        ]
        .into_iter()
        .filter(|(can, _)| !can)
        .map(|(_, what)| what)
        .collect()
    }
}
