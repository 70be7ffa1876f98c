//! Which web pages may ask. A browser sends what any page tells it to a server on its own machine, which has no key: so
//! requests of pages of others are refused, and so are names that stand for this machine and are none of its own.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tandem_openai::ApiError;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::answer::Refusal;
use crate::config::CorsConfig;

/// How long a browser may remember what it was allowed.
const MAX_AGE: Duration = Duration::from_secs(600);

/// All pages may ask.
pub(crate) const ANY: &str = "*";

struct Guard {
    config: CorsConfig,
    /// A listener is for this machine only, so that its names are known. With TLS a certificate tells names.
    is_local: bool,
}

/// Puts the guard before the routes, which answers the questions of browsers, too.
pub(crate) fn guarded(router: Router, config: CorsConfig, is_local: bool) -> Router {
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
    let guard = Arc::new(Guard { config, is_local });
    router.layer(cors).layer(from_fn_with_state(guard, check))
}

async fn check(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    guard.host(request.headers())?;
    guard.origin(request.headers())?;
    Ok(next.run(request).await)
}

impl Guard {
    fn host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(host) = text(headers, &header::HOST)? else {
            return Ok(());
        };
        let name = without_port(host);
        let known = is_this_machine(name) || self.config.hosts.iter().any(|h| h == name);
        if self.is_local && !known {
            let message = format!(
                "`{}` is no name of this server; use 127.0.0.1, or list it under `cors.hosts` of the configuration",
                shown(name)
            );
            return Err(forbidden("unknown_host", message));
        }
        Ok(())
    }

    fn origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = text(headers, &header::ORIGIN)? else {
            return Ok(());
        };
        let host = text(headers, &header::HOST)?;
        let is_own = host.is_some_and(|host| origin.split_once("://").is_some_and(|o| o.1 == host));
        if is_own || self.config.allows(origin) {
            return Ok(());
        }
        let message = format!(
            "pages of {} may not ask this server; list them under `cors.origins` of the configuration",
            shown(origin)
        );
        Err(forbidden("foreign_origin", message))
    }
}

impl CorsConfig {
    fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|o| o == ANY || o == origin)
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

/// The host of `host[:port]`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// True for names that mean this machine to every resolver.
fn is_this_machine(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let ip = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost"
        || name.ends_with(".localhost")
        || ip
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        for (host, known) in [
            ("127.0.0.1:8080", true),
            ("127.1.2.3", true),
            ("localhost", true),
            ("LocalHost:1", true),
            ("app.localhost:8080", true),
            ("[::1]:8080", true),
            ("[::1]", true),
            ("evil.example", false),
            ("localhost.evil.example:8080", false),
            ("127.0.0.1.evil.example", false),
            ("192.168.1.5:8080", false),
            ("", false),
        ] {
            assert_eq!(is_this_machine(without_port(host)), known, "{host}");
        }
    }
}
