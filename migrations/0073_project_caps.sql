-- A project's cap per calendar month (UTC), beside its total, and what is settled in the month that `month` names. A cap
-- of 0 lets nothing start: new projects begin with the installation's default.
ALTER TABLE projects
    DROP CONSTRAINT projects_budget_usd_check,
    ADD CONSTRAINT projects_budget_usd_check CHECK (budget_usd >= 0),
    ADD COLUMN monthly_budget_usd numeric(18, 6) CHECK (monthly_budget_usd >= 0),
    ADD COLUMN month date CHECK (extract(day FROM month) = 1),
    ADD COLUMN month_settled_usd numeric(18, 6) NOT NULL DEFAULT 0 CHECK (month_settled_usd >= 0);
ALTER TABLE installation
    ADD COLUMN default_project_budget_usd numeric(18, 6) NOT NULL DEFAULT 0 CHECK (default_project_budget_usd >= 0);
