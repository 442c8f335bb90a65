-- Trials that are worth starting only once others have been measured are held back; those before
-- were not.

LOCK TABLE trials IN SHARE UPDATE EXCLUSIVE MODE;
-- Since when a trial may start; empty while it is held back. A constant: the table is not rewritten.
ALTER TABLE trials ADD COLUMN released_at timestamptz DEFAULT 'epoch';
