//! Who is there: persons, their browsers, and the token that lets them in.

use rusqlite::OptionalExtension;

use super::{Reader, Writer};

/// Somebody who decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Number.
    pub id: i64,
    /// As the history shows it; empty until it was told.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Digest of the browser's session.
    pub session: String,
}

/// What a person may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Teacher,
    /// Decides about submissions.
    Assistant,
}

impl Role {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Teacher => "teacher",
            Self::Assistant => "assistant",
        }
    }

    fn read(text: &str) -> Self {
        match text {
            "teacher" => Self::Teacher,
            _ => Self::Assistant,
        }
    }
}

impl Reader<'_> {
    /// A setting.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn setting(&self, name: &str) -> rusqlite::Result<Option<String>> {
        self.sql
            .query_row("SELECT value FROM setting WHERE name = ?1", [name], |row| {
                row.get(0)
            })
            .optional()
    }

    /// The person whose browser has the session with this digest, if it was started after a time, in milliseconds since
    /// 1970.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn person_of_session(&self, digest: &str, after: i64) -> rusqlite::Result<Option<Person>> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Person {
                id: row.get(0)?,
                name: row.get(1)?,
                role: Role::read(&row.get::<_, String>(2)?),
                session: digest.to_owned(),
            })
        };
        self.sql
            .query_row(
                "SELECT person.id, person.name, person.role FROM session JOIN person ON person.id = session.person
                 WHERE session.digest = ?1 AND session.created > ?2",
                (digest, after),
                read,
            )
            .optional()
    }
}

/// Somebody, as the teacher sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub id: i64,
    /// As the history shows it.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// True if a link lets them in.
    pub is_invited: bool,
    /// Works that are their share.
    pub works: i64,
}

impl Member {
    /// True if they can come in.
    #[must_use]
    pub fn is_let_in(&self) -> bool {
        self.is_invited || self.role == Role::Teacher
    }
}

/// What belongs to a course.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// An assignment.
    Assignment(i64),
    /// A submission.
    Work(i64),
    /// A run.
    Run(i64),
}

/// Somebody of whom it is known what they may do.
pub trait Sees {
    /// Number and role.
    fn who(&self) -> (i64, Role);
}

impl Sees for Person {
    fn who(&self) -> (i64, Role) {
        (self.id, self.role)
    }
}

impl Sees for Member {
    fn who(&self) -> (i64, Role) {
        (self.id, self.role)
    }
}

/// A browser that is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Browser {
    /// Its number.
    pub id: i64,
    /// Digest of its session.
    pub session: String,
    /// What it calls itself.
    pub agent: String,
    /// When it was let in, in milliseconds since 1970.
    pub created: i64,
    /// As who: the name may be empty.
    pub person: String,
    /// What that person may do.
    pub role: Role,
}

impl Reader<'_> {
    /// The browsers whose sessions were started after a time, in milliseconds since 1970; the last one first.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn browsers(&self, after: i64) -> rusqlite::Result<Vec<Browser>> {
        let mut query = self.sql.prepare_cached(
            "SELECT session.rowid, digest, agent, session.created, person.name, person.role
             FROM session JOIN person ON person.id = session.person
             WHERE session.created > ?1 ORDER BY session.created DESC, session.rowid DESC",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Browser {
                id: row.get(0)?,
                session: row.get(1)?,
                agent: row.get(2)?,
                created: row.get(3)?,
                person: row.get(4)?,
                role: Role::read(&row.get::<_, String>(5)?),
            })
        };
        query.query_map([after], read)?.collect()
    }

    /// Everybody.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn members(&self) -> rusqlite::Result<Vec<Member>> {
        let mut query = self.sql.prepare_cached(
            "SELECT id, name, role, token IS NOT NULL,
                    (SELECT count(*) FROM submission WHERE share = person.id AND replaced_by IS NULL)
             FROM person ORDER BY id",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Member {
                id: row.get(0)?,
                name: row.get(1)?,
                role: Role::read(&row.get::<_, String>(2)?),
                is_invited: row.get(3)?,
                works: row.get(4)?,
            })
        };
        query.query_map([], read)?.collect()
    }

    /// Those of an assignment: who sees its course.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn members_of(&self, assignment: i64) -> rusqlite::Result<Vec<Member>> {
        let mut members = Vec::new();
        for member in self.members()? {
            if member.is_let_in() && self.sees(&member, Place::Assignment(assignment))? {
                members.push(member);
            }
        }
        Ok(members)
    }

    /// All courses, by their names.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn courses(&self) -> rusqlite::Result<Vec<(i64, String)>> {
        let mut query = self
            .sql
            .prepare_cached("SELECT id, name FROM course ORDER BY name, id")?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        query.query_map([], read)?.collect()
    }

    /// The courses that an assistant sees.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn courses_of(&self, person: i64) -> rusqlite::Result<Vec<i64>> {
        let mut query = self
            .sql
            .prepare_cached("SELECT course FROM member WHERE person = ?1 ORDER BY course")?;
        query.query_map([person], |row| row.get(0))?.collect()
    }

    /// Whether somebody sees the course of that. What is not there is seen by nobody but the teacher.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn sees(&self, member: &impl Sees, place: Place) -> rusqlite::Result<bool> {
        let (person, Role::Assistant) = member.who() else {
            return Ok(true);
        };
        let (assignment, id) = match place {
            Place::Assignment(id) => ("?2", id),
            Place::Work(id) => ("(SELECT assignment FROM submission WHERE id = ?2)", id),
            Place::Run(id) => ("(SELECT assignment FROM run WHERE id = ?2)", id),
        };
        let query = format!(
            "SELECT 1 FROM member JOIN assignment ON assignment.course = member.course
             WHERE member.person = ?1 AND assignment.id = {assignment}"
        );
        self.sql.prepare_cached(&query)?.exists((person, id))
    }

    /// The person whom a link with this digest of its token lets in.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn person_of_token(&self, digest: &str) -> rusqlite::Result<Option<i64>> {
        let query = "SELECT id FROM person WHERE token = ?1";
        self.sql
            .query_row(query, [digest], |row| row.get(0))
            .optional()
    }
}

