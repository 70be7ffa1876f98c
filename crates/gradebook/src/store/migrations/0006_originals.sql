-- The files of a submission as they were handed in.
CREATE TABLE original (
    submission INTEGER NOT NULL REFERENCES submission (id),
    place INTEGER NOT NULL, -- among its files, from 0
    name TEXT NOT NULL,
    bytes BLOB, -- none where it was too large to keep
    PRIMARY KEY (submission, place)
) STRICT;

-- The questions whose answers it was made of; none of what earlier versions kept.
ALTER TABLE result ADD COLUMN questions TEXT NOT NULL DEFAULT '[]';
