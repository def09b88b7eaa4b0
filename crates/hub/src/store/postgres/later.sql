-- How many boots the node counted; earlier agents do not count them.
ALTER TABLE boots ADD COLUMN number bigint;

-- What is old is found without looking at what is not. Node and number are in it, so that what is shown is passed over without
-- reading it.
DROP INDEX bodies_by_time;
CREATE INDEX bodies_by_time ON bodies (received, node, id);

-- Objects without a record; `state` is `arriving`, `leaving` or `removing`, since when.
CREATE TABLE loose (
    digest text COLLATE "C" PRIMARY KEY,
    state text COLLATE "C" NOT NULL,
    since bigint NOT NULL
);
