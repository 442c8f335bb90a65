"""Bakeoff: run one training workload on several SageMaker instance types, and learn which to buy.

>>> import bakeoff
>>> client = bakeoff.Client()                      # BAKEOFF_URL and BAKEOFF_API_KEY
>>> experiment = client.experiments.create("spec.json").wait()
>>> print(experiment.recommendation())

`Reporter` sends metrics from inside a training script, and needs the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._reporter import METRIC_DEFINITIONS, Reporter

if TYPE_CHECKING:
    from ._client import Client, Run
    from ._errors import (
        AuthenticationError,
        BakeoffError,
        ConflictError,
        FieldError,
        InvalidRequestError,
        NotFoundError,
        PermissionDeniedError,
        RateLimitError,
        UnavailableError,
        WaitTimeoutError,
    )
    from ._experiments import Experiment, Recommendation, Trial

__version__ = "0.9.0"

_ERRORS = (
    "AuthenticationError",
    "BakeoffError",
    "ConflictError",
    "FieldError",
    "InvalidRequestError",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitError",
    "UnavailableError",
    "WaitTimeoutError",
)
_HOMES = {
    "Client": "_client",
    "Run": "_client",
    "Experiment": "_experiments",
    "Recommendation": "_experiments",
    "Trial": "_experiments",
} | dict.fromkeys(_ERRORS, "_errors")


def __getattr__(name: str) -> Any:
    # A training container that only reports needs no httpx.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'bakeoff' has no attribute {name!r}")


__all__ = [
    "METRIC_DEFINITIONS",
    "AuthenticationError",
    "BakeoffError",
    "Client",
    "ConflictError",
    "Experiment",
    "FieldError",
    "InvalidRequestError",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitError",
    "Recommendation",
    "Reporter",
    "Run",
    "Trial",
    "UnavailableError",
    "WaitTimeoutError",
]
