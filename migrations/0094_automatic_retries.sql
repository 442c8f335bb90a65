-- A retry that no person has asked for: a race stops it like any other trial.
ALTER TABLE trials ADD COLUMN is_automatic boolean NOT NULL DEFAULT false;
