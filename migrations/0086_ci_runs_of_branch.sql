-- no-transaction
-- The runs of a branch: which of them a newer commit ends, and whether a delivery is older than one of them.
CREATE INDEX CONCURRENTLY IF NOT EXISTS ci_runs_of_branch ON ci_runs (template_id, branch, id);
