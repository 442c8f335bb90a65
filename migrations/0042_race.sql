-- Trials that can no longer change their experiment's answer are stopped; those before ran in full.

LOCK TABLE experiments, trials IN SHARE UPDATE EXCLUSIVE MODE;
-- When the race is judged next, on the domain clock; empty where every trial runs to its end.
ALTER TABLE experiments ADD COLUMN race_due_at timestamptz;
-- Why a stop was requested, unless a person cancelled.
ALTER TABLE trials ADD COLUMN stop_reason text;
