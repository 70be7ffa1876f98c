//! A part of a page that is sent again whenever it has changed, until it is final.
//!
//! Every event is the whole part, so a browser that lost the connection misses nothing.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;

/// What is shown now, and whether that is final.
pub(crate) struct Shown {
    pub(crate) html: String,
    pub(crate) is_final: bool,
}

/// Sends a part every so often; `None` ends the stream.
pub(crate) fn stream<F, Fut>(every: Duration, render: F) -> Response
where
    F: Fn() -> Fut + Send + 'static,
    Fut: Future<Output = Option<Shown>> + Send,
{
    let first = (render, String::new(), false);
    let events = stream::unfold(first, move |(render, last, is_over)| async move {
        if is_over {
            return None;
        }
        loop {
            let shown = render().await?;
            if shown.is_final {
                let event = Event::default().event("final").data(&shown.html);
                return Some((Ok::<_, Infallible>(event), (render, shown.html, true)));
            }
            if shown.html != last {
                let event = Event::default().data(&shown.html);
                tokio::time::sleep(every).await;
                return Some((Ok(event), (render, shown.html, false)));
            }
            tokio::time::sleep(every).await;
        }
    });
    Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response()
}
