//! The forms of the store: each step takes a file from one form to the next.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::StoreError;

/// The steps, in their order; a step that was ever published is never changed.
const STEPS: &[&str] = &[
    include_str!("migrations/0001_initial.sql"),
    include_str!("migrations/0002_second.sql"),
    include_str!("migrations/0003_pictures.sql"),
    include_str!("migrations/0004_browsers.sql"),
    include_str!("migrations/0005_exports.sql"),
    include_str!("migrations/0006_originals.sql"),
    include_str!("migrations/0007_anchors.sql"),
    include_str!("migrations/0008_corrections.sql"),
    include_str!("migrations/0009_members.sql"),
];

/// Takes a file to the form of this version; each step is made as a whole or not at all.
pub(super) fn run(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let sql = |source| StoreError::Sql {
        path: path.to_owned(),
        source,
    };
    let known = u32::try_from(STEPS.len()).unwrap_or(u32::MAX);
    for (number, step) in (1..).zip(STEPS) {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(sql)?;
        let found: u32 = transaction
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(sql)?;
        if found > known {
            return Err(StoreError::Newer {
                path: path.to_owned(),
                found,
                known,
            });
        }
        if found < number {
            transaction.execute_batch(step).map_err(sql)?;
            transaction
                .pragma_update(None, "user_version", number)
                .map_err(sql)?;
            transaction.commit().map_err(sql)?;
        }
    }
    Ok(())
}
