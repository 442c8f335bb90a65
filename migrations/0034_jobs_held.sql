-- What holds for every job, of any kind.
LOCK TABLE jobs, ledger IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE jobs
    ALTER COLUMN kind DROP DEFAULT,
    ALTER COLUMN region DROP DEFAULT,
    ALTER COLUMN account DROP DEFAULT,
    ADD CONSTRAINT jobs_kind_check CHECK (kind IN ('training', 'processing', 'tuning', 'transform', 'endpoint')) NOT VALID,
    ADD CONSTRAINT jobs_account_check CHECK (account ~ '^[0-9]{12}$') NOT VALID,
    -- An attempt of a trial, or none.
    ADD CONSTRAINT jobs_trial_check CHECK (num_nulls(trial_id, number, experiment_id) IN (0, 2, 3) AND (trial_id IS NULL) = (number IS NULL)) NOT VALID,
    ADD CONSTRAINT jobs_trial_trains CHECK (trial_id IS NULL OR kind = 'training') NOT VALID;
ALTER TABLE ledger
    ADD CONSTRAINT ledger_trial_check CHECK (trial_id IS NULL OR experiment_id IS NOT NULL) NOT VALID;
