-- As in the embedded store. Times are microseconds since 1970. Names of states, causes and phases are those of the report
-- format. Nodes, boots and bodies draw their numbers from one sequence, so that what came later has the higher number.

CREATE SEQUENCE numbers;

-- A node and what its board line shows. Written when the report's body changes.
CREATE TABLE nodes (
    id bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    identity text NOT NULL,
    first_seen bigint NOT NULL,
    body bigint NOT NULL,
    turn bigint NOT NULL,
    digest bytea NOT NULL,
    since bigint NOT NULL,
    rank bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    cause text COLLATE "C",
    title text COLLATE "C" NOT NULL,
    component text,
    phase text COLLATE "C",
    confidence double precision NOT NULL,
    key bytea
);
CREATE INDEX nodes_by_trouble ON nodes (rank, since DESC, name);
CREATE INDEX nodes_by_cause ON nodes (cause, state);

-- What changes with every report: narrow, and with room in each page, so that an update stays where it is.
CREATE TABLE pulses (
    node bigint PRIMARY KEY,
    last_seen bigint NOT NULL,
    time bigint NOT NULL,
    boot bigint NOT NULL,
    sequence bigint NOT NULL,
    reports bigint NOT NULL
) WITH (fillfactor = 50);

-- The boots of nodes. `floor` is the highest sequence that was forgotten.
CREATE TABLE boots (
    id bigint PRIMARY KEY,
    node bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    floor bigint NOT NULL DEFAULT 0,
    UNIQUE (node, name)
);

-- Bodies that differ from their predecessor. `kind`: 0 same verdict, 1 turn, 2 late.
CREATE TABLE bodies (
    id bigint PRIMARY KEY,
    node bigint NOT NULL,
    received bigint NOT NULL,
    time bigint NOT NULL,
    kind bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    cause text COLLATE "C",
    title text NOT NULL,
    phase text,
    confidence double precision NOT NULL,
    digest bytea NOT NULL,
    words tsvector NOT NULL,
    data bytea NOT NULL
);
-- What is packed already is not worth a second try.
ALTER TABLE bodies ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX bodies_by_node ON bodies (node, kind, id);
CREATE INDEX bodies_by_time ON bodies (received);
CREATE INDEX bodies_by_words ON bodies USING gin (words);

-- Every report that was acknowledged, in the order of arrival.
CREATE TABLE reports (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id bytea NOT NULL UNIQUE,
    node bigint NOT NULL,
    boot bigint NOT NULL,
    sequence bigint NOT NULL,
    time bigint NOT NULL,
    received bigint NOT NULL,
    body bigint NOT NULL
);

CREATE TABLE bundles (
    digest text COLLATE "C" PRIMARY KEY,
    node text COLLATE "C" NOT NULL,
    received bigint NOT NULL,
    bytes bigint NOT NULL,
    files bigint NOT NULL,
    cut boolean NOT NULL
);
CREATE INDEX bundles_by_node ON bundles (node, received);
CREATE INDEX bundles_by_time ON bundles (received);

-- Every writer counts its changes in a row of its own, so that none waits for another; the sum is what boards watch.
CREATE TABLE changes (slot bigint PRIMARY KEY, count bigint NOT NULL) WITH (fillfactor = 10);
INSERT INTO changes SELECT slot, 0 FROM generate_series(0, 63) AS slot;

-- In-place bootstraps, in the order they were first heard of. `last` is when the newest event came.
CREATE TABLE attempts (
    id bigint PRIMARY KEY,
    node text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    last bigint NOT NULL,
    UNIQUE (node, name)
);
CREATE INDEX attempts_by_age ON attempts (last);

CREATE TABLE progress (
    attempt bigint NOT NULL REFERENCES attempts ON DELETE CASCADE,
    sequence bigint NOT NULL,
    received bigint NOT NULL,
    data text NOT NULL,
    PRIMARY KEY (attempt, sequence)
);
