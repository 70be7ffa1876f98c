-- The teacher's own gradebook of an assignment, as it came.
CREATE TABLE sheet (
    assignment INTEGER PRIMARY KEY REFERENCES assignment (id),
    name TEXT NOT NULL,
    bytes BLOB NOT NULL,
    created INTEGER NOT NULL
) STRICT;

-- Append-only: which files left, and what was in them.
CREATE TABLE export (
    id INTEGER PRIMARY KEY,
    assignment INTEGER NOT NULL REFERENCES assignment (id),
    person INTEGER NOT NULL REFERENCES person (id),
    file TEXT NOT NULL,
    grades INTEGER NOT NULL,
    digest TEXT NOT NULL, -- BLAKE3 of its bytes
    created INTEGER NOT NULL
) STRICT;
CREATE INDEX export_assignment ON export (assignment, id);

-- Whose work it is, by what a learning system knows the student by; else by its name. What is handed in again has the same.
ALTER TABLE submission ADD COLUMN key TEXT NOT NULL DEFAULT '';
UPDATE submission SET key = name;
DROP INDEX submission_current;
CREATE UNIQUE INDEX submission_current ON submission (assignment, key) WHERE replaced_by IS NULL;
CREATE INDEX submission_name ON submission (assignment, name);

-- How long a work had been on the screen when it was approved, in milliseconds; nothing where that is not known.
ALTER TABLE history ADD COLUMN shown INTEGER;
