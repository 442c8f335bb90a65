"""What a request to the service can end with, other than an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FieldError:
    """One thing that is wrong with a request."""

    pointer: str
    """JSON pointer into the document that was sent, or the name of a parameter."""
    detail: str
    rule: str
    fix: str | None = None
    """What to do about it."""

    def __str__(self) -> str:
        """Return the place, what is wrong there, and what to do about it."""
        line = f"{self.pointer or '(the document)'}: {self.detail}"
        return f"{line}\n    → {self.fix}" if self.fix else line


class BakeoffError(Exception):
    """The service did not do what it was asked to."""

    def __init__(  # noqa: PLR0913 - the members of a problem document (RFC 9457)
        self,
        title: str,
        *,
        detail: str = "",
        status: int | None = None,
        code: str | None = None,
        errors: tuple[FieldError, ...] = (),
        request_id: str | None = None,
        retryable: bool = False,
    ) -> None:
        self.title = title
        self.detail = detail
        self.status = status
        """The HTTP status; None where no answer came."""
        self.code = code
        """A stable short code, such as `not-found`."""
        self.errors = errors
        self.request_id = request_id
        """Names the request in the service's log."""
        self.retryable = retryable
        """Whether the same request may succeed later."""
        super().__init__(str(self))

    def __str__(self) -> str:
        """Return the title, the detail, and each thing that is wrong with the request."""
        lines = [f"{self.title} ({self.status})" if self.status else self.title]
        # With a single error, the detail is that error's.
        if self.detail and not any(error.detail in self.detail for error in self.errors):
            lines.append(self.detail)
        lines += [f"  {error}" for error in self.errors]
        return "\n".join(lines)


class InvalidRequestError(BakeoffError):
    """The request is wrong: `errors` has each place and how to mend it."""


class AuthenticationError(BakeoffError):
    """The API key is missing, wrong, expired or revoked."""


class PermissionDeniedError(BakeoffError):
    """The API key's role does not allow it."""


class NotFoundError(BakeoffError):
    """There is no such thing in the key's project."""


class ConflictError(BakeoffError):
    """The current state does not allow it, or it has changed since it was read."""


class RateLimitError(BakeoffError):
    """Too many requests."""


class UnavailableError(BakeoffError):
    """The service, or what it depends on, does not answer right now."""


class WaitTimeoutError(BakeoffError, TimeoutError):
    """What was waited for has not happened in time; it goes on."""


def of_response(status: int, body: Any) -> BakeoffError:
    """Build the error for a problem document (RFC 9457)."""
    problem = body if isinstance(body, dict) else {}
    kind = {
        400: InvalidRequestError,
        401: AuthenticationError,
        403: PermissionDeniedError,
        404: NotFoundError,
        409: ConflictError,
        412: ConflictError,
        413: InvalidRequestError,
        415: InvalidRequestError,
        422: InvalidRequestError,
        428: ConflictError,
        429: RateLimitError,
    }.get(status, UnavailableError if status >= 500 else BakeoffError)  # noqa: PLR2004
    errors = tuple(
        FieldError(
            str(error.get("pointer", "")),
            str(error.get("detail", "")),
            str(error.get("rule", "")),
            error.get("fix"),
        )
        for error in problem.get("errors", ())
    )
    return kind(
        str(problem.get("title", "The service refused the request")),
        detail=str(problem.get("detail", "")),
        status=status,
        code=problem.get("code"),
        errors=errors,
        request_id=problem.get("request_id"),
        retryable=bool(problem.get("retryable", status in (429, 502, 503, 504))),
    )
