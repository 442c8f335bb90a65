-- Apart, because each reads its whole table and must lock nobody meanwhile.
ALTER TABLE trials VALIDATE CONSTRAINT trials_job_kind_check, VALIDATE CONSTRAINT trials_options_of_kind,
    VALIDATE CONSTRAINT trials_quota_instances_check;
ALTER TABLE jobs VALIDATE CONSTRAINT jobs_trial_kind;
ALTER TABLE orphaned_jobs VALIDATE CONSTRAINT orphaned_jobs_kind_check;
ALTER TABLE ledger VALIDATE CONSTRAINT ledger_component_check, VALIDATE CONSTRAINT ledger_component_of_resource;
ALTER TABLE pipeline_steps VALIDATE CONSTRAINT pipeline_steps_kind_check;
