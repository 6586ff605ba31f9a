-- The tables of billings, which are closed and then paid. See docs/how-to/billing.md. The machine of billing is
-- declared in billing.json.

CREATE TYPE billing_status AS ENUM ('open', 'closing', 'closed', 'applying_payment', 'paid', 'void');

CREATE TABLE billing (
    id       uuid           PRIMARY KEY DEFAULT gen_random_uuid(),
    customer text           NOT NULL,
    status   billing_status NOT NULL DEFAULT 'open',
    version  bigint         NOT NULL DEFAULT 0,
    total    numeric(12, 2) NOT NULL DEFAULT 0,
    invoices integer        NOT NULL DEFAULT 0
);

-- billing_id is not unique in invoice and payment, so that a wrong second row would be visible.
CREATE TABLE invoice (
    id         bigint         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    billing_id uuid           NOT NULL REFERENCES billing,
    total      numeric(12, 2) NOT NULL,
    fiscal_no  text           NOT NULL, -- the number that the tax office gave
    made_at    timestamptz    NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE payment (
    id         bigint         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    billing_id uuid           NOT NULL REFERENCES billing,
    amount     numeric(12, 2) NOT NULL,
    reference  text           NOT NULL,
    made_at    timestamptz    NOT NULL DEFAULT clock_timestamp()
);
