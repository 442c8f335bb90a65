-- no-transaction
-- Deliveries that are over are forgotten after a while.
CREATE INDEX CONCURRENTLY IF NOT EXISTS webhook_deliveries_over ON webhook_deliveries (ended_at) WHERE ended_at IS NOT NULL;
