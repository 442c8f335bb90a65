"""Experiments and their trials."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from ._errors import UnavailableError, WaitTimeoutError
from ._html import of_recommendation
from ._tables import frame_of_series, read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd

    from ._transport import Transport

_OVER = ("completed", "failed", "cancelled")
_TRIAL_OVER = ("completed", "failed", "stopped", "refused")
_POLL_SECONDS = 3
# What the service takes at once: metrics, and points of all trials and metrics.
_METRICS_MAX = 16
_POINTS_MAX = 300_000


class Recommendation:
    """What to buy and why. In a notebook it shows itself as a table."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        """The document, with everything that has no property here."""

    @property
    def headline(self) -> str:
        """The conclusion in one sentence."""
        return str(self.raw["headline"])

    @property
    def conclusion(self) -> str:
        """`clear`, `leading`, `reached`, `infeasible`, `not_enough_evidence`, …; others may come."""
        return str(self.raw["conclusion"])

    @property
    def provisional(self) -> bool:
        """True while trials are still running, or one waits for a person."""
        return bool(self.raw["provisional"])

    @property
    def reasons(self) -> list[str]:
        """Why, the most important first."""
        return list(self.raw["reasons"])

    @property
    def ranked(self) -> list[dict[str, Any]]:
        """The choices, the best first, each with speed, dollars and odds."""
        return list(self.raw["ranked"])

    @property
    def not_ranked(self) -> list[dict[str, Any]]:
        """What was left out, each with its reason and how to mend it."""
        return list(self.raw["not_ranked"])

    @property
    def candidate(self) -> str | None:
        """Name of the first choice; None without one."""
        return str(self.ranked[0]["candidate"]) if self.ranked else None

    def frame(self) -> pd.DataFrame:
        """Return the ranked choices, a row each; odds are columns `odds.p_best` and so on."""
        import pandas as pd

        return pd.json_normalize(self.ranked)

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"- {reason}" for reason in self.reasons)])

    def __repr__(self) -> str:
        return f"<Recommendation {self.conclusion}: {self.headline}>"

    def _repr_html_(self) -> str:
        return of_recommendation(self.raw)


class Trial:
    """One candidate of an experiment, with one purchase option."""

    def __init__(self, transport: Transport, raw: dict[str, Any]) -> None:
        self._transport = transport
        self.raw = raw

    @property
    def id(self) -> str:
        """`trl_…`."""
        return str(self.raw["id"])

    @property
    def state(self) -> str:
        """As of the last `refresh`: `queued`, `running`, `completed`, `failed`, `stopped`, …."""
        return str(self.raw["state"])

    @property
    def candidate(self) -> str:
        """Name of its candidate."""
        return str((self.raw.get("plan") or {}).get("candidate", ""))

    @property
    def instance_type(self) -> str:
        """Such as `ml.p5.48xlarge`."""
        return str((self.raw.get("plan") or {}).get("instance_type", ""))

    @property
    def reason(self) -> str | None:
        """Why it ended or was refused, or what it waits for."""
        return self.raw.get("reason")

    def refresh(self) -> Trial:
        """Read it again."""
        self.raw = self._transport.get(f"/v1/trials/{self.id}")
        return self

    def history(self, metrics: str | Iterable[str] | None = None, *, points: int = 500) -> pd.DataFrame:
        """Return its metrics over time: columns `at`, `step`, `metric`, `value`, `candidate`, `id`.

        Without names, all of them. Long series are thinned to `points`, extremes kept.
        """
        return history_of(self._transport, {"trial_id": self.id}, metrics, points)

    def logs(self, *, grep: str | None = None, tail: int | None = None, **parameters: Any) -> Iterator[str]:
        """Yield the lines of its log that are written by now, oldest first."""
        token = None
        while True:
            part = self._transport.get(
                f"/v1/trials/{self.id}/logs", grep=grep, tail=tail, page_token=token, **parameters
            )
            yield from (str(line["message"]) for line in part["lines"])
            token = part.get("next_page_token")
            if tail or part["is_at_end"] or not token:
                return

    def diagnosis(self) -> dict[str, Any]:
        """Return why its jobs failed, with the lines that show it, and what to do."""
        return dict(self._transport.get(f"/v1/trials/{self.id}/diagnosis"))

    def checkpoints(self) -> dict[str, Any]:
        """Return its checkpoints in S3."""
        return dict(self._transport.get(f"/v1/trials/{self.id}/checkpoints"))

    def stop(self, reason: str | None = None) -> Trial:
        """Stop it; what it has measured counts."""
        self._transport.post(f"/v1/trials/{self.id}/stop", {"reason": reason} if reason else {})
        return self.refresh()

    def retry(self) -> Trial:
        """Do a failed one once more, as a new trial."""
        made = self._transport.post(f"/v1/trials/{self.id}/retry")
        trial = Trial(self._transport, {"id": made["trials"][0]["id"], "state": "queued"})
        try:
            return trial.refresh()
        except UnavailableError:  # it was made all the same
            return trial

    def __repr__(self) -> str:
        return f"<Trial {self.id} {self.candidate} on {self.instance_type}: {self.state}>"


class Experiment:
    """One workload on several candidates. In a notebook it shows its answer."""

    def __init__(self, transport: Transport, raw: dict[str, Any]) -> None:
        self._transport = transport
        self.raw = raw

    @property
    def id(self) -> str:
        """`exp_…`."""
        return str(self.raw["id"])

    @property
    def name(self) -> str:
        """As its specification says."""
        return str(self.raw["name"])

    @property
    def state(self) -> str:
        """As of the last `refresh`: `running`, `cancelling`, `completed`, `failed`, `cancelled`."""
        return str(self.raw["state"])

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in _OVER

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What the linter has found in its specification."""
        if "findings" not in self.raw:  # a row of a list has none
            self.refresh()
        return list(self.raw["findings"])

    @property
    def url(self) -> str:
        """Its page in the dashboard."""
        return f"{self._transport.url}/experiments/{self.id}"

    def refresh(self) -> Experiment:
        """Read it again."""
        self.raw = self._transport.get(f"/v1/experiments/{self.id}")
        return self

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> Experiment:
        """Wait until it has ended, with a progress bar where tqdm is installed.

        Interrupting the wait leaves the experiment running. Raises `WaitTimeoutError` after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        paused: str | None = None
        bar = _Bar(self.name) if progress else None
        try:
            while True:
                left = 60.0 if until is None else until - time.monotonic()
                seconds = math.ceil(max(0, min(left, _POLL_SECONDS if bar else 60)))
                self.raw = self._transport.get(f"/v1/experiments/{self.id}", wait_seconds=seconds)
                if bar:
                    bar.show(self.comparison())
                if self.is_over:
                    return self
                if self.raw.get("paused_reason") not in (None, paused):
                    paused = self.raw["paused_reason"]
                    print(f"{self.name} is paused: {paused}; experiment.resume() lets it go on")
                if left <= 0:
                    raise WaitTimeoutError(f"{self.name} is still running after {timeout:g} seconds", detail=self.url)
        except KeyboardInterrupt:
            print(f"{self.name} is still running: experiment.cancel() stops it, {self.url} shows it")
            raise
        finally:
            if bar:
                bar.close()

    def recommendation(self) -> Recommendation:
        """Return what to buy and why, by what is measured so far."""
        return Recommendation(self._transport.get(f"/v1/experiments/{self.id}/recommendation"))

    def comparison(self) -> list[dict[str, Any]]:
        """Return a row for each trial: speed, dollars, phases, progress, estimates."""
        return list(self._transport.get(f"/v1/experiments/{self.id}/comparison")["rows"])

    def frame(self) -> pd.DataFrame:
        """Return the comparison as a DataFrame, times and figures typed."""
        return read_table(self._transport, f"/v1/experiments/{self.id}/comparison")

    def trials(self) -> list[Trial]:
        """Return its trials, in the order of the specification."""
        found = self._transport.items(f"/v1/experiments/{self.id}/trials")
        return [Trial(self._transport, raw) for raw in found]

    def trial(self, candidate: str) -> Trial:
        """Return the first trial of a candidate."""
        trials = self.trials()
        for trial in trials:
            if trial.candidate == candidate:
                return trial
        known = ", ".join(sorted({trial.candidate for trial in trials}))
        raise KeyError(f"no candidate is called {candidate!r}; there are {known}")

    def history(self, metrics: str | Iterable[str] | None = None, *, points: int = 500) -> pd.DataFrame:
        """Return the metrics of all its trials over time, as `Trial.history`."""
        return history_of(self._transport, {"experiment_id": self.id}, metrics, points)

    def race(self) -> dict[str, Any]:
        """Return how the choices stood as dollars were spent, and who is out since when and why."""
        return dict(self._transport.get(f"/v1/experiments/{self.id}/race"))

    def ledger(self) -> Iterator[dict[str, Any]]:
        """Yield each cent that was reserved, given back and spent."""
        return self._transport.items(f"/v1/experiments/{self.id}/ledger")

    def plot(self, kind: str = "cost", **options: Any) -> Any:
        """Draw `cost` (dollars and hours of the full run), `loss`, `speed` or `race`; needs matplotlib."""
        from ._plots import draw

        return draw(self, kind, **options)

    def preview_full_run(self, candidate: str | None = None, **options: Any) -> dict[str, Any]:
        """Return what buying a choice means: the least budget, the plan, and the exact request."""
        path = f"/v1/experiments/{self.id}/full-run"
        return dict(self._transport.get(path, candidate=candidate, **options))

    def buy(self, budget_usd: float, candidate: str | None = None, **options: Any) -> Experiment:
        """Start the full run on the recommended candidate, or on another one that is ranked.

        `budget_usd` caps it; `preview_full_run` says the least. Never on a provisional answer.
        """
        body = {"budget_usd": budget_usd, "candidate": candidate, **options}
        body = {name: value for name, value in body.items() if value is not None}
        made = self._transport.post(f"/v1/experiments/{self.id}/full-run", body, once=True)
        return started(self._transport, made)

    def add_candidate(self, candidate: dict[str, Any]) -> dict[str, Any]:
        """Add a candidate while it runs."""
        return dict(self._transport.post(f"/v1/experiments/{self.id}/candidates", candidate))

    def change(self, **changes: Any) -> Experiment:
        """Change `budget_usd`, `deadline_hours`, `priority` or `labels`."""
        self._transport.send(
            "PATCH",
            f"/v1/experiments/{self.id}",
            json=changes,
            headers={"if-match": f'"{self.raw["revision"]}"'} if "revision" in self.raw else {},
        )
        return self.refresh()

    def pause(self) -> Experiment:
        """Start nothing new; what runs goes on."""
        self._transport.post(f"/v1/experiments/{self.id}/pause")
        return self.refresh()

    def resume(self) -> Experiment:
        """End a pause."""
        self._transport.post(f"/v1/experiments/{self.id}/resume")
        return self.refresh()

    def cancel(self) -> Experiment:
        """Stop everything; what is measured by then is kept."""
        self._transport.post(f"/v1/experiments/{self.id}/cancel")
        return self.refresh()

    def __repr__(self) -> str:
        return f"<Experiment {self.id} {self.name}: {self.state}>"

    def _repr_html_(self) -> str:
        return self.recommendation()._repr_html_()


def started(transport: Transport, made: dict[str, Any]) -> Experiment:
    """Return what was started, with its id also where it cannot be read just now: it runs, and costs."""
    experiment = Experiment(transport, made)
    try:
        return experiment.refresh()
    except UnavailableError:
        return experiment


def history_of(
    transport: Transport, of: dict[str, str], metrics: str | Iterable[str] | None, points: int
) -> pd.DataFrame:
    """Read metrics over time; all that there are, without names."""
    if metrics is None:
        metrics = [metric["metric"] for metric in transport.get("/v1/series", **of)["metrics"]]
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    # Those of an experiment that are too many for one answer are asked for by their trials.
    trials = (
        [str(raw["id"]) for raw in transport.items(f"/v1/experiments/{of['experiment_id']}/trials")]
        if "experiment_id" in of
        else []
    )
    at_once = max(1, _POINTS_MAX // points)
    parts: list[dict[str, Any]] = [of]
    if len(trials) > at_once:
        parts = [{"trial_id": trials[first : first + at_once]} for first in range(0, len(trials), at_once)]
    size = max(1, min(_METRICS_MAX, at_once // max(1, min(len(trials), at_once))))
    lines: list[dict[str, Any]] = []
    for part in parts:
        for first in range(0, len(names), size):
            read = transport.get("/v1/series", metric=names[first : first + size], points=points, **part)
            lines += read["series"]
    return frame_of_series(lines)


class _Bar:
    """A progress bar by tqdm, where it is installed."""

    def __init__(self, name: str) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            self._bar: Any = None
            return
        self._bar = tqdm(total=1.0, desc=name, bar_format="{desc}: {percentage:3.0f}%|{bar}| {postfix}")

    def show(self, rows: list[dict[str, Any]]) -> None:
        if self._bar is None:
            return
        done = sum(1.0 if row["state"] in _TRIAL_OVER else (row.get("progress") or 0.0) for row in rows)
        states = [row["state"] for row in rows]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        dollars = sum(row.get("total_usd") or 0.0 for row in rows)
        self._bar.n = min(1.0, done / max(len(rows), 1))
        self._bar.set_postfix_str(f"{counts}; ${dollars:,.2f}")
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
