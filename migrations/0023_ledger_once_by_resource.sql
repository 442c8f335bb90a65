-- With the defaults as strict as the key before it. Readers go on while it is built.

CREATE UNIQUE INDEX ledger_once_by_resource ON ledger (attempt_id, kind, component, resource, settlement, line);
