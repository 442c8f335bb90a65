-- The jobs that are not where nearly all of them are: of a region that was served before, so nobody waits for their rows.

UPDATE jobs j SET region = place.region, account = place.account
FROM (SELECT own.id, t.region,
             coalesce(substring(own.job_arn FROM '^arn:[^:]*:sagemaker:[^:]*:([0-9]{12}):'), own.account) AS account
      FROM jobs own JOIN trials t ON t.id = own.trial_id) place
WHERE j.id = place.id AND (j.region <> place.region OR j.account IS DISTINCT FROM place.account);
