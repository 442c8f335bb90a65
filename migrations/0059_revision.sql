-- How often a person has changed a running experiment, and once more: two people who change it at once must notice.
ALTER TABLE experiments ADD COLUMN revision integer NOT NULL DEFAULT 1;
