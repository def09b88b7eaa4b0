-- What nodes that signed had come to when they were forgotten, by their keys.
CREATE TABLE forgotten (
    name text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    boot text COLLATE "C" NOT NULL,
    boot_number bigint,
    sequence bigint NOT NULL,
    moment bigint NOT NULL,
    since bigint NOT NULL,
    PRIMARY KEY (name, key)
);
CREATE INDEX forgotten_by_age ON forgotten (since);
