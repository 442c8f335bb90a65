-- The few that were left behind in another region.

UPDATE warm_pools p SET region = j.region FROM jobs j WHERE j.id = p.job_id AND p.region <> j.region;
UPDATE orphaned_jobs o SET region = j.region FROM jobs j WHERE j.id = o.job_id AND o.region <> j.region;
