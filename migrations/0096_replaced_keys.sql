-- The key that was made in the place of this one: a key is replaced once, and its life is not measured by its overlap.
ALTER TABLE api_keys ADD COLUMN replaced_by uuid REFERENCES api_keys;
