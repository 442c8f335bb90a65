"""Reads the service's tables as people do: pandas and DuckDB, CSV, NDJSON and Parquet. Arguments: base URL, API key, experiment,
run. Every format must give the same rows and totals; exits non-zero at the first that does not."""

import os
import io
import math
import sys
import tempfile
import urllib.request

import duckdb
import pandas as pd

base, key, experiment, run = sys.argv[1:]
checks = 0


def fetch(path):
    request = urllib.request.Request(base + path, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as reply:
        return reply.read()


def check(condition, what):
    global checks
    if not condition:
        sys.exit(f"failed: {what}")
    checks += 1


def frames(path):
    mark = "&" if "?" in path else "?"
    body = {name: fetch(f"{path}{mark}format={name}") for name in ("csv", "ndjson", "parquet")}
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(body["parquet"])
        file.flush()
        by_duckdb = duckdb.read_parquet(file.name).df()
    return {
        "csv": pd.read_csv(io.BytesIO(body["csv"])),
        "ndjson": pd.read_json(io.BytesIO(body["ndjson"]), lines=True),
        "parquet": pd.read_parquet(io.BytesIO(body["parquet"])),
        "duckdb": by_duckdb,
    }


def same(a, b):
    return (a is None and b is None) or a == b or (isinstance(a, float) and isinstance(b, float) and (
        (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-12)))


def compare(path, total, count):
    tables = frames(path)
    first = tables["parquet"]
    check(len(first) == count, f"{path}: {len(first)} rows and not {count}")
    for name, table in tables.items():
        check(list(table.columns) == list(first.columns), f"{path} as {name}: other columns")
        check(len(table) == count, f"{path} as {name}: other rows")
        ours, theirs = (float(one[total].sum()) for one in (first, table))
        check(same(ours, theirs), f"{path} as {name}: {total} is {theirs} and not {ours}")


compare(f"/v1/experiments/{experiment}/comparison", "cost_usd", 2)
compare(f"/v1/comparison?experiment_id={experiment}&run_id={run}", "billable_seconds", 3)
compare(f"/v1/runs/{run}/metrics?metric=train_loss", "value", 1000)
print(f"tables: {checks} checks held")
sys.stdout.flush()
# Everything has been checked: an interpreter that shuts down under load sometimes ends in the libraries' own threads ("terminate
# called without an active exception").
os._exit(0)
