//! The list of assignments, and what belongs to no assignment.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{NAMES, names_hidden};
use crate::Shared;
use crate::error::PageError;
use crate::paths::Paths;
use crate::security::oldest;
use crate::store::{Browser, FORGOTTEN, Person, Place, Reader, Role};
use crate::view::list::List;
use crate::view::queue::{ListOf, Ordered};
use crate::view::run::RunLink;
use crate::view::{self, BrowserRow, Home, HomeRow, PersonRow};

/// The list of assignments.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(person): Extension<Person>,
) -> Result<Response, PageError> {
    let paths = shared.paths;
    let going = shared.runs.any().map(|going| going.run);
    let who = person.clone();
    let (rows, people, courses, browsers) = shared
        .store
        .read(move |reader| {
            let mut rows = Vec::new();
            for assignment in reader.assignments()? {
                if !reader.sees(&who, Place::Assignment(assignment.id))? {
                    continue;
                }
                let Some(held) = reader.rubric(assignment.id)? else {
                    continue;
                };
                let works = reader.works(assignment.id)?;
                let run = unfinished(reader, assignment.id, (paths, going))?;
                rows.push(HomeRow {
                    href: paths.assignment(assignment.id),
                    course: assignment.course,
                    title: assignment.title,
                    run,
                    meter: {
                        let of = ListOf {
                            paths,
                            list: &List::default(),
                            names_hidden: true,
                            person: 0,
                        };
                        Ordered::new(&works, &held.rubric, &of).meter()
                    },
                });
            }
            let people = people(reader, &who, paths)?;
            Ok((rows, people, reader.courses()?, reader.browsers(oldest())?))
        })
        .await?;
    let browser = |one: Browser| BrowserRow {
        person: match (one.person.is_empty(), one.role) {
            (false, _) => one.person,
            (true, Role::Teacher) => "the teacher".to_owned(),
            (true, Role::Assistant) => "an assistant".to_owned(),
        },
        agent: agent_in_words(&one.agent),
        since: one.created,
        is_this: one.session == person.session,
        let_out: paths.let_out(one.id),
    };
    let page = Home {
        paths,
        browsers: browsers.into_iter().map(browser).collect(),
        assignments: rows,
        name: person.name,
        is_teacher: person.role == Role::Teacher,
        people,
        courses,
    };
    Ok(view::page(StatusCode::OK, &page))
}

/// Assistants, as far as somebody sees a course together with them.
fn people(reader: &Reader<'_>, who: &Person, paths: Paths) -> rusqlite::Result<Vec<PersonRow>> {
    let own = reader.courses_of(who.id)?;
    let mut people = Vec::new();
    for member in reader.members()? {
        let courses = reader.courses_of(member.id)?;
        // Who was let in once is named in the history, until the name is deleted.
        let was_let_in = member.role == Role::Assistant && member.name != FORGOTTEN;
        let is_known = who.role == Role::Teacher || courses.iter().any(|c| own.contains(c));
        if (member.is_invited || was_let_in) && is_known {
            people.push(PersonRow {
                see: paths.courses_of(member.id),
                dismiss: paths.dismiss(member.id),
                forget: paths.forget(member.id),
                is_invited: member.is_invited,
                name: member.name,
                works: member.works,
                courses,
            });
        }
    }
    Ok(people)
}

/// The last run of an assignment, and its state in words, if it goes on or something of it is left.
fn unfinished(
    reader: &Reader<'_>,
    assignment: i64,
    (paths, going): (Paths, Option<i64>),
) -> rusqlite::Result<Option<(String, String)>> {
    let Some(run) = reader.runs(assignment)?.into_iter().next() else {
        return Ok(None);
    };
    let is_going = going == Some(run.id);
    if !is_going && run.is_done() {
        return Ok(None);
    }
    let link = RunLink::new(paths, &run, is_going);
    let text = format!("run {}: {}", run.number, link.state);
    Ok(Some((link.href, text)))
}

/// Program and system, of what a browser calls itself.
fn agent_in_words(agent: &str) -> String {
    // Those that call themselves like others, too, stand before these.
    let first = |names: &[&'static str]| names.iter().find(|name| agent.contains(**name)).copied();
    let program = first(&["Edg", "OPR", "Firefox", "Chrome", "Safari", "curl"]);
    let system = first(&["Android", "iPhone", "iPad", "Windows", "Mac OS", "Linux"]);
    let program = match program {
        Some("Edg") => Some("Edge"),
        Some("OPR") => Some("Opera"),
        program => program,
    };
    match (program, system) {
        (Some(program), Some(system)) => format!("{program} on {system}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
        (None, None) => "a browser".to_owned(),
    }
}

/// Hides names, or shows them again, and goes back to where that was asked.
pub(crate) async fn names(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let home = shared.paths.home();
    let next = match names_hidden(&headers) {
        true => "shown",
        false => "hidden",
    };
    let cookie =
        format!("{NAMES}={next}; Path={home}; HttpOnly; SameSite=Strict; Max-Age=31536000");
    let back = headers
        .get("x-page")
        .and_then(|v| v.to_str().ok())
        .filter(|path| path.starts_with(home))
        .unwrap_or(home)
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
