-- Instances that a job left behind whose accelerator was defective: nobody is to get them again.
LOCK TABLE warm_pools IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE warm_pools ADD COLUMN is_defective boolean NOT NULL DEFAULT false;

-- A job without a model had an empty address, which the SDK fills in where SageMaker names none.
UPDATE jobs SET model_s3_uri = NULL WHERE model_s3_uri = '';
