-- Lists walk an index in the order of ids, which is the order of creation.
DROP INDEX experiments_by_project;
CREATE INDEX experiments_by_project ON experiments (project_id, id);
