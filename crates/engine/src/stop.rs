//! Stop strings and valid UTF-8 over streamed bytes.
//!
//! Tokens are pieces of bytes: a character, or a stop string, may be spread over several.
//! Text is given out as early as it is certain, and all of it together is exactly
//! `String::from_utf8_lossy` of all bytes, cut before the first stop string.

/// Most stop strings of one request (the public API allows 4; own clients may use more).
pub const MAX_STOPS: usize = 16;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 256;

/// What became certain by a push.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Text to give out now.
    pub text: String,
    /// True if a stop string was found; nothing of it, or after it, is given out.
    pub stopped: bool,
}

/// Stop strings that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStop {
    /// Too many.
    #[error("`stop` has {0} strings; at most {MAX_STOPS} are allowed")]
    TooMany(usize),
    /// An empty one would stop every answer at once.
    #[error("`stop[{0}]` is empty; leave it out")]
    Empty(usize),
    /// Too long.
    #[error("`stop[{index}]` has {bytes} bytes; at most {MAX_STOP_BYTES} are allowed")]
    TooLong {
        /// Its place in the list.
        index: usize,
        /// Its length.
        bytes: usize,
    },
}

/// Checks number and lengths of stop strings.
///
/// # Errors
/// Names the string at fault.
pub fn validate(stops: &[String]) -> Result<(), InvalidStop> {
    if stops.len() > MAX_STOPS {
        return Err(InvalidStop::TooMany(stops.len()));
    }
    for (index, stop) in stops.iter().enumerate() {
        match stop.len() {
            0 => return Err(InvalidStop::Empty(index)),
            1..=MAX_STOP_BYTES => {}
            bytes => return Err(InvalidStop::TooLong { index, bytes }),
        }
    }
    Ok(())
}

/// Finds stop strings in streamed bytes and gives out the text before them.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Bytes of a character that is not complete yet; at most three.
    undecoded: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher at the beginning of an answer. Empty strings are ignored.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(),
            undecoded: Vec::new(),
            held: String::new(),
            stopped: false,
        }
    }

    /// Takes bytes in and gives out what is certain. After a stop nothing comes out any more.
    pub fn push(&mut self, bytes: &[u8]) -> Pushed {
        if self.stopped {
            return Pushed {
                text: String::new(),
                stopped: true,
            };
        }
        self.undecoded.extend_from_slice(bytes);
        self.decode();
        if let Some(at) = self.first_stop() {
            self.stopped = true;
            self.held.truncate(at);
            return Pushed {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep_from = self.held.len() - self.longest_beginning();
        let rest = self.held.split_off(keep_from);
        Pushed {
            text: std::mem::replace(&mut self.held, rest),
            stopped: false,
        }
    }

    /// The end of the answer: everything held back. An incomplete character becomes U+FFFD, and
    /// is not searched for a stop string, since the answer ended by itself.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        self.stopped = true;
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&String::from_utf8_lossy(&self.undecoded));
        self.undecoded.clear();
        text
    }

    /// Moves complete characters from `undecoded` to `held`.
    fn decode(&mut self) {
        let mut used = 0;
        while used < self.undecoded.len() {
            let rest = &self.undecoded[used..];
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.held.push_str(text);
                    used = self.undecoded.len();
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    self.held.push_str(&String::from_utf8_lossy(&rest[..valid]));
                    used += valid;
                    let Some(invalid) = error.error_len() else {
                        break;
                    };
                    self.held.push(char::REPLACEMENT_CHARACTER);
                    used += invalid;
                }
            }
        }
        self.undecoded.drain(..used);
    }

    fn first_stop(&self) -> Option<usize> {
        self.stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()))
            .min()
    }

    /// Length of the longest end of `held` that begins a stop string.
    fn longest_beginning(&self) -> usize {
        let held = self.held.as_bytes();
        let beginning = |stop: &String| {
            (1..stop.len())
                .rev()
                .find(|&n| stop.is_char_boundary(n) && held.ends_with(&stop.as_bytes()[..n]))
        };
        self.stops.iter().filter_map(beginning).max().unwrap_or(0)
    }
}
