-- Points are whole thousandths. Times are milliseconds since 1970, UTC. Documents are JSON.

CREATE TABLE setting (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE person (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('teacher', 'assistant')),
    created INTEGER NOT NULL
) STRICT;

-- A browser that came with a token. What it shows is not kept, only its digest.
CREATE TABLE session (
    digest TEXT PRIMARY KEY,
    person INTEGER NOT NULL REFERENCES person (id),
    created INTEGER NOT NULL
) STRICT;

CREATE TABLE course (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created INTEGER NOT NULL
) STRICT;

CREATE TABLE assignment (
    id INTEGER PRIMARY KEY,
    course INTEGER NOT NULL REFERENCES course (id),
    key TEXT NOT NULL, -- the rubric's id
    title TEXT NOT NULL,
    created INTEGER NOT NULL,
    UNIQUE (course, key)
) STRICT;

-- Append-only; the highest number holds.
CREATE TABLE rubric_version (
    id INTEGER PRIMARY KEY,
    assignment INTEGER NOT NULL REFERENCES assignment (id),
    number INTEGER NOT NULL,
    source TEXT NOT NULL,
    templates TEXT NOT NULL,
    created INTEGER NOT NULL,
    UNIQUE (assignment, number)
) STRICT;

-- Append-only, but for `replaced_by`: work that was handed in again is a new row.
CREATE TABLE submission (
    id INTEGER PRIMARY KEY,
    assignment INTEGER NOT NULL REFERENCES assignment (id),
    name TEXT NOT NULL,
    draw INTEGER NOT NULL, -- its place in the random order
    content TEXT NOT NULL,
    created INTEGER NOT NULL,
    replaced_by INTEGER REFERENCES submission (id)
) STRICT;
CREATE UNIQUE INDEX submission_current ON submission (assignment, name) WHERE replaced_by IS NULL;

CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    assignment INTEGER NOT NULL REFERENCES assignment (id),
    number INTEGER NOT NULL, -- among those of its assignment, from 1
    rubric_version INTEGER NOT NULL REFERENCES rubric_version (id),
    settings TEXT NOT NULL,
    created INTEGER NOT NULL,
    -- A run without an end whose process is gone was interrupted, and can be continued.
    ended INTEGER,
    outcome TEXT CHECK (outcome IN ('done', 'stopped', 'failed')),
    problem TEXT,
    UNIQUE (assignment, number)
) STRICT;

-- What a run is to grade.
CREATE TABLE run_work (
    run INTEGER NOT NULL REFERENCES run (id),
    submission INTEGER NOT NULL REFERENCES submission (id),
    place INTEGER NOT NULL,
    PRIMARY KEY (run, submission)
) STRICT, WITHOUT ROWID;

-- Append-only: one request to a model, with all that a later reader needs to know how its answer came.
CREATE TABLE model_call (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES run (id),
    submission INTEGER NOT NULL REFERENCES submission (id),
    job TEXT NOT NULL,
    model TEXT NOT NULL,
    weights TEXT NOT NULL,
    question TEXT NOT NULL, -- digest of all that was asked, and of whom
    sampling TEXT NOT NULL,
    is_answered INTEGER NOT NULL,
    record TEXT NOT NULL, -- tokens, machines, times, why it ended, the answer as it came
    created INTEGER NOT NULL
) STRICT;
CREATE INDEX model_call_submission ON model_call (submission, job, question);
CREATE INDEX model_call_run ON model_call (run);

-- Append-only: what models made of a submission; the last one holds.
CREATE TABLE result (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES run (id),
    submission INTEGER NOT NULL REFERENCES submission (id),
    inputs TEXT NOT NULL, -- digest of all that it depends on
    status TEXT NOT NULL,
    score INTEGER,
    findings TEXT NOT NULL,
    feedback TEXT,
    flags TEXT NOT NULL,
    notes TEXT NOT NULL,
    created INTEGER NOT NULL
) STRICT;
CREATE INDEX result_submission ON result (submission, id);
CREATE INDEX result_run ON result (run);

CREATE TABLE ai_value (
    result INTEGER NOT NULL REFERENCES result (id),
    criterion TEXT NOT NULL,
    title TEXT NOT NULL, -- as it was then
    points INTEGER NOT NULL,
    max_points INTEGER NOT NULL,
    level TEXT,
    rationale TEXT NOT NULL,
    evidence TEXT NOT NULL,
    PRIMARY KEY (result, criterion)
) STRICT, WITHOUT ROWID;

-- What persons decided. `version` counts the changes; a change must name the one that it was made on.
CREATE TABLE review (
    submission INTEGER PRIMARY KEY REFERENCES submission (id),
    version INTEGER NOT NULL,
    decision TEXT NOT NULL,
    text TEXT,
    text_for TEXT NOT NULL,
    second_look INTEGER NOT NULL,
    note TEXT NOT NULL,
    changed INTEGER NOT NULL,
    person INTEGER NOT NULL REFERENCES person (id)
) STRICT;

CREATE TABLE human_value (
    submission INTEGER NOT NULL REFERENCES submission (id),
    criterion TEXT NOT NULL,
    points INTEGER NOT NULL,
    PRIMARY KEY (submission, criterion)
) STRICT, WITHOUT ROWID;

-- Append-only, but for `undone`: each change of a review, whole, before and after.
CREATE TABLE history (
    id INTEGER PRIMARY KEY,
    submission INTEGER NOT NULL REFERENCES submission (id),
    person INTEGER NOT NULL REFERENCES person (id),
    created INTEGER NOT NULL,
    action TEXT NOT NULL,
    before TEXT NOT NULL,
    after TEXT NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX history_submission ON history (submission, id);
