-- cancel: a teardown; the row gets its terminal status last.
--
-- A teardown in the order of its calls; any session may repeat each of them:
--   cancel_request   sets the row's flag and writes one row in once.cancel: from now on no action starts, and the
--                    holder of a lease reads `cancelling`;
--   cancel_refund    marks every undecided item, credits the wallet, and adds a row to once.refund if it marked any;
--   cancel_items     lists the marked items; the caller deletes their artifacts;
--   cancel_confirm   records that the caller has deleted all artifacts of a pass;
--   cancel_finish    makes the terminal move if no item is undecided and the last pass is confirmed.
-- cancel_refund marks only undecided items, and the same statement credits them. So no amount is credited twice.
--
-- Lock order: see machine.sql. Writes to once.cancel and once.refund lock the machine's row first, if the row exists.

CREATE TABLE once.cancel (
    machine        text        COLLATE "C" NOT NULL,
    row_id         text        COLLATE "C" NOT NULL,
    relation       regclass    NOT NULL,
    requested_at   timestamptz NOT NULL,
    finished_at    timestamptz,
    open           boolean     NOT NULL,
    pass           bigint      NOT NULL,
    confirmed_pass bigint      NOT NULL,
    items_total    bigint      NOT NULL,
    amount_total   numeric     NOT NULL,
    CONSTRAINT cancel_pkey PRIMARY KEY (machine, row_id)
) WITH (fillfactor = 90);
CREATE INDEX cancel_open ON once.cancel (machine, open, requested_at);
COMMENT ON TABLE once.cancel IS 'The last teardown of each row of a machine, with its progress. Only functions of the extension read and write it.';
COMMENT ON COLUMN once.cancel.machine IS 'Name of the machine.';
COMMENT ON COLUMN once.cancel.row_id IS 'Id of the machine''s row, as text.';
COMMENT ON COLUMN once.cancel.relation IS 'The machine''s table when the teardown began. If the machine later gets another table, this teardown does not count for a row there with the same id.';
COMMENT ON COLUMN once.cancel.requested_at IS 'When the teardown began: at cancel_request, or when the extension found a flag that was set by hand.';
COMMENT ON COLUMN once.cancel.finished_at IS 'When cancel_finish made the terminal move; NULL: it has not.';
COMMENT ON COLUMN once.cancel.open IS 'True: the teardown is under way. False: it is finished, or its row is gone.';
COMMENT ON COLUMN once.cancel.pass IS 'Number of the last pass. The first refund is a pass, and so is each later refund that marked something. 0: none yet.';
COMMENT ON COLUMN once.cancel.confirmed_pass IS 'The last pass that cancel_confirm confirmed; 0: none.';
COMMENT ON COLUMN once.cancel.items_total IS 'Items that refunds of this teardown have marked.';
COMMENT ON COLUMN once.cancel.amount_total IS 'Amount that this teardown has credited.';

-- Append-only: the proof of what was credited.
CREATE TABLE once.refund (
    machine  text        COLLATE "C" NOT NULL,
    row_id   text        COLLATE "C" NOT NULL,
    relation regclass    NOT NULL,
    pass     bigint      NOT NULL,
    at       timestamptz NOT NULL,
    items    bigint      NOT NULL,
    amount   numeric     NOT NULL,
    wallet   text,
    role     text        NOT NULL
);
-- For publications FOR ALL TABLES. The table has no key; FULL costs nothing, since rows are only inserted.
ALTER TABLE once.refund REPLICA IDENTITY FULL;
CREATE INDEX refund_row ON once.refund (machine, row_id, pass);
COMMENT ON TABLE once.refund IS 'One row per refund that marked something.';
COMMENT ON COLUMN once.refund.machine IS 'Name of the machine.';
COMMENT ON COLUMN once.refund.row_id IS 'Id of the machine''s row, as text.';
COMMENT ON COLUMN once.refund.relation IS 'The machine''s table when the refund ran.';
COMMENT ON COLUMN once.refund.pass IS 'Number of this pass within its teardown; see once.cancel.pass.';
COMMENT ON COLUMN once.refund.at IS 'When the refund ran.';
COMMENT ON COLUMN once.refund.items IS 'Items that the refund marked.';
COMMENT ON COLUMN once.refund.amount IS 'Amount that the refund credited.';
COMMENT ON COLUMN once.refund.wallet IS 'Id of the wallet that was credited, as text; NULL: none, the amount was 0.';
COMMENT ON COLUMN once.refund.role IS 'The current_user of the refund.';
SELECT pg_catalog.pg_extension_config_dump('once.cancel', '');
SELECT pg_catalog.pg_extension_config_dump('once.refund', '');

