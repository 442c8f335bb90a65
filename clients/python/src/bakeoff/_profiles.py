"""What `bakeoff login` has kept: addresses of services and keys, in the file that the command line reads."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import NamedTuple

from ._errors import BakeoffError


class Target(NamedTuple):
    """Where requests go, and with which key."""

    url: str | None
    api_key: str | None


def file() -> Path:
    """Return where the profiles are."""
    named = os.environ.get("BAKEOFF_CONFIG")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "bakeoff" / "config.toml"


def resolve(url: str | None, api_key: str | None, profile: str | None) -> Target:
    """Return what is passed, else what the named profile has, the environment says, or the default profile has.

    A profile's key goes to its own service only, and a named profile's service is not sent the environment's key.
    """
    if profile is None and not (url and api_key):
        url = url or os.environ.get("BAKEOFF_URL")
        api_key = api_key or os.environ.get("BAKEOFF_API_KEY")
        profile = os.environ.get("BAKEOFF_PROFILE")
    if url and api_key and not profile:
        return Target(url, api_key)
    path = file()
    kept = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    profiles = kept.get("profiles", {})
    name = profile or kept.get("default")
    if profile and profile not in profiles:
        there = ", ".join(sorted(profiles)) or "none yet"
        raise BakeoffError(f"There is no profile {profile} in {path} (there are: {there}): `bakeoff login` makes it")
    own = profiles.get(name, {})
    url = (url or own.get("url", "")).rstrip("/") or None
    is_own = url is not None and url == own.get("url", "").rstrip("/")
    return Target(url, api_key or (own.get("api_key") if is_own else None))
