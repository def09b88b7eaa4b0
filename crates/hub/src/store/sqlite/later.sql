-- Made when it is missing, so that a file of an earlier version gets it and an earlier version still reads the file.

-- In-place bootstraps, in the order they were first heard of. `last` is when the newest event came.
CREATE TABLE IF NOT EXISTS attempts (
    id INTEGER PRIMARY KEY,
    node TEXT NOT NULL,
    name TEXT NOT NULL,
    last INTEGER NOT NULL,
    UNIQUE (node, name)
) STRICT;
CREATE INDEX IF NOT EXISTS attempts_by_age ON attempts (last);

CREATE TABLE IF NOT EXISTS progress (
    attempt INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    received INTEGER NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (attempt, sequence)
) STRICT, WITHOUT ROWID;

-- One row: bodies with a higher number are not in `words` yet.
CREATE TABLE IF NOT EXISTS indexed (body INTEGER NOT NULL) STRICT;
