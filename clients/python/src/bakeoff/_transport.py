"""Requests: where to, with which key, and how often they are tried again."""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Any

import httpx

from . import __version__
from ._errors import BakeoffError, UnavailableError, of_response
from ._profiles import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RETRIES = 4
FIRST_WAIT = 0.5
LONGEST_WAIT = 8.0
LONGEST_RETRY_AFTER = 120.0
# A request waits for at most 60 seconds on the service's side (`wait_seconds`).
TIMEOUT = httpx.Timeout(75.0, connect=10.0)


class Transport:
    """One service and one key."""

    def __init__(self, url: str | None, api_key: str | None, profile: str | None = None) -> None:
        url, api_key = resolve(url, api_key, profile)
        if not url:
            raise BakeoffError("No service is named: run `bakeoff login`, pass url=, or set BAKEOFF_URL")
        if not api_key:
            raise BakeoffError(f"No API key for {url}: run `bakeoff login`, pass api_key=, or set BAKEOFF_API_KEY")
        self.url = url.rstrip("/")
        self._client = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {api_key}", "user-agent": f"bakeoff-python/{__version__}"},
            timeout=TIMEOUT,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        content: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        repeatable: bool = False,
    ) -> httpx.Response:
        """Send a request, and again where that is safe and may help.

        `once`: it makes something. It carries an idempotency key, so that repeating it makes no second.
        `repeatable`: repeating it changes nothing more.
        """
        sent = dict(headers or {})
        if once:
            sent["idempotency-key"] = str(uuid.uuid4())
        is_safe = once or repeatable or method in ("GET", "PUT", "DELETE")
        query = {name: value for name, value in (params or {}).items() if value is not None}
        for attempt in range(RETRIES + 1):
            error, wait = self._try(method, path, attempt, params=query, json=json, content=content, headers=sent)
            if isinstance(error, httpx.Response):
                return error
            if not (is_safe and error.retryable) or attempt == RETRIES:
                raise error
            time.sleep(wait)
        raise AssertionError("unreachable")

    def _try(self, method: str, path: str, attempt: int, **request: Any) -> tuple[httpx.Response | BakeoffError, float]:
        backoff = min(FIRST_WAIT * 2**attempt, LONGEST_WAIT)
        backoff *= 1 - random.random() / 4  # noqa: S311 - it only spreads the repeats
        try:
            response = self._client.request(method, path, **request)
        except httpx.TransportError as error:
            told = UnavailableError(
                f"No answer from {self.url}", detail=f"{type(error).__name__}: {error}", retryable=True
            )
            told.__cause__ = error
            return told, backoff
        if response.is_success:
            return response, 0.0
        try:
            body = response.json()
        except ValueError:
            body = None
        return of_response(response.status_code, body), _retry_after(response) or backoff

    def get(self, path: str, **params: Any) -> Any:
        """Read a document."""
        return self.send("GET", path, params=params).json()

    def post(self, path: str, json: Any = None, *, once: bool = False) -> Any:
        """Send a document; return the answer, if there is one."""
        response = self.send("POST", path, json=json, once=once)
        return response.json() if response.content else None

    def items(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Read a list, page by page."""
        token: str | None = None
        while True:
            page = self.get(path, page_token=token, **params)
            yield from page["items"]
            token = page.get("next_page_token")
            if not token:
                return


def _retry_after(response: httpx.Response) -> float | None:
    try:
        seconds = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
