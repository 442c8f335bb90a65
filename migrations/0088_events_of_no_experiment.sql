-- A job of this installation that no row of this database knows has no experiment: its alarm goes to every project.
LOCK TABLE events IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE events ALTER COLUMN experiment_id DROP NOT NULL;

-- Without an experiment, whoever follows anything is woken.
CREATE OR REPLACE FUNCTION announce_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('bakeoff_events', NEW.project_id || '/' || coalesce(NEW.experiment_id::text, ''));
    RETURN NULL;
END $$;
