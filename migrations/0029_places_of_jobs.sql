-- no-transaction
-- Where each job is. In batches, so that no row is held for long.
DO $$
DECLARE
    last uuid := '00000000-0000-0000-0000-000000000000';
    upto uuid;
BEGIN
    LOOP
        upto := (SELECT id FROM (SELECT id FROM jobs WHERE id > last ORDER BY id LIMIT 5000) batch ORDER BY id DESC LIMIT 1);
        EXIT WHEN upto IS NULL;
        UPDATE jobs j SET region = t.region,
               account = coalesce(substring(j.job_arn FROM '^arn:[^:]*:sagemaker:[^:]*:([0-9]{12}):'), (SELECT account FROM installation))
        FROM trials t WHERE t.id = j.trial_id AND j.id > last AND j.id <= upto AND j.region IS NULL;
        COMMIT;
        last := upto;
    END LOOP;
END $$;
