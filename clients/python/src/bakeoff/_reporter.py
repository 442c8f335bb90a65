"""Metrics from inside a training script: sent in the background, never in its way.

Only the standard library is used, so that a training container needs nothing else. In a job that Bakeoff has started,
`Reporter()` finds everything in the environment.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from typing import Any, Self

QUEUE_MAX = 200_000
"""Lines that are kept while the service cannot be reached, some 20 MB; then the oldest go."""
BATCH_MAX = 2_000
FLUSH_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0
LONGEST_WAIT = 60.0
CLOSE_SECONDS = 10.0
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")

METRIC_DEFINITIONS = [
    {"name": f"bakeoff:{name}", "regex": rf"bakeoff step=.* {name}=([-+0-9.eEnaif]+)", "meaning": name}
    for name in ("train_loss", "validation_loss", "tokens_per_second", "samples_per_second")
] + [{"name": "bakeoff:step", "regex": r"bakeoff step=([0-9]+)", "meaning": "step"}]
"""For a workload whose jobs cannot reach the service: there, `Reporter` prints lines that these match."""


class Reporter:
    """Sends a job's metrics to Bakeoff.

    It never raises after it was made, and never waits for the network: `log` puts a line into a queue that a thread
    sends. While the service is down, lines are kept; what was sent twice is stored once. Only rank 0 sends.
    Without a service (`BAKEOFF_URL` is not set) it prints lines that `METRIC_DEFINITIONS` match.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        token: str | None = None,
        trial_id: str | None = None,
        run_id: str | None = None,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        env = os.environ
        url = url or env.get("BAKEOFF_URL")
        token = token or env.get("BAKEOFF_PUSH_TOKEN") or env.get("BAKEOFF_API_KEY")
        trial_id = trial_id or (None if run_id else env.get("BAKEOFF_TRIAL_ID"))
        run_id = run_id or env.get("BAKEOFF_RUN_ID")
        of = f"trials/{trial_id}" if trial_id else f"runs/{run_id}" if run_id else None
        self._address = f"{url.rstrip('/')}/v1/{of}/metrics?skip_bad_lines=true" if url and of else None
        self._token = token
        self._silent = next((env[name] for name in _RANKS if name in env), "0") != "0"
        self._flush_seconds = flush_seconds
        self._queue: deque[str] = deque()
        self._wake = threading.Event()
        self._sent = threading.Condition()
        self._under_way = 0
        self._flush_until = 0.0
        self._closed = False
        self._warned: set[str] = set()
        self._pid = os.getpid()
        self.dropped = 0
        """Lines that were given up: the queue was full, or the service refused them for good."""
        self.stored = 0
        """Points that the service has newly stored."""
        self._thread: threading.Thread | None = None
        if self._silent:
            return
        if self._address is None:
            self._warn("no service: BAKEOFF_URL and BAKEOFF_TRIAL_ID are not set; metrics are printed instead")
            return
        self._thread = threading.Thread(target=self._work, name="bakeoff-reporter", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        self._close_on_sigterm()

    def log(self, step: int | None = None, *, timestamp: float | None = None, **metrics: Any) -> None:
        """Report metrics of a step: `reporter.log(step, train_loss=loss, tokens_per_second=speed)`.

        Values are numbers, or what `float()` makes one of; `timestamp` is Unix time in seconds, now if absent.
        """
        if self._silent or self._closed or os.getpid() != self._pid:
            return
        try:
            record: dict[str, Any] = {"timestamp": time.time() if timestamp is None else timestamp}
            if step is not None:
                record["step"] = int(step)
            for name, value in metrics.items():
                try:
                    record[name] = float(value)
                except (TypeError, ValueError):
                    self._warn(f"{name} is not a number ({type(value).__name__}): it is left out")
            if self._thread is None:
                values = " ".join(f"{name}={value:.10g}" for name, value in _printed(record).items())
                print(f"bakeoff step={record.get('step', '')} {values}", flush=True)
                return
            if len(self._queue) >= QUEUE_MAX:
                self._queue.popleft()
                self.dropped += 1
                self._warn(f"the service has been unreachable for a long time: more than {QUEUE_MAX} lines wait")
            self._queue.append(json.dumps(record))
            if len(self._queue) >= BATCH_MAX:
                self._wake.set()
        except Exception as error:
            self._warn(f"a metric was not reported: {error!r}")

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Send what waits; return whether all of it was sent in time."""
        if self._thread is None or os.getpid() != self._pid:
            return True
        self._flush_until = until = time.monotonic() + seconds
        self._wake.set()
        with self._sent:
            while self._queue or self._under_way:
                left = until - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self._sent.wait(min(left, 0.2))
        return True

    def close(self) -> None:
        """Send what waits, for at most ten seconds, and end."""
        if self._closed or os.getpid() != self._pid:
            return
        if not self.flush():
            self._warn(f"{len(self._queue) + self._under_way} lines could not be sent before the end")
        self._closed = True
        self._wake.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        failures = 0
        while not self._closed:
            # The first line of a batch waits for others; after a failure, longer and longer.
            wait = self._flush_seconds
            if failures:
                longest = 1.0 if time.monotonic() < self._flush_until else LONGEST_WAIT
                wait = random.uniform(0.1, min(2.0 ** min(failures, 10), longest))  # noqa: S311
            self._wake.wait(wait)
            self._wake.clear()
            while self._queue and not self._closed:
                if self._send_batch():
                    failures = 0
                else:
                    failures += 1
                    break

    def _send_batch(self) -> bool:
        """Return whether the batch is done with: stored, or refused for good."""
        # Counted before it is taken out: in between, nothing would seem to wait.
        self._under_way = count = min(len(self._queue), BATCH_MAX)
        batch = [self._queue.popleft() for _ in range(count)]
        try:
            done = self._post("\n".join(batch))
        except Exception as error:
            self._warn(f"metrics were not sent: {error!r}")
            done = False
        if not done:
            self._queue.extendleft(reversed(batch))
        with self._sent:
            self._under_way = 0
            self._sent.notify_all()
        return done

    def _post(self, lines: str) -> bool:
        request = urllib.request.Request(  # noqa: S310 - the address is the operator's
            self._address or "",
            data=lines.encode(),
            headers={"content-type": "application/x-ndjson", "authorization": f"Bearer {self._token}"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (408, 425, 429) or error.code >= 500:  # noqa: PLR2004
                self._warn(f"the service answers {error.code}; lines are kept and sent again")
                return False
            self.dropped += lines.count("\n") + 1
            self._warn(f"the service refuses the metrics ({error.code}): {_detail(error)}")
            return True
        except (OSError, ValueError) as error:
            self._warn(f"the service cannot be reached ({error}); lines are kept and sent again")
            return False
        self.stored += int(told.get("stored", 0))
        for line in told.get("skipped", [])[:1]:
            self._warn(f"a line was not read: {line.get('detail')}")
        return True

    def _close_on_sigterm(self) -> None:
        # SageMaker sends SIGTERM, and SIGKILL two minutes later. Only the main thread may set a handler.
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)

        def handler(number: int, frame: Any) -> None:
            self.close()
            if callable(before):
                before(number, frame)
            elif before != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        try:
            signal.signal(signal.SIGTERM, handler)
        except (OSError, ValueError):
            return

    def _warn(self, message: str) -> None:
        """Say each kind of thing once."""
        kind = re.split("[:(]", message, maxsplit=1)[0]
        if kind not in self._warned:
            self._warned.add(kind)
            print(f"bakeoff: {message}", file=sys.stderr, flush=True)


_STANDARD = {
    "loss": "train_loss",
    "eval_loss": "validation_loss",
    "val_loss": "validation_loss",
}
"""What Hugging Face's Trainer and Lightning call what `METRIC_DEFINITIONS` match."""


def _printed(record: dict[str, Any]) -> dict[str, float]:
    values = {name: value for name, value in record.items() if name not in ("timestamp", "step")}
    if "train_runtime" in values and "loss" not in values:
        # The end of a Trainer's log: means of the whole run, and no figures of this step.
        for mean in ("train_loss", "train_samples_per_second", "train_tokens_per_second", "train_steps_per_second"):
            values.pop(mean, None)
    return {_STANDARD.get(name, name): value for name, value in values.items()}


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error).get("detail", error.reason))
    except Exception:
        return str(error.reason)
