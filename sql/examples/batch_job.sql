-- The tables of a costly batch job that can be cancelled while it runs. See docs/how-to/batch-job.md. The machine of
-- batch_job is declared in batch_job.json.

CREATE TABLE wallet (
    customer text   PRIMARY KEY,
    points   bigint NOT NULL CHECK (points >= 0)
);

-- status has no CHECK, because the guard refuses undeclared moves. An INSERT in an undeclared status is accepted.
CREATE TABLE batch_job (
    id               bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer         text    NOT NULL REFERENCES wallet,
    status           text    NOT NULL DEFAULT 'queued',
    cancel_requested boolean NOT NULL DEFAULT false,
    version          bigint  NOT NULL DEFAULT 0,
    result           text
);

-- Commit an item's row, with the name of its artifact, before you make the artifact, so that cancel_items lists every
-- artifact that was made. An artifact is a directory, and each attempt puts a file of its own there, so no attempt
-- writes or deletes the file of a later attempt.
CREATE TABLE batch_item (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id   bigint NOT NULL REFERENCES batch_job,
    input    text   NOT NULL,
    state    text   NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'working', 'succeeded', 'failed')),
    points   bigint NOT NULL CHECK (points >= 0), -- what a success costs
    artifact text   NOT NULL,                     -- a directory of the store
    settled  text            CHECK (settled IN ('kept', 'returned'))
);
COMMENT ON COLUMN batch_item.settled IS
'NULL: undecided. kept: the job is done and the points are spent. returned: the job was cancelled; the points of a success are back in the wallet.';

-- cancel_refund and cancel_items look items up by their job, in the order of their key.
CREATE INDEX batch_item_job ON batch_item (job_id, id);
