"""Hugging Face's Trainer: `Trainer(..., callbacks=[BakeoffCallback()])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from bakeoff._reporter import Reporter


class BakeoffCallback(TrainerCallback):  # type: ignore[misc]
    """Reports what the Trainer logs. For tokens per second, set `include_num_input_tokens_seen="all"`."""

    def __init__(self, reporter: Reporter | None = None) -> None:
        self.reporter = reporter or Reporter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Report one entry of the log, under the Trainer's own names: the service knows them."""
        del args, control
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        if numbers and state.is_world_process_zero:
            self.reporter.log(state.global_step, **numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Send what waits."""
        del args, state, control
        self.reporter.flush()
