-- What happened, in order. A NOTIFY wakes listeners; they re-read by id, so a lost one loses nothing.

CREATE TABLE events (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id    uuid NOT NULL REFERENCES projects,
    experiment_id uuid NOT NULL REFERENCES experiments,
    trial_id      uuid REFERENCES trials,
    kind          text NOT NULL,
    severity      text NOT NULL CHECK (severity IN ('info', 'warning', 'alarm')),
    message       text NOT NULL,
    recorded_at   timestamptz NOT NULL
);
CREATE INDEX events_by_experiment ON events (experiment_id, id);
CREATE INDEX events_by_trial ON events (trial_id, id);

CREATE FUNCTION announce_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('bakeoff_events', NEW.experiment_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER events_announce AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION announce_event();
