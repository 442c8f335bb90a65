-- What CI has started for a commit, and what the template's gate says of it.
CREATE TABLE ci_runs (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    template_id uuid NOT NULL,
    template_version integer NOT NULL,
    sender text NOT NULL CHECK (sender IN ('bakeoff', 'github', 'gitlab')),
    event text NOT NULL CHECK (event IN ('push', 'pull_request', 'trigger')),
    commit_sha text NOT NULL CHECK (length(commit_sha) BETWEEN 7 AND 64),
    git_ref text CHECK (length(git_ref) <= 250),
    branch text CHECK (length(branch) <= 250),
    pull_request bigint CHECK (pull_request > 0),
    -- How often the commit was measured, and the newest experiment.
    round integer NOT NULL DEFAULT 1 CHECK (round BETWEEN 1 AND 3),
    experiment_id uuid NOT NULL REFERENCES experiments,
    -- Of trials that have completed, and what was made of them.
    readings jsonb,
    judgement jsonb,
    verdict text CHECK (verdict IN ('passed', 'regressed', 'inconclusive', 'error')),
    created_at timestamptz NOT NULL,
    decided_at timestamptz,
    -- Accepted runs are the baseline of later ones. One that a person has accepted although it regressed begins a level.
    accepted_at timestamptz,
    accepted_by text CHECK (length(accepted_by) <= 100),
    begins_level boolean NOT NULL DEFAULT false,
    FOREIGN KEY (template_id, template_version) REFERENCES ci_template_versions,
    CHECK ((verdict IS NULL) = (decided_at IS NULL)),
    CHECK ((verdict IS NULL) = (readings IS NULL) AND (verdict IS NULL) = (judgement IS NULL)),
    CHECK ((accepted_at IS NULL) = (accepted_by IS NULL) AND (accepted_at IS NULL OR verdict IS NOT NULL)),
    CHECK (NOT begins_level OR accepted_at IS NOT NULL)
);
CREATE INDEX ci_runs_undecided ON ci_runs (experiment_id) WHERE verdict IS NULL;
CREATE INDEX ci_runs_accepted ON ci_runs (template_id, decided_at DESC) WHERE accepted_at IS NOT NULL;
CREATE INDEX ci_runs_of_project ON ci_runs (project_id, id);
CREATE INDEX ci_runs_of_commit ON ci_runs (project_id, commit_sha);

-- The experiments of a run, one for each round.
CREATE TABLE ci_rounds (
    run_id uuid NOT NULL REFERENCES ci_runs,
    round integer NOT NULL CHECK (round BETWEEN 1 AND 3),
    experiment_id uuid NOT NULL UNIQUE REFERENCES experiments,
    PRIMARY KEY (run_id, round)
);

-- Deliveries from before this have no run.
ALTER TABLE ci_deliveries ADD COLUMN run_id uuid REFERENCES ci_runs;
-- The release that every run is compared with, beside its baseline.
ALTER TABLE ci_templates ADD COLUMN release_run_id uuid REFERENCES ci_runs;
