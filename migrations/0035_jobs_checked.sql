-- Apart, because each reads its whole table and must lock nobody meanwhile.

ALTER TABLE jobs
    VALIDATE CONSTRAINT jobs_kind_check,
    VALIDATE CONSTRAINT jobs_account_check,
    VALIDATE CONSTRAINT jobs_trial_check,
    VALIDATE CONSTRAINT jobs_trial_trains;

ALTER TABLE ledger
    VALIDATE CONSTRAINT ledger_trial_check;
