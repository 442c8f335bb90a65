-- Whether a person has stated the endpoint's budget: silence does not raise it. Of endpoints from before it is not known.
ALTER TABLE endpoints ADD COLUMN is_budget_stated boolean NOT NULL DEFAULT true;
