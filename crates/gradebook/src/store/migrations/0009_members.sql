-- Who sees a course beside the teacher, who sees all. Who was invited before sees those that there were.
CREATE TABLE member (
    course INTEGER NOT NULL REFERENCES course (id),
    person INTEGER NOT NULL REFERENCES person (id),
    PRIMARY KEY (course, person)
) STRICT, WITHOUT ROWID;

INSERT INTO member SELECT course.id, person.id FROM course CROSS JOIN person
WHERE person.role = 'assistant' AND person.token IS NOT NULL;
