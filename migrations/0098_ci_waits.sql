-- A look at the registry is no job: while trials only ask for their image, their run goes on waiting, and the wait is not
-- counted anew with each look.
CREATE OR REPLACE VIEW ci_waits AS
SELECT r.id AS run_id, e.paused_reason, queued.reason AS trial_reason,
       CASE WHEN e.state = 'running' AND e.paused_reason IS NOT NULL THEN 'paused'
            WHEN e.pins_image AND e.image_digest IS NULL AND queued.reason IS NOT NULL AND NOT busy.is_so THEN 'image' END AS kind,
       busy.is_so AS is_busy
FROM ci_runs r
JOIN experiments e ON e.id = r.experiment_id
LEFT JOIN LATERAL (SELECT t.reason FROM trials t
                   WHERE t.experiment_id = e.id AND t.reason IS NOT NULL
                     AND (t.state = 'queued'
                          OR t.state = 'submitting'
                             AND NOT EXISTS (SELECT FROM jobs j WHERE j.trial_id = t.id AND j.settled_at IS NULL))
                   ORDER BY t.id LIMIT 1) queued ON true
CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM trials t WHERE t.experiment_id = e.id
                                   AND (t.state IN ('running', 'stopping')
                                        OR t.state = 'submitting'
                                           AND EXISTS (SELECT FROM jobs j WHERE j.trial_id = t.id AND j.settled_at IS NULL)))
                                   AS is_so) busy
WHERE r.verdict IS NULL;
