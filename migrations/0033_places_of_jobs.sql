-- no-transaction
-- The jobs that are not where nearly all of them are, in batches, so that no row is held for long.
DO $$
DECLARE
    last uuid := '00000000-0000-0000-0000-000000000000';
    upto uuid;
BEGIN
    LOOP
        upto := (SELECT id FROM (SELECT id FROM jobs WHERE id > last ORDER BY id LIMIT 5000) batch ORDER BY id DESC LIMIT 1);
        EXIT WHEN upto IS NULL;
        UPDATE jobs j SET region = place.region, account = place.account
        FROM (SELECT own.id, t.region,
                     coalesce(substring(own.job_arn FROM '^arn:[^:]*:sagemaker:[^:]*:([0-9]{12}):'), own.account) AS account
              FROM jobs own JOIN trials t ON t.id = own.trial_id
              WHERE own.id > last AND own.id <= upto) place
        WHERE j.id = place.id AND (j.region <> place.region OR j.account IS DISTINCT FROM place.account);
        COMMIT;
        last := upto;
    END LOOP;
END $$;