CREATE FUNCTION once.cancel_request(machine text, id text, OUT outcome text, OUT status text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_request';
COMMENT ON FUNCTION once.cancel_request(text, text) IS
$$Sets the row's cancel flag. outcome: teardown (no action runs and none can start: tear down), accepted (an action has a lease on the row: the holder reads cancelling, releases and tears down; if the holder dies, the sweep reverts the row and cancel_pending lists it), done (already cancelled), too_late (another terminal status), not_found.
Errors: 42704 no such machine; 22023 the machine declares no cancel; ON002 a trigger or policy suppresses the update; 42501 no right to update the table.$$;

CREATE FUNCTION once.cancel_request(machine text, id "any", OUT outcome text, OUT status text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_request';
COMMENT ON FUNCTION once.cancel_request(text, "any") IS
'The same cancel_request for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.cancel_refund(
    machine text, id text, max_items integer = NULL,
    OUT items bigint, OUT amount numeric, OUT items_total bigint, OUT amount_total numeric, OUT remaining boolean,
    OUT pass bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_refund';
COMMENT ON FUNCTION once.cancel_refund(text, text, integer) IS
$$In one statement, marks all undecided items (at most max_items, by key) and credits the wallet with the amounts of the items that satisfy the definition's refund.when. A repeated call credits no item again. items, amount: of this call; remaining: items are undecided; pass: for cancel_confirm.
Errors: ON002 the row is leased, unflagged, or terminal but not cancelled, or a trigger or policy changes or suppresses updates; 22023 bad argument, or an amount is NULL, negative, NaN or infinite; 23503 no such wallet; 22003 overflow; 42704 no such machine; 40001 a lost race above READ COMMITTED.$$;

CREATE FUNCTION once.cancel_refund(
    machine text, id "any", max_items integer = NULL,
    OUT items bigint, OUT amount numeric, OUT items_total bigint, OUT amount_total numeric, OUT remaining boolean,
    OUT pass bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_refund';
COMMENT ON FUNCTION once.cancel_refund(text, "any", integer) IS
'The same cancel_refund for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.cancel_items(
    machine text, id text, after_id text = NULL, max integer = 1000, OUT item_id text, OUT item json)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_items';
COMMENT ON FUNCTION once.cancel_items(text, text, text, integer) IS
$$Lists the marked items of the row, sorted by key; the caller deletes their artifacts. Reads what is committed now, at every isolation level. after_id: the last item_id of the previous page; max: 1 to 100000.
Errors: 42704 no such machine; 22023 bad argument.$$;

CREATE FUNCTION once.cancel_items(
    machine text, id "any", after_id text = NULL, max integer = 1000, OUT item_id text, OUT item json)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_items';
COMMENT ON FUNCTION once.cancel_items(text, "any", text, integer) IS
'The same cancel_items for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.cancel_confirm(machine text, id text, pass bigint, OUT confirmed boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_confirm';
COMMENT ON FUNCTION once.cancel_confirm(text, text, bigint) IS
$$Records that the caller has deleted all artifacts that cancel_items listed after this pass of cancel_refund. A missing artifact counts as deleted. false: a refund after this pass marked more items; list again.
Errors: ON002 as cancel_refund; 22023 cancel_refund never returned this pass; 42704 no such machine.$$;

CREATE FUNCTION once.cancel_confirm(machine text, id "any", pass bigint, OUT confirmed boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_confirm';
COMMENT ON FUNCTION once.cancel_confirm(text, "any", bigint) IS
'The same cancel_confirm for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.cancel_finish(
    machine text, id text, patch json = NULL,
    OUT outcome text, OUT status text, OUT items_total bigint, OUT amount_total numeric)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_finish';
COMMENT ON FUNCTION once.cancel_finish(text, text, json) IS
$$Makes the terminal move of a teardown. patch: a JSON object of other columns of the row to set. outcome: cancelled for the one call that made the move, done for a later call, which changes nothing. items_total, amount_total: of the whole teardown. Call it in a transaction that wrote no items. The call waits for all writers of the row's items; with the guard off it can miss uncommitted changes.
Errors: ON005 an item is undecided or the last pass is not confirmed; ON002 as cancel_refund; 22023 bad argument; 42704 no such machine; 40P01, 55P03, 40001: run the whole transaction again.$$;

CREATE FUNCTION once.cancel_finish(
    machine text, id "any", patch json = NULL,
    OUT outcome text, OUT status text, OUT items_total bigint, OUT amount_total numeric)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_finish';
COMMENT ON FUNCTION once.cancel_finish(text, "any", json) IS
'The same cancel_finish for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.cancel_pending(
    machine text, max integer = 100,
    OUT id text, OUT status text, OUT requested_at timestamptz, OUT items_total bigint, OUT amount_total numeric)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_pending';
COMMENT ON FUNCTION once.cancel_pending(text, integer) IS
$$Lists the open teardowns that a worker can continue: the row is flagged, not leased and in no terminal status. The oldest is first. Call action_adopt first if rows were flagged by hand. max: 1 to 100000.
Errors: 42704 no such machine; 22023 bad argument.$$;

CREATE FUNCTION once.cancel_audit(
    machine text, id text = NULL,
    OUT id text, OUT marked_amount numeric, OUT refunded_amount numeric, OUT difference numeric)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_audit';
COMMENT ON FUNCTION once.cancel_audit(text, text) IS
$$Compares a row's recorded refunds with the total of its marked items that satisfy the definition's refund.when; lists the row if they differ. id NULL: all rows of the machine. No rows: all agree. difference: refunded_amount - marked_amount. Deleted rows are not audited. If the id of a deleted row is used again, the refunds of the deleted row count for the new one. Reads as the tables' owner.
Errors: 42704 no such machine; 22023 the machine declares no refund; 55000 in a session with temporary objects.$$;

CREATE FUNCTION once.cancel_audit(
    machine text, id "any",
    OUT id text, OUT marked_amount numeric, OUT refunded_amount numeric, OUT difference numeric)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_cancel_audit';
COMMENT ON FUNCTION once.cancel_audit(text, "any") IS
'The same cancel_audit for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';
