"""The service: experiments, plans, runs, prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ._experiments import Experiment, Trial, history_of, started
from ._transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd

Document = dict[str, Any] | str | Path
"""A document: a dictionary, or the path of a JSON file."""


def load(document: Document) -> Any:
    """Read a document from its file, unless it is one already."""
    if isinstance(document, dict):
        return document
    text = Path(document).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{document} is not JSON ({error}); of YAML, pass what yaml.safe_load makes of it") from error


class Client:
    """One service, with one key.

    Address and key come from BAKEOFF_URL and BAKEOFF_API_KEY unless they are passed, else from the profile that
    `bakeoff login` has kept. Requests that are safe to repeat are tried again; what starts something carries an
    idempotency key, so that it starts once.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, profile: str | None = None) -> None:
        self._transport = Transport(url, api_key, profile)
        self.experiments = Experiments(self._transport)
        self.runs = Runs(self._transport)

    def plan(self, spec: Document) -> dict[str, Any]:
        """Return what an experiment would do and cost, without starting it: findings, forecasts, requests."""
        return dict(self._transport.post("/v1/plans", load(spec)))

    def lint(self, document: Document, *, fix: bool = False) -> dict[str, Any]:
        """Check a document of any known kind: an experiment, a CreateTrainingJob body, an estimator's arguments.

        With `fix`, `fixed` is the document with every finding mended that can be.
        """
        params = {"fix": "true"} if fix else {}
        return dict(self._transport.send("POST", "/v1/lint", json=load(document), params=params).json())

    def draft(self, *documents: Any, answers: dict[str, Any] | None = None) -> dict[str, Any]:
        """Make an experiment from what you have; nothing is started.

        Documents are an estimator's or a ModelTrainer's arguments, a CreateTrainingJob body, what boto3's
        `describe_training_job` answers, a model's `config.json` or its name, a configuration of DeepSpeed,
        Axolotl, LLaMA-Factory, TRL or accelerate, a W&B run's `config` and metadata; or paths of JSON files with one.
        `spec` is the experiment; `questions` has what was proposed and what only you know: answer by pointer.
        """
        read = [load(document) if _is_file(document) else document for document in documents]
        texts = [json.loads(json.dumps(document, default=str)) for document in read]
        body = {"documents": texts, "answers": answers or {}}
        return dict(self._transport.post("/v1/imports", body))

    def trial(self, trial_id: str) -> Trial:
        """Return a trial by its id."""
        return Trial(self._transport, self._transport.get(f"/v1/trials/{trial_id}"))

    def compare(self, ids: Iterable[str]) -> list[dict[str, Any]]:
        """Return experiments, trials and runs outside SageMaker side by side, a row for each trial and run."""
        kinds = {"run_": "run_id", "trl_": "trial_id"}
        of: dict[str, list[str]] = {}
        for one in ids:
            of.setdefault(kinds.get(one[:4], "experiment_id"), []).append(one)
        return list(self._transport.get("/v1/comparison", **of)["rows"])

    def prices(self, instance_type: str | None = None, **filters: Any) -> list[dict[str, Any]]:
        """Return prices, each with its source and date."""
        return list(self._transport.items("/v1/prices", instance_type=instance_type, **filters))

    def instance_types(self) -> list[dict[str, Any]]:
        """Return the catalog: accelerators, memory, network."""
        return list(self._transport.items("/v1/instance-types"))

    def whoami(self) -> dict[str, Any]:
        """Return the key's project, role and name."""
        return dict(self._transport.get("/v1/whoami"))

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Send any request of the API, and return its JSON; options are `params`, `json`, `headers`, `once`."""
        answer = self._transport.send(method, path, **options)
        return answer.json() if answer.content else None

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self._transport.url}>"


def _is_file(document: Any) -> bool:
    """Whether it is a path of a file that there is; a text may also be a model's name, or a log."""
    if not isinstance(document, str | Path):
        return False
    try:
        return Path(document).is_file()
    except (OSError, ValueError):  # too long for a path
        return False


class Experiments:
    """The experiments of the key's project."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, spec: Document) -> Experiment:
        """Start an experiment. `Client.plan` shows before what it would do and cost."""
        made = self._transport.post("/v1/experiments", load(spec), once=True)
        return started(self._transport, made)

    def get(self, experiment_id: str) -> Experiment:
        """Return an experiment by its id."""
        return Experiment(self._transport, {"id": experiment_id}).refresh()

    def list(self, **filters: Any) -> Iterator[Experiment]:
        """Yield experiments, the newest first.

        Filters are those of the API: `state`, `name_contains`, `label`, `created_by`, `workload`, `instance_type`, ….
        """
        for raw in self._transport.items("/v1/experiments", **filters):
            yield Experiment(self._transport, raw)

    def frame(self, **filters: Any) -> pd.DataFrame:
        """Return the list as a DataFrame, a row for each experiment."""
        import pandas as pd

        return pd.json_normalize([one.raw for one in self.list(**filters)])


class Run:
    """A run outside SageMaker, whose metrics are pushed and compared with those of trials."""

    def __init__(self, transport: Transport, raw: dict[str, Any]) -> None:
        self._transport = transport
        self.raw = raw

    @property
    def id(self) -> str:
        """`run_…`."""
        return str(self.raw["id"])

    def push(self, metrics: str | bytes | Path | Iterable[dict[str, Any]], **parameters: Any) -> dict[str, Any]:
        """Store metrics: a file that a training has written, its contents, or records with `timestamp` and `step`.

        Parameters are those of the API: `started_at` for files without times, `metric` for one without a name, ….
        The answer says what was recognised as what, and what was not read.
        """
        if isinstance(metrics, str | Path) and _is_file(metrics):
            body: str | bytes = Path(metrics).read_bytes()
        elif isinstance(metrics, Path):
            raise FileNotFoundError(metrics)
        elif isinstance(metrics, str | bytes):
            body = metrics
        else:
            body = "\n".join(json.dumps(record) for record in metrics)
        answer = self._transport.send(
            "POST",
            f"/v1/runs/{self.id}/metrics",
            content=body,
            params=parameters,
            headers={"content-type": "text/plain"},
            repeatable=True,  # a point that is sent twice is stored once
        )
        return dict(answer.json())

    def history(self, metrics: str | Iterable[str] | None = None, *, points: int = 500) -> pd.DataFrame:
        """Return its metrics over time, as `Trial.history`."""
        return history_of(self._transport, {"run_id": self.id}, metrics, points)

    def end(self, state: str = "completed") -> Run:
        """Say that it has `completed` or `failed`."""
        self.raw = self._transport.post(f"/v1/runs/{self.id}/end", {"state": state})
        return self

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.raw.get('spec', {}).get('name', '')}: {self.raw.get('state')}>"


class Runs:
    """Runs outside SageMaker."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, hardware: str, accelerator_count: int, **more: Any) -> Run:
        """Make a run, to which metrics can be pushed; `usd_per_hour` gives it a price."""
        body = {"name": name, "hardware": hardware, "accelerator_count": accelerator_count, **more}
        return Run(self._transport, self._transport.post("/v1/runs", body))

    def get(self, run_id: str) -> Run:
        """Return a run by its id."""
        return Run(self._transport, self._transport.get(f"/v1/runs/{run_id}"))

    def list(self, **filters: Any) -> Iterator[Run]:
        """Yield runs, the newest first."""
        for raw in self._transport.items("/v1/runs", **filters):
            yield Run(self._transport, raw)
