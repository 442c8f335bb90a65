-- no-transaction
-- The rows that the defaults do not describe, in batches, so that no row is held for long. What has been filled in is not
-- found again: it may start over.
DO $$
DECLARE
    last bigint := coalesce((SELECT min(id) FROM ledger), 0) - 1;
    final bigint := coalesce((SELECT max(id) FROM ledger), 0);
BEGIN
    WHILE last < final LOOP
        UPDATE ledger
        SET component = CASE component WHEN 'stray' THEN 'orphaned_job' ELSE component END,
            resource = CASE
                WHEN component IN ('warm_pool', 'orphaned_job') THEN component
                WHEN component = 'stray' OR kind = 'settled' AND component = 'storage' AND line >= 200 THEN 'orphaned_job'
                WHEN kind = 'settled' AND component = 'storage' AND line >= 100 THEN 'warm_pool'
                ELSE 'job' END,
            settlement = CASE
                WHEN kind = 'adjusted' THEN line
                WHEN component IN ('stray', 'orphaned_job') THEN line / 100
                WHEN component = 'storage' AND line >= 200 THEN line / 100 - 2
                ELSE 0 END,
            line = CASE
                WHEN kind = 'adjusted' THEN 0
                WHEN component IN ('stray', 'orphaned_job', 'storage') THEN line % 100
                ELSE line END
        WHERE id > last AND id <= last + 20000 AND resource = 'job' AND settlement = 0
          AND (component IN ('warm_pool', 'stray', 'orphaned_job')
               OR kind = 'adjusted' AND line > 0
               OR kind = 'settled' AND component = 'storage' AND line >= 100);
        COMMIT;
        last := last + 20000;
    END LOOP;
END $$;