impl Writer<'_> {
    /// Gives a person a name.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn name_person(&self, person: i64, name: &str) -> rusqlite::Result<()> {
        self.sql
            .execute("UPDATE person SET name = ?2 WHERE id = ?1", (person, name))?;
        Ok(())
    }

    /// Invites an assistant to some courses, by a link with this digest of its token.
    ///
    /// # Errors
    /// If SQLite says no, or there is no such course.
    pub fn invite(&self, name: &str, digest: &str, courses: &[i64]) -> rusqlite::Result<i64> {
        self.sql.execute(
            "INSERT INTO person (name, role, created, token) VALUES (?1, ?2, ?3, ?4)",
            (name, Role::Assistant.as_str(), self.now, digest),
        )?;
        let person = self.sql.last_insert_rowid();
        self.set_courses(person, courses)?;
        Ok(person)
    }

    /// Lets somebody see these courses alone; shares in others are nobody's then.
    ///
    /// # Errors
    /// If SQLite says no, or there is no such course.
    pub fn set_courses(&self, person: i64, courses: &[i64]) -> rusqlite::Result<()> {
        self.sql
            .execute("DELETE FROM member WHERE person = ?1", [person])?;
        let mut insert = self
            .sql
            .prepare_cached("INSERT INTO member (course, person) VALUES (?1, ?2)")?;
        for course in courses {
            insert.execute((course, person))?;
        }
        self.sql.execute(
            "UPDATE submission SET share = NULL WHERE share = ?1 AND assignment NOT IN
             (SELECT id FROM assignment WHERE course IN (SELECT course FROM member WHERE person = ?1))",
            [person],
        )?;
        Ok(())
    }

    /// Lets an assistant in no more; what was decided stays, and the share is nobody's.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn dismiss(&self, person: i64) -> rusqlite::Result<()> {
        let query = "UPDATE person SET token = NULL WHERE id = ?1 AND role = ?2";
        let count = self
            .sql
            .execute(query, (person, Role::Assistant.as_str()))?;
        if count > 0 {
            self.sql
                .execute("DELETE FROM session WHERE person = ?1", [person])?;
            self.sql.execute(
                "UPDATE submission SET share = NULL WHERE share = ?1",
                [person],
            )?;
        }
        Ok(())
    }

    /// Divides the current works of an assignment among persons, in the random order; without any they are nobody's share.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn divide(&self, assignment: i64, persons: &[i64]) -> rusqlite::Result<()> {
        let mut works = self.works(assignment)?;
        works.sort_by_key(|work| work.draw);
        let mut update = self
            .sql
            .prepare_cached("UPDATE submission SET share = ?2 WHERE id = ?1")?;
        for (place, work) in works.iter().enumerate() {
            let share = persons.get(place % persons.len().max(1));
            update.execute((work.id, share))?;
        }
        Ok(())
    }

    /// Keeps a setting.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn set(&self, name: &str, value: &str) -> rusqlite::Result<()> {
        self.sql.execute(
            "INSERT INTO setting (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2",
            (name, value),
        )?;
        Ok(())
    }

    /// The first person with a role, who is made if there is none.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn person(&self, role: Role) -> rusqlite::Result<i64> {
        let found = self
            .sql
            .query_row(
                "SELECT min(id) FROM person WHERE role = ?1",
                [role.as_str()],
                |row| row.get(0),
            )
            .optional()?
            .flatten();
        if let Some(id) = found {
            return Ok(id);
        }
        self.sql.execute(
            "INSERT INTO person (name, role, created) VALUES ('', ?1, ?2)",
            (role.as_str(), self.now),
        )?;
        Ok(self.sql.last_insert_rowid())
    }

    /// Lets a browser out.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn let_out(&self, browser: i64) -> rusqlite::Result<()> {
        self.sql
            .execute("DELETE FROM session WHERE rowid = ?1", [browser])?;
        Ok(())
    }

    /// Starts a session of a browser that calls itself `agent`, and forgets those that were started before a time, in milliseconds since 1970.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn start_session(
        &self,
        (digest, agent): (&str, &str),
        person: i64,
        before: i64,
    ) -> rusqlite::Result<()> {
        self.sql
            .execute("DELETE FROM session WHERE created <= ?1", [before])?;
        self.sql.execute(
            "INSERT INTO session (digest, person, created, agent) VALUES (?1, ?2, ?3, ?4)",
            (digest, person, self.now, agent),
        )?;
        Ok(())
    }
}
