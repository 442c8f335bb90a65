-- no-transaction
-- Two deliveries of the same at once are one run: this decides, and not a look before the write.
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS ci_runs_of_what_runs ON ci_runs (template_id, template_version, what_runs)
    WHERE takes_deliveries AND what_runs IS NOT NULL;
