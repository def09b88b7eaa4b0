-- How many boots the node counted; earlier agents do not count them.
ALTER TABLE boots ADD COLUMN number bigint;

-- Objects without a record; `state` is `arriving`, `leaving` or `removing`, since when.
CREATE TABLE loose (
    digest text COLLATE "C" PRIMARY KEY,
    state text COLLATE "C" NOT NULL,
    since bigint NOT NULL
);
