-- Events carry data, and each project has one feed. Rows from before keep their sentence.
LOCK TABLE events IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE events ALTER COLUMN message DROP NOT NULL, ADD COLUMN data jsonb;
ALTER TABLE events ADD CONSTRAINT events_say_something CHECK (data IS NOT NULL OR message IS NOT NULL) NOT VALID;

-- Whoever follows a project is woken too.
CREATE OR REPLACE FUNCTION announce_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('bakeoff_events', NEW.project_id || '/' || NEW.experiment_id);
    RETURN NULL;
END $$;
