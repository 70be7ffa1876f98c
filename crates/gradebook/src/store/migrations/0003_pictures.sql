-- Pictures of notebooks, which the content of a submission names by their BLAKE3 digests.
CREATE TABLE picture (
    submission INTEGER NOT NULL REFERENCES submission (id),
    digest TEXT NOT NULL,
    media_type TEXT NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (submission, digest)
) STRICT;
