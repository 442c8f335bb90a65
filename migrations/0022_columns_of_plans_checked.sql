-- Apart, because each reads the whole table and must lock nobody meanwhile.

ALTER TABLE trials VALIDATE CONSTRAINT trials_volume_gb_check;
ALTER TABLE trials VALIDATE CONSTRAINT trials_keep_alive_seconds_check;
ALTER TABLE trials VALIDATE CONSTRAINT trials_checkpoint_interval_seconds_check;
ALTER TABLE trials VALIDATE CONSTRAINT trials_billed_seconds_max_check;
ALTER TABLE trials VALIDATE CONSTRAINT trials_checkpoint_check;
