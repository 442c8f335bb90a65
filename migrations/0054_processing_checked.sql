-- Apart, because each reads its whole table and must lock nobody meanwhile.
ALTER TABLE experiments VALIDATE CONSTRAINT experiments_kind_check, VALIDATE CONSTRAINT experiments_compare;
ALTER TABLE trials VALIDATE CONSTRAINT trials_job_kind_check, VALIDATE CONSTRAINT trials_options_of_kind;
ALTER TABLE jobs VALIDATE CONSTRAINT jobs_trial_kind, VALIDATE CONSTRAINT jobs_exit_message_check;
ALTER TABLE orphaned_jobs VALIDATE CONSTRAINT orphaned_jobs_kind_check;
ALTER TABLE ledger VALIDATE CONSTRAINT ledger_component_check, VALIDATE CONSTRAINT ledger_component_of_resource;
