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

-- Numbers of nodes and boots that were given once are not given again: reports of a node that was forgotten still have them.
-- One row.
CREATE TABLE IF NOT EXISTS highest (node INTEGER NOT NULL, boot INTEGER NOT NULL) STRICT;
INSERT INTO highest SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM highest);

-- What is old is found without looking at what is not. The node is in it, so that what is shown is skipped without reading it.
CREATE INDEX IF NOT EXISTS bodies_by_time ON bodies (received, node);
CREATE INDEX IF NOT EXISTS bundles_by_time ON bundles (received);

-- Objects without a record; `state` is `arriving`, `leaving` or `removing`, since when.
CREATE TABLE IF NOT EXISTS loose (
    digest TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What nodes that signed had come to when they were forgotten, by their keys.
CREATE TABLE IF NOT EXISTS forgotten (
    name TEXT NOT NULL,
    key BLOB NOT NULL,
    boot TEXT NOT NULL,
    boot_number INTEGER,
    sequence INTEGER NOT NULL,
    moment INTEGER NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (name, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS forgotten_by_age ON forgotten (since);
