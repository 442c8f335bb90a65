-- What ran, and which of its settlements a row belongs to, were encoded in ranges of `part`: from 100 a warm pool's volumes,
-- from 200 an orphaned job's, 100 for each of its settlements. Now they are columns. Defaults are constants, so no row is
-- rewritten here. Replicas of earlier versions cannot work on this schema: stop them first.
LOCK TABLE ledger IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE ledger
    ADD COLUMN resource text NOT NULL DEFAULT 'job',
    ADD COLUMN settlement integer NOT NULL DEFAULT 0,
    -- It is made again by what is filled in: until then, lines of a job, its pool and an orphan have the same number.
    DROP CONSTRAINT ledger_once;
ALTER TABLE ledger RENAME COLUMN part TO line;
ALTER TABLE ledger RENAME CONSTRAINT ledger_part_check TO ledger_line_check;
