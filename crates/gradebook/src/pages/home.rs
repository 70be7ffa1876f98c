//! The list of assignments, and what belongs to no assignment.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{NAMES, names_hidden};
use crate::Shared;
use crate::error::PageError;
use crate::paths;
use crate::store::{Member, Person, Role};
use crate::view::list::List;
use crate::view::queue::{ListOf, Ordered};
use crate::view::{self, Home, HomeRow, PersonRow};

/// The list of assignments.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
) -> Result<Response, PageError> {
    let (rows, members) = shared
        .store
        .read(|reader| {
            let mut rows = Vec::new();
            for assignment in reader.assignments()? {
                let Some(held) = reader.rubric(assignment.id)? else {
                    continue;
                };
                let works = reader.works(assignment.id)?;
                rows.push(HomeRow {
                    href: paths::assignment(assignment.id),
                    course: assignment.course,
                    title: assignment.title,
                    meter: {
                        let of = ListOf {
                            list: &List::default(),
                            names_hidden: true,
                            person: 0,
                        };
                        Ordered::new(&works, &held.rubric, &of).meter()
                    },
                });
            }
            Ok((rows, reader.members()?))
        })
        .await?;
    let row = |member: Member| PersonRow {
        dismiss: paths::dismiss(member.id),
        name: member.name,
        works: member.works,
    };
    let assistants = members.into_iter().filter(|m| m.is_invited);
    let page = Home {
        assignments: rows,
        name: person.name,
        is_teacher: person.role == Role::Teacher,
        people: assistants.map(row).collect(),
    };
    Ok(view::page(StatusCode::OK, &page))
}

/// Hides names, or shows them again, and goes back to where that was asked.
pub(crate) async fn names(headers: HeaderMap) -> Response {
    let next = match names_hidden(&headers) {
        true => "shown",
        false => "hidden",
    };
    let cookie =
        format!("{NAMES}={next}; Path=/grading; HttpOnly; SameSite=Strict; Max-Age=31536000");
    let back = headers
        .get("x-page")
        .and_then(|v| v.to_str().ok())
        .filter(|path| path.starts_with(paths::HOME))
        .unwrap_or(paths::HOME)
        .to_owned();
    (
        StatusCode::SEE_OTHER,
        [(header::SET_COOKIE, cookie), (header::LOCATION, back)],
    )
        .into_response()
}

/// There is no such page.
pub(crate) async fn nothing() -> PageError {
    PageError::NotFound
}
