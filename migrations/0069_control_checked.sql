-- Apart, because each reads its whole table and must lock nobody meanwhile.
ALTER TABLE experiments VALIDATE CONSTRAINT experiments_created_by_check, VALIDATE CONSTRAINT experiments_labels_check,
    VALIDATE CONSTRAINT experiments_put_away, VALIDATE CONSTRAINT experiments_purged,
    VALIDATE CONSTRAINT experiments_image_digest_check;
ALTER TABLE trials VALIDATE CONSTRAINT trials_retry_of_fkey;
