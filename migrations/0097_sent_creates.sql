-- Whether the create of an endpoint's job was sent, and not refused: one that AWS only ever throttled has served nothing,
-- and costs nothing, when its scheduled end passes. Of those that wait during the upgrade, it may have been.
ALTER TABLE endpoints ADD COLUMN sent_job text;
UPDATE endpoints SET sent_job = scheduled_job;
