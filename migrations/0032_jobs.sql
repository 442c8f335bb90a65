-- A job is what AWS runs for us, of any kind; an attempt of a trial is a job with a trial and a number. Renames and constant
-- defaults only: no row is rewritten. Replicas of earlier versions cannot work on this schema: stop them first.
LOCK TABLE attempts, ledger, warm_pools, orphaned_jobs IN SHARE UPDATE EXCLUSIVE MODE;
DO $$
DECLARE
    -- Where nearly all of them are; the others are filled in after this.
    usual_region text := coalesce((SELECT region FROM experiments GROUP BY 1 ORDER BY count(*) DESC LIMIT 1), '');
    usual_account text := coalesce((SELECT account FROM installation),
        (SELECT substring(job_arn FROM '^arn:[^:]*:sagemaker:[^:]*:([0-9]{12}):') FROM attempts
         WHERE job_arn LIKE 'arn:%' LIMIT 1));
BEGIN
    EXECUTE format('ALTER TABLE attempts ADD COLUMN region text NOT NULL DEFAULT %L', usual_region);
    EXECUTE format('ALTER TABLE attempts ADD COLUMN account text DEFAULT %L', usual_account);
END $$;

ALTER TABLE attempts RENAME TO jobs;
ALTER TABLE jobs
    ADD COLUMN kind text NOT NULL DEFAULT 'training',
    ALTER COLUMN experiment_id DROP NOT NULL,
    ALTER COLUMN trial_id DROP NOT NULL,
    ALTER COLUMN number DROP NOT NULL;
ALTER TRIGGER attempts_stay_over ON jobs RENAME TO jobs_stay_over;
DO $$
DECLARE
    old text;
BEGIN
    FOR old IN SELECT conname FROM pg_constraint WHERE conrelid = 'jobs'::regclass AND conname LIKE 'attempts\_%' LOOP
        EXECUTE format('ALTER TABLE jobs RENAME CONSTRAINT %I TO %I', old, regexp_replace(old, '^attempts', 'jobs'));
    END LOOP;
    FOR old IN SELECT indexrelid::regclass::text FROM pg_index
               WHERE indrelid = 'jobs'::regclass AND indexrelid::regclass::text LIKE 'attempts\_%' LOOP
        EXECUTE format('ALTER INDEX %I RENAME TO %I', old, regexp_replace(old, '^attempts', 'jobs'));
    END LOOP;
END $$;

ALTER TABLE ledger RENAME COLUMN attempt_id TO job_id;
ALTER TABLE ledger RENAME CONSTRAINT ledger_attempt_id_fkey TO ledger_job_id_fkey;
ALTER TABLE ledger ALTER COLUMN experiment_id DROP NOT NULL, ALTER COLUMN trial_id DROP NOT NULL;
ALTER TABLE warm_pools RENAME COLUMN attempt_id TO job_id;
ALTER TABLE warm_pools RENAME CONSTRAINT warm_pools_attempt_id_fkey TO warm_pools_job_id_fkey;
ALTER TABLE orphaned_jobs RENAME COLUMN attempt_id TO job_id;
ALTER TABLE orphaned_jobs RENAME CONSTRAINT orphaned_jobs_attempt_id_fkey TO orphaned_jobs_job_id_fkey;
