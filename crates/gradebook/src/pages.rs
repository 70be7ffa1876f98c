//! What happens when a page is asked for, or a form is sent: read, decide, show.

pub(crate) mod act;
pub(crate) mod home;
pub(crate) mod record;
pub(crate) mod review;
pub(crate) mod run;
pub(crate) mod trial;

use axum::http::HeaderMap;

use crate::security::cookie;

/// Name of the cookie that hides names.
const NAMES: &str = "tandem_names";

/// True if this browser does not show names of students.
fn names_hidden(headers: &HeaderMap) -> bool {
    cookie(headers, NAMES) == Some("hidden")
}
