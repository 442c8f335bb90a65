-- The rows that the defaults do not describe.

UPDATE ledger SET settlement = line, line = 0 WHERE kind = 'adjusted' AND line > 0;
UPDATE ledger SET resource = 'warm_pool' WHERE component = 'warm_pool';
UPDATE ledger SET resource = 'warm_pool', line = line - 100 WHERE component = 'storage' AND kind = 'settled' AND line BETWEEN 100 AND 199;
UPDATE ledger SET resource = 'orphaned_job', settlement = line / 100, line = line % 100 WHERE component = 'orphaned_job';
UPDATE ledger SET resource = 'orphaned_job', settlement = line / 100 - 2, line = line % 100
WHERE component = 'storage' AND kind = 'settled' AND line >= 200;
