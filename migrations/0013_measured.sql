-- Plans look up what was measured of the same workload before.
CREATE INDEX experiments_of_workload ON experiments (workload_id, id);
