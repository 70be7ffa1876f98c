//! Events of a node: lines of JSON from a stream of bytes, with bounded length and silence.

use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;
use tokio::time::{Instant, timeout_at};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::error::CallError;

/// Reads one JSON object per line. Dropping it before the end closes the connection.
pub struct Lines<T> {
    lines: FramedRead<Pin<Box<dyn AsyncRead + Send>>, LinesCodec>,
    max_line: usize,
    silence: Duration,
    /// Since when nothing has come that is waited for, also if nobody has waited all the time.
    since: Option<Instant>,
    event: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    /// Lines of at most `max_line` bytes, at most `silence` apart.
    pub(crate) fn new(
        stream: impl Stream<Item = Result<Bytes, hyper::Error>> + Send + 'static,
        max_line: usize,
        silence: Duration,
    ) -> Self {
        let reader: Pin<Box<dyn AsyncRead + Send>> =
            Box::pin(StreamReader::new(stream.map_err(io::Error::other)));
        Self {
            lines: FramedRead::new(reader, LinesCodec::new_with_max_length(max_line)),
            max_line,
            silence,
            since: None,
            event: PhantomData,
        }
    }

    /// The next event. Safe to drop and call again: what was read is kept.
    ///
    /// # Errors
    /// If the stream ends, breaks, is silent for too long or holds something else.
    pub async fn next(&mut self) -> Result<T, CallError> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let read = timeout_at(since + self.silence, self.lines.next()).await;
        self.since = None;
        match read {
            Err(_) => Err(CallError::Silent(self.silence)),
            Ok(None) => Err(CallError::Broken("ended before the last event".into())),
            Ok(Some(Ok(line))) => parse(&line),
            Ok(Some(Err(LinesCodecError::MaxLineLengthExceeded))) => {
                Err(CallError::LongLine(self.max_line))
            }
            Ok(Some(Err(LinesCodecError::Io(error)))) => Err(CallError::broken(&error)),
        }
    }
}

/// The message gives only the place: the line may hold text of a prompt or an answer.
fn parse<T: DeserializeOwned>(line: &str) -> Result<T, CallError> {
    serde_json::from_str(line).map_err(|e| {
        CallError::Broken(format!(
            "sent a line that is no event ({:?} error at byte {} of {})",
            e.classify(),
            e.column(),
            line.len()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, stream};
    use serde_json::{Value, json};

    async fn read(parts: &[&'static str], max_line: usize) -> Vec<Result<Value, String>> {
        let parts: Vec<Result<Bytes, hyper::Error>> = parts
            .iter()
            .map(|p| Ok(Bytes::from_static(p.as_bytes())))
            .collect();
        let mut lines = Lines::new(stream::iter(parts), max_line, Duration::from_secs(60));
        let mut out = Vec::new();
        loop {
            let next = lines.next().await.map_err(|e| e.to_string());
            out.push(next);
            if out.last().is_some_and(Result::is_err) {
                return out;
            }
        }
    }

    #[tokio::test]
    async fn lines_are_put_together_from_any_pieces() {
        let whole = read(&["{\"a\":1}\n{\"b\":2}\n"], 100).await;
        let cut = read(&["{\"a\"", ":1}", "\n{\"b\":2}", "\n"], 100).await;
        assert_eq!(whole[..2], [Ok(json!({"a": 1})), Ok(json!({"b": 2}))]);
        assert_eq!(whole, cut);
        assert_eq!(whole[2], Err("ended before the last event".to_owned()));
    }

    #[tokio::test]
    async fn a_line_has_a_limit_whether_it_ends_or_not() {
        let expected = Err("sent a line longer than 8 bytes".to_owned());
        assert_eq!(
            read(&["[1,2,3,4,5]\n"], 8).await,
            std::slice::from_ref(&expected)
        );
        assert_eq!(read(&["[1,2", ",3,4,5"], 8).await, [expected]);
        assert_eq!(read(&["[1,2,34]\n"], 8).await[0], Ok(json!([1, 2, 34])));
    }

    #[tokio::test]
    async fn what_is_no_event_is_not_repeated() {
        let found = read(&["{\"secret\": oops}\n"], 100).await.remove(0);
        let message = found.expect_err("no JSON");
        assert!(
            !message.contains("secret") && !message.contains("oops"),
            "{message}"
        );
        assert!(message.contains("byte 1"), "{message}");
    }

    #[tokio::test]
    async fn silence_has_a_limit() {
        let mut lines = Lines::<Value>::new(stream::pending(), 8, Duration::from_millis(10));
        let error = lines.next().await.expect_err("silent");
        assert_eq!(error.to_string(), "was silent for 0.01 s");
    }

    #[tokio::test]
    async fn silence_goes_on_while_something_else_is_done() {
        let silence = Duration::from_millis(50);
        let mut lines = Lines::<Value>::new(stream::pending(), 8, silence);
        assert!(lines.next().now_or_never().is_none());
        tokio::time::sleep(silence * 2).await;
        let told = lines.next().now_or_never().expect("no further wait");
        assert_eq!(
            told.expect_err("silent").to_string(),
            "was silent for 0.05 s"
        );
    }
}
