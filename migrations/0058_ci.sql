-- CI templates: their versions, which deliveries start them, and rotated secrets. Deliveries: of which commit they were.
ALTER TABLE ci_templates
    ADD COLUMN version integer NOT NULL DEFAULT 1 CHECK (version >= 1),
    -- Secrets are derived; the one before the newest counts until `previous_secret_until`.
    ADD COLUMN secret_version integer NOT NULL DEFAULT 1 CHECK (secret_version >= 1),
    ADD COLUMN previous_secret_until timestamptz,
    ADD COLUMN changed_at timestamptz,
    ADD COLUMN deleted_at timestamptz;
UPDATE ci_templates SET changed_at = created_at;
ALTER TABLE ci_templates ALTER COLUMN changed_at SET NOT NULL;
-- A deleted template leaves its name to another.
ALTER TABLE ci_templates DROP CONSTRAINT ci_templates_name_key;
CREATE UNIQUE INDEX ci_templates_name_key ON ci_templates (project_id, name) WHERE deleted_at IS NULL;

CREATE TABLE ci_template_versions (
    template_id uuid NOT NULL REFERENCES ci_templates,
    version integer NOT NULL CHECK (version >= 1),
    spec jsonb NOT NULL,
    settings jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (template_id, version)
);
INSERT INTO ci_template_versions (template_id, version, spec, settings, created_at)
SELECT id, 1, spec, '{"v": 1}', created_at FROM ci_templates;
ALTER TABLE ci_templates DROP COLUMN spec;

-- Deliveries from before this have no commit.
ALTER TABLE ci_deliveries
    ADD COLUMN template_version integer NOT NULL DEFAULT 1 CHECK (template_version >= 1),
    ADD COLUMN sender text CHECK (sender IN ('bakeoff', 'github', 'gitlab')),
    ADD COLUMN event text CHECK (event IN ('push', 'pull_request', 'trigger')),
    ADD COLUMN commit_sha text CHECK (length(commit_sha) BETWEEN 7 AND 64),
    ADD COLUMN git_ref text CHECK (length(git_ref) <= 250),
    ADD COLUMN pull_request bigint CHECK (pull_request > 0);
-- A push and its pull request tell of the same commit of the same branch.
CREATE UNIQUE INDEX ci_deliveries_once ON ci_deliveries (template_id, template_version, commit_sha, git_ref)
    WHERE sender IN ('github', 'gitlab');
