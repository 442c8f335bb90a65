-- What holds for every row from now on.
LOCK TABLE ledger IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE ledger
    ADD CONSTRAINT ledger_once UNIQUE USING INDEX ledger_once_by_resource,
    ALTER COLUMN resource DROP DEFAULT,
    ALTER COLUMN settlement DROP DEFAULT,
    ALTER COLUMN line DROP DEFAULT;
ALTER TABLE ledger
    ADD CONSTRAINT ledger_resource_check CHECK (resource IN ('job', 'warm_pool', 'orphaned_job')) NOT VALID,
    ADD CONSTRAINT ledger_settlement_check CHECK (settlement >= 0) NOT VALID,
    ADD CONSTRAINT ledger_component_of_resource CHECK (CASE component WHEN 'storage' THEN true WHEN 'training' THEN resource = 'job'
        WHEN 'cloudwatch' THEN resource = 'job' ELSE resource = component END) NOT VALID;
