-- What holds for every row from now on.
LOCK TABLE experiments, trials IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE experiments ALTER COLUMN region DROP DEFAULT;
ALTER TABLE trials
    ALTER COLUMN region DROP DEFAULT,
    ALTER COLUMN volume_gb DROP DEFAULT,
    ADD CONSTRAINT trials_volume_gb_check CHECK (volume_gb >= 0) NOT VALID,
    ADD CONSTRAINT trials_keep_alive_seconds_check CHECK (keep_alive_seconds > 0) NOT VALID,
    ADD CONSTRAINT trials_checkpoint_interval_seconds_check CHECK (checkpoint_interval_seconds >= 0) NOT VALID,
    ADD CONSTRAINT trials_billed_seconds_max_check CHECK (billed_seconds_max > 0) NOT VALID,
    ADD CONSTRAINT trials_checkpoint_check
        CHECK (num_nulls(checkpoint_s3_uri, checkpoint_local_path, checkpoint_interval_seconds) IN (0, 3)) NOT VALID;
