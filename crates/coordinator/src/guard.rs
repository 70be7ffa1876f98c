//! Which web pages may ask. A browser sends what any page tells it to a server on its own machine, which has no key: so
//! requests of pages of others are refused, and so are names that stand for this machine and are none of its own.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tandem_api::ApiError;
use tandem_cluster::{Transport, host_name, is_this_machine};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::{ANY, CorsConfig};
use crate::refusal::Refusal;

/// How long a browser may remember what it was allowed.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Puts the guard before the routes, which answers the questions of browsers, too.
pub(crate) fn guarded(router: Router, config: CorsConfig) -> Router {
    let allowed = config.clone();
    let is_allowed = move |origin: &axum::http::HeaderValue, _: &axum::http::request::Parts| {
        origin.to_str().is_ok_and(|origin| allowed.allows(origin))
    };
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_allowed))
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .allow_private_network(true)
        .expose_headers([header::RETRY_AFTER])
        .max_age(MAX_AGE);
    let config = Arc::new(config);
    router.layer(cors).layer(from_fn_with_state(config, check))
}

async fn check(
    State(config): State<Arc<CorsConfig>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    // With TLS the certificate is for the names of this server. Without, it listens on loopback addresses only.
    let transport = request.extensions().get::<Transport>();
    if transport.is_none_or(|transport| !transport.is_tls) {
        config.host(request.headers())?;
    }
    config.origin(request.headers())?;
    Ok(next.run(request).await)
}

impl CorsConfig {
    fn host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(host) = text(headers, &header::HOST)? else {
            return Ok(());
        };
        let name = host_name(host);
        if is_this_machine(&name) || self.hosts.iter().any(|h| host_name(h) == name) {
            return Ok(());
        }
        let message = format!(
            "`{}` is no name of this server; use 127.0.0.1, or list it under `cors.hosts` of the configuration",
            shown(&name)
        );
        Err(forbidden("unknown_host", message))
    }

    fn origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = text(headers, &header::ORIGIN)? else {
            return Ok(());
        };
        let host = text(headers, &header::HOST)?;
        let is_own = host.is_some_and(|host| origin.split_once("://").is_some_and(|o| o.1 == host));
        if is_own || self.allows(origin) {
            return Ok(());
        }
        let message = format!(
            "pages of {} may not ask this server; list them under `cors.origins` of the configuration",
            shown(origin)
        );
        Err(forbidden("foreign_origin", message))
    }

    fn allows(&self, origin: &str) -> bool {
        self.origins
            .iter()
            .any(|o| o == ANY || o.eq_ignore_ascii_case(origin))
    }
}

fn forbidden(code: &str, message: String) -> ApiError {
    ApiError::new(403, "invalid_request_error", None, Some(code), message)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ApiError> {
    let unreadable = |_| ApiError::malformed(format!("the header `{name}` is no plain text"));
    let value = headers.get(name).map(|value| value.to_str());
    value.transpose().map_err(unreadable)
}

fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}
