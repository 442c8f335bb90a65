-- One run for what runs of a commit, whoever tells of it; what ends a run besides its trials; and what it waits for.
ALTER TABLE ci_runs
    -- Hash of the commit and of what the template takes in: beside the template's version, all that decides what runs.
    -- Runs from before have none, and are joined by nothing.
    ADD COLUMN what_runs text CHECK (length(what_runs) = 64),
    -- Deliveries of the same join this run. False once another one has taken its place.
    ADD COLUMN takes_deliveries boolean NOT NULL DEFAULT true,
    -- The run that measures the same again: what is shown beside the commit is shown of that one.
    ADD COLUMN repeated_by uuid REFERENCES ci_runs,
    -- The run of a newer commit of its branch.
    ADD COLUMN superseded_by uuid REFERENCES ci_runs,
    -- What the branch was before, as the code's host tells it: commits are ordered by it.
    ADD COLUMN previous_commit text CHECK (length(previous_commit) <= 64),
    -- Branches that came to the same commit later.
    ADD COLUMN other_branches text[] NOT NULL DEFAULT '{}' CHECK (cardinality(other_branches) <= 20),
    -- Why nothing of it runs, as it was last shown, and since when.
    ADD COLUMN waits text CHECK (waits IN ('paused', 'image')),
    ADD COLUMN waits_since timestamptz,
    ADD CHECK ((waits IS NULL) = (waits_since IS NULL));
-- A commit of a branch may be measured again now; what is once only is the run.
DROP INDEX ci_deliveries_once;

-- What runs without a verdict wait for.
CREATE VIEW ci_waits AS
SELECT r.id AS run_id, e.paused_reason, queued.reason AS trial_reason,
       CASE WHEN e.state = 'running' AND e.paused_reason IS NOT NULL THEN 'paused'
            WHEN e.pins_image AND e.image_digest IS NULL AND queued.reason IS NOT NULL AND NOT busy.is_so THEN 'image' END AS kind,
       busy.is_so AS is_busy
FROM ci_runs r
JOIN experiments e ON e.id = r.experiment_id
LEFT JOIN LATERAL (SELECT t.reason FROM trials t
                   WHERE t.experiment_id = e.id AND t.state = 'queued' AND t.reason IS NOT NULL
                   ORDER BY t.id LIMIT 1) queued ON true
CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM trials t WHERE t.experiment_id = e.id
                                   AND t.state IN ('submitting', 'running', 'stopping')) AS is_so) busy
WHERE r.verdict IS NULL;
