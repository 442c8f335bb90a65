-- Apart, because each reads the whole table and must lock nobody meanwhile. Also those that were added before.

ALTER TABLE warm_pools
    VALIDATE CONSTRAINT warm_pools_absent_check,
    VALIDATE CONSTRAINT warm_pools_state_check,
    VALIDATE CONSTRAINT warm_pools_due_check,
    VALIDATE CONSTRAINT warm_pools_settled_check;

ALTER TABLE trials
    VALIDATE CONSTRAINT trials_no_capacity_check,
    VALIDATE CONSTRAINT trials_volume_gb_check,
    VALIDATE CONSTRAINT trials_keep_alive_seconds_check,
    VALIDATE CONSTRAINT trials_checkpoint_interval_seconds_check,
    VALIDATE CONSTRAINT trials_billed_seconds_max_check,
    VALIDATE CONSTRAINT trials_checkpoint_check;
