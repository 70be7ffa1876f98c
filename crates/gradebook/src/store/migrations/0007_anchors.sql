-- Works that persons grade before they see what a model gave.
CREATE TABLE anchor (
    submission INTEGER PRIMARY KEY REFERENCES submission (id),
    created INTEGER NOT NULL
) STRICT;

-- What a person gives an anchor without having seen the model's points.
CREATE TABLE blind_reading (
    submission INTEGER NOT NULL REFERENCES submission (id),
    person INTEGER NOT NULL REFERENCES person (id),
    rubric_version INTEGER NOT NULL REFERENCES rubric_version (id), -- by which the points were given last
    points TEXT NOT NULL, -- by criterion
    saved INTEGER, -- nothing while the person is at it; it never changes after that
    PRIMARY KEY (submission, person)
) STRICT, WITHOUT ROWID;

-- Who was shown what models made of a work.
CREATE TABLE opened (
    submission INTEGER NOT NULL REFERENCES submission (id),
    person INTEGER NOT NULL REFERENCES person (id),
    created INTEGER NOT NULL,
    PRIMARY KEY (submission, person)
) STRICT, WITHOUT ROWID;

-- What was there before may have been looked at.
INSERT INTO opened (submission, person, created)
    SELECT DISTINCT result.submission, person.id, 0 FROM result, person WHERE person.role = 'teacher';
