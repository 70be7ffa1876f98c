-- Ids of the penalties that a person gave, and whether it counts as late where a person says so.
ALTER TABLE review ADD COLUMN penalties TEXT NOT NULL DEFAULT '[]';
ALTER TABLE review ADD COLUMN late INTEGER;

-- The learning system says that it came late.
ALTER TABLE submission ADD COLUMN is_late INTEGER NOT NULL DEFAULT 0;
UPDATE submission SET is_late = ifnull(json_extract(content, '$.origin.is_late'), 0);

-- Points that a person gives or takes off beside the rubric, and why; nothing if there are none.
ALTER TABLE review ADD COLUMN adjustment TEXT;

-- Comments of persons on single lines.
ALTER TABLE review ADD COLUMN comments TEXT NOT NULL DEFAULT '[]';
