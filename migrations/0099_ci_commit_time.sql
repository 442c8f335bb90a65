-- When a run's commit was made, at the latest, as its host tells it: which of two pushes came first, where those between
-- them were never told. A version before this one writes none.
ALTER TABLE ci_runs ADD COLUMN made_at timestamptz;
