//! Who may ask, and what a browser may do with an answer.
//!
//! A browser is let in by a token in the address that tandem prints, and has a cookie from then on. A form counts only
//! if the browser says that a page of this server sent it: the cookie alone would come along with forms of other pages
//! on this machine, as cookies do not tell ports apart. For the same reason the cookie has the path of its gradebook alone,
//! which no other server on the host knows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::PageError;
use crate::limits::{MAX_AGENT_CHARS, SESSION_SECONDS};
use crate::paths::OLD_HOME;
use crate::store::{Person, Place, Reader, Role, StoreError, Writer, now_ms};
use crate::view;
use crate::{Shared, TOKEN};

/// What a page may do: show itself, with its own styles and scripts. Nothing of a student is ever more than text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// 128 random bits as text.
pub(crate) fn random_text() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// When the oldest session that still lets in was started, in milliseconds since 1970.
pub(crate) fn oldest() -> i64 {
    let oldest = now_ms().saturating_sub(SESSION_SECONDS * 1000);
    i64::try_from(oldest).unwrap_or(i64::MAX)
}

pub(crate) fn digest(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

/// The value of a cookie.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter();
    all.filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Lets in who has a session, and who comes with the token; others see what to do.
pub(crate) async fn let_in(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Result<Response, PageError> {
    if let Some(token) = token_of(&request) {
        let rest = request.uri().path().trim_end_matches('/');
        let path = format!("{}{rest}", shared.paths.home());
        return enter(&shared, &token, &path, request.headers()).await;
    }
    let session = cookie(request.headers(), &shared.cookie).map(digest);
    let session = session.ok_or(PageError::NotLetIn)?;
    let person = shared
        .store
        .read(move |reader| reader.person_of_session(&session, oldest()))
        .await?;
    let person = person.ok_or(PageError::NotLetIn)?;
    if request.method() != Method::GET && !is_own_form(request.headers()) {
        return Err(PageError::Foreign);
    }
    if person.role == Role::Assistant {
        in_course(&shared, &person, request.uri().path()).await?;
    }
    request.extensions_mut().insert(person);
    Ok(next.run(request).await)
}

/// Keeps an assistant out of courses of others, of which no page tells anything.
async fn in_course(shared: &Shared, person: &Person, path: &str) -> Result<(), PageError> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let kind = parts.next();
    let of: Option<fn(i64) -> Place> = match kind {
        Some("a") => Some(Place::Assignment),
        Some("w") => Some(Place::Work),
        Some("r") => Some(Place::Run),
        // Numbers need no signs that stand for others.
        _ if path.contains('%') => return Err(PageError::NotFound),
        _ => None,
    };
    let Some(of) = of else {
        return Ok(());
    };
    let id = parts.next().and_then(|id| id.parse::<i64>().ok());
    let place = of(id.ok_or(PageError::NotFound)?);
    let person = person.clone();
    let sees = move |reader: &Reader<'_>| reader.sees(&person, place);
    match shared.store.read(sees).await? {
        true => Ok(()),
        false => Err(PageError::NotFound),
    }
}

/// Lets in who comes with a token to an address of an earlier version. Where the pages are now is told to nobody else.
pub(crate) async fn enter_from_old(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, PageError> {
    let token = token_of(&request).ok_or(PageError::NotLetIn)?;
    let path = request.uri().path();
    let rest = path.strip_prefix(OLD_HOME).unwrap_or_default();
    let path = format!("{}{rest}", shared.paths.home());
    enter(&shared, &token, &path, request.headers()).await
}

fn token_of(request: &Request) -> Option<String> {
    let query = request.uri().query().unwrap_or_default();
    let mut pairs = query.split('&');
    let token = pairs.find_map(|pair| pair.strip_prefix("token="))?;
    (request.method() == Method::GET).then(|| token.to_owned())
}

/// Starts a session. The answer is a page that opens the address without the token: after a redirect from a page of
/// somebody else, such as a mail, the browser would not send the new cookie along.
async fn enter(
    shared: &Shared,
    token: &str,
    path: &str,
    headers: &HeaderMap,
) -> Result<Response, PageError> {
    let given = digest(token);
    let session = random_text();
    let kept = digest(&session);
    let agent = headers.get(header::USER_AGENT).map(HeaderValue::as_bytes);
    let agent = String::from_utf8_lossy(agent.unwrap_or_default());
    let agent: String = agent.chars().take(MAX_AGENT_CHARS).collect();
    let before = cookie(headers, &shared.cookie).map(digest);
    let start = move |writer: &Writer<'_>| {
        // Digests are compared, so that the time tells nothing of the token.
        let is_teacher = writer.setting(TOKEN)?.map(|token| digest(&token)) == Some(given.clone());
        let person = match is_teacher {
            true => Some(writer.person(Role::Teacher)?),
            false => writer.person_of_token(&given)?,
        };
        let Some(person) = person else {
            return Ok(Ok(None));
        };
        // Who opens the link once more is in the list once.
        let known = before.map(|session| writer.person_of_session(&session, oldest()));
        let is_known = known
            .transpose()?
            .flatten()
            .is_some_and(|known| known.id == person);
        if !is_known {
            writer.start_session((&kept, &agent), person, oldest())?;
        }
        Ok(Ok(Some(is_known)))
    };
    let started = shared.store.write::<_, StoreError>(start).await?;
    let is_known: bool = started.ok_or(PageError::NotLetIn)?;
    let mut response = view::page(
        StatusCode::OK,
        &view::Enter {
            path: path.to_owned(),
        },
    );
    let secure = if shared.is_tls.load(Ordering::Relaxed) {
        "; Secure"
    } else {
        ""
    };
    let cookie = format!(
        "{}={session}; Path={}; HttpOnly; SameSite=Strict; Max-Age={SESSION_SECONDS}{secure}",
        shared.cookie,
        shared.paths.home()
    );
    if let (Ok(cookie), false) = (HeaderValue::from_str(&cookie), is_known) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Lets in who may do everything.
pub(crate) async fn teachers(
    Extension(person): Extension<Person>,
    request: Request,
    next: Next,
) -> Result<Response, PageError> {
    match person.role {
        Role::Teacher => Ok(next.run(request).await),
        Role::Assistant => Err(PageError::NotAllowed),
    }
}

/// True if the browser says that a page of this server sent it. What says nothing is refused.
fn is_own_form(headers: &HeaderMap) -> bool {
    let text = |name| {
        headers
            .get(name)
            .and_then(|v: &HeaderValue| v.to_str().ok())
    };
    if let Some(site) = text("sec-fetch-site") {
        return site == "same-origin";
    }
    let origin = text("origin").and_then(|origin| origin.split_once("://"));
    match (origin, text("host")) {
        (Some((_, origin)), Some(host)) => origin == host,
        _ => false,
    }
}

/// Sets the headers of every answer.
pub(crate) async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await.into_response();
    let headers = response.headers_mut();
    let mut set = |name: &'static str, value: &'static str| {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    };
    set("content-security-policy", POLICY);
    set("x-content-type-options", "nosniff");
    // With "no-referrer" browsers would not say where a form comes from.
    set("referrer-policy", "same-origin");
    set("cross-origin-opener-policy", "same-origin");
    set("cross-origin-resource-policy", "same-origin");
    // Grades do not stay in the browser's cache.
    set("cache-control", "no-store");
    response
}
