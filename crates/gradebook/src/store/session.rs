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

    /// The person whose browser has the session with this digest.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn person_of_session(&self, digest: &str) -> rusqlite::Result<Option<Person>> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Person {
                id: row.get(0)?,
                name: row.get(1)?,
                role: Role::read(&row.get::<_, String>(2)?),
            })
        };
        self.sql
            .query_row(
                "SELECT person.id, person.name, person.role FROM session JOIN person ON person.id = session.person
                 WHERE session.digest = ?1",
                [digest],
                read,
            )
            .optional()
    }
}

impl Writer<'_> {
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

    /// Starts a session.
    ///
    /// # Errors
    /// If SQLite says no.
    pub fn start_session(&self, digest: &str, person: i64) -> rusqlite::Result<()> {
        self.sql.execute(
            "INSERT INTO session (digest, person, created) VALUES (?1, ?2, ?3)",
            (digest, person, self.now),
        )?;
        Ok(())
    }
}
