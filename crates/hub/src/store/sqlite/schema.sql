-- Times are microseconds since 1970. Names of states, causes and phases are those of the report format.

-- A node and what its board line shows. Written when the report's body changes.
CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    identity TEXT NOT NULL,
    first_seen INTEGER NOT NULL,
    body INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    digest BLOB NOT NULL,
    since INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    state TEXT NOT NULL,
    cause TEXT,
    title TEXT NOT NULL,
    component TEXT,
    phase TEXT,
    confidence REAL NOT NULL,
    key BLOB
) STRICT;
CREATE INDEX nodes_by_trouble ON nodes (rank, since DESC, name);
CREATE INDEX nodes_by_cause ON nodes (cause, state);

-- What changes with every report, narrow so that many fit a page.
CREATE TABLE pulses (
    node INTEGER PRIMARY KEY,
    last_seen INTEGER NOT NULL,
    time INTEGER NOT NULL,
    boot INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    reports INTEGER NOT NULL
) STRICT;

-- The boots of nodes, in the order they were first heard of. `floor` is the highest sequence that was forgotten.
CREATE TABLE boots (
    id INTEGER PRIMARY KEY,
    node INTEGER NOT NULL,
    name TEXT NOT NULL,
    floor INTEGER NOT NULL DEFAULT 0,
    UNIQUE (node, name)
) STRICT;

-- Bodies that differ from their predecessor, in order. `kind`: 0 same verdict, 1 turn, 2 late.
CREATE TABLE bodies (
    id INTEGER PRIMARY KEY,
    node INTEGER NOT NULL,
    received INTEGER NOT NULL,
    time INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    state TEXT NOT NULL,
    cause TEXT,
    title TEXT NOT NULL,
    phase TEXT,
    confidence REAL NOT NULL,
    digest BLOB NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE INDEX bodies_by_node ON bodies (node, kind, id);
CREATE INDEX turns_by_time ON bodies (received) WHERE kind = 1;

-- Every report that was acknowledged, in the order of arrival.
CREATE TABLE reports (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    node INTEGER NOT NULL,
    boot INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    time INTEGER NOT NULL,
    received INTEGER NOT NULL,
    body INTEGER NOT NULL
) STRICT;

CREATE TABLE bundles (
    digest TEXT PRIMARY KEY,
    node TEXT NOT NULL,
    received INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    files INTEGER NOT NULL,
    cut INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX bundles_by_node ON bundles (node, received);

-- The words of bodies; a row has the body's id.
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', contentless_delete = 1);
