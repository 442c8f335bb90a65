-- Before rows are filled in: lines of a job, its pool and an orphan have the same number then.

ALTER TABLE ledger DROP CONSTRAINT ledger_once;
ALTER TABLE ledger ADD CONSTRAINT ledger_once UNIQUE USING INDEX ledger_once_by_resource;
