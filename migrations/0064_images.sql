-- Experiments of CI runs: no trial starts before its image is in the repository, and all of them run the same one.
ALTER TABLE experiments
    ADD COLUMN pins_image boolean NOT NULL DEFAULT false,
    ADD COLUMN image_digest text,
    ADD CONSTRAINT experiments_image_digest_check CHECK (image_digest LIKE 'sha256:%' AND length(image_digest) <= 100) NOT VALID;
