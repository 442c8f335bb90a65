"""Tables of the service as pandas DataFrames."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from ._transport import Transport


def read_table(transport: Transport, path: str) -> pd.DataFrame:
    """Read a table: as Parquet where pyarrow is installed, else as CSV."""
    import pandas as pd

    if importlib.util.find_spec("pyarrow"):
        answer = transport.send("GET", path, params={"format": "parquet"})
        return pd.read_parquet(io.BytesIO(answer.content))
    answer = transport.send("GET", path, params={"format": "csv"})
    frame = pd.read_csv(io.StringIO(answer.text))
    for name in frame.columns:
        if name.endswith("_at") or name in ("stalled_since", "price_effective_from"):
            frame[name] = pd.to_datetime(frame[name], utc=True)
    return frame


def frame_of_series(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """Put series under one another: columns `at`, `step`, `metric`, `value`, `candidate`, `id`."""
    import pandas as pd

    parts = [
        pd.DataFrame(
            {
                "at": pd.to_datetime(line["points"]["at_seconds"], unit="s", utc=True),
                "step": pd.array(line["points"]["step"], dtype="Int64"),
                "metric": line["metric"],
                "value": pd.array(line["points"]["value"], dtype="Float64").astype("float64"),
                "candidate": line["candidate"],
                "id": line.get("trial_id") or line.get("run_id"),
            }
        )
        for line in lines
    ]
    columns = ["at", "step", "metric", "value", "candidate", "id"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
