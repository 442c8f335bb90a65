-- One word for one thing, and the field's: a job that no living attempt stands for is orphaned.
-- Replicas of earlier versions cannot work on this schema: stop them first.

-- Before anything is locked for long: no index helps to find them.
UPDATE events SET kind = CASE kind
        WHEN 'trial.stray_job' THEN 'trial.orphaned_job'
        WHEN 'trial.stray_pool' THEN 'trial.orphaned_pool'
        ELSE 'trial.setting_ignored' END
    WHERE kind IN ('trial.stray_job', 'trial.stray_pool', 'trial.silent_drop');

LOCK TABLE stray_jobs, ledger IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE stray_jobs RENAME TO orphaned_jobs;
ALTER INDEX stray_jobs_pkey RENAME TO orphaned_jobs_pkey;
ALTER INDEX stray_jobs_due RENAME TO orphaned_jobs_due;
ALTER TABLE orphaned_jobs RENAME CONSTRAINT stray_jobs_billed_seconds_check TO orphaned_jobs_billed_seconds_check;
ALTER TABLE orphaned_jobs RENAME CONSTRAINT stray_jobs_check TO orphaned_jobs_check;
ALTER TABLE orphaned_jobs RENAME CONSTRAINT stray_jobs_settlements_check TO orphaned_jobs_settlements_check;
ALTER TABLE orphaned_jobs RENAME CONSTRAINT stray_jobs_attempt_id_fkey TO orphaned_jobs_attempt_id_fkey;

-- The ledger's rows are renamed with what else changes in them (ledger_resource_filled).
ALTER TABLE ledger DROP CONSTRAINT ledger_component_check;
ALTER TABLE ledger ADD CONSTRAINT ledger_component_check
    CHECK (component IN ('training', 'cloudwatch', 'warm_pool', 'orphaned_job', 'storage')) NOT VALID;
