-- Apart, because it reads the whole table and must lock nobody meanwhile.

ALTER TABLE ledger
    VALIDATE CONSTRAINT ledger_component_check,
    VALIDATE CONSTRAINT ledger_resource_check,
    VALIDATE CONSTRAINT ledger_settlement_check,
    VALIDATE CONSTRAINT ledger_component_of_resource;
