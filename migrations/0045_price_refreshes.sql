-- When each region's price list is read again, on the domain clock.

CREATE TABLE price_refreshes (
    region text PRIMARY KEY,
    due_at timestamptz NOT NULL
);
