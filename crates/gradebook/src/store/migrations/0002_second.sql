-- Ways to solve the task, for those who grade.
ALTER TABLE rubric_version ADD COLUMN solutions TEXT NOT NULL DEFAULT '[]';

-- Digest of the session of the browser that made a change: undo goes by it.
ALTER TABLE history ADD COLUMN session TEXT NOT NULL DEFAULT '';
-- Of the form that asked for a change: what is sent twice is done once.
ALTER TABLE history ADD COLUMN key TEXT;
CREATE UNIQUE INDEX history_key ON history (key) WHERE key IS NOT NULL;
CREATE INDEX history_session ON history (session, id);

-- Beside the record, so that a sum need not read every record.
ALTER TABLE model_call ADD COLUMN prompt_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE model_call ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0;
UPDATE model_call SET
    prompt_tokens = ifnull(json_extract(record, '$.usage.prompt_tokens'), 0),
    cached_tokens = ifnull(json_extract(record, '$.usage.prompt_tokens_details.cached_tokens'), 0);

-- The text is a model's, which wrote it for points that a person gave.
ALTER TABLE review ADD COLUMN text_is_models INTEGER NOT NULL DEFAULT 0;

-- Whose share of the works it is.
ALTER TABLE submission ADD COLUMN share INTEGER REFERENCES person (id);

-- Digest of the token in the link by which somebody was invited.
ALTER TABLE person ADD COLUMN token TEXT;

-- What the model gave the same work without its comments, for a work that speaks to the grader. Append-only.
CREATE TABLE bare_reading (
    result INTEGER PRIMARY KEY REFERENCES result (id),
    points TEXT NOT NULL, -- by criterion; none if the answer gave no score
    created INTEGER NOT NULL
) STRICT;
