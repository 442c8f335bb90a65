"""Lightning: `Trainer(logger=BakeoffLogger())`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from bakeoff._reporter import Reporter


class BakeoffLogger(Logger):  # type: ignore[misc]
    """Reports what `self.log` logs."""

    def __init__(self, reporter: Reporter | None = None) -> None:
        super().__init__()
        self.reporter = reporter or Reporter()

    @property
    def name(self) -> str:
        """The logger's name."""
        return "bakeoff"

    @property
    def version(self) -> str:
        """Runs are told apart by the job that they are in."""
        return "0"

    @rank_zero_only  # type: ignore[untyped-decorator]
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Report metrics of a step."""
        self.reporter.log(step, **metrics)

    @rank_zero_only  # type: ignore[untyped-decorator]
    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the experiment knows them."""

    @rank_zero_only  # type: ignore[untyped-decorator]
    def finalize(self, status: str) -> None:
        """Send what waits."""
        del status
        self.reporter.flush()
