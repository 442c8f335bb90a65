"""Which service and key are used: what is passed, the environment, and what `bakeoff login` has kept."""

from __future__ import annotations

import pytest

import bakeoff
from bakeoff._profiles import resolve

KEPT = """
default = "research"
[profiles.research]
url = "https://bakeoff.example.com"
api_key = "bk_research"
[profiles.staging]
url = "https://staging.example.com/"
api_key = "bk_staging"
"""


@pytest.fixture
def kept(monkeypatch, tmp_path):
    for name in ("BAKEOFF_URL", "BAKEOFF_API_KEY", "BAKEOFF_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config.toml"
    file.write_text(KEPT, encoding="utf-8")
    monkeypatch.setenv("BAKEOFF_CONFIG", str(file))
    return file


@pytest.mark.usefixtures("kept")
def test_what_is_said_comes_before_the_profile(monkeypatch):
    assert resolve(None, None, None) == ("https://bakeoff.example.com", "bk_research")
    assert resolve(None, "bk_mine", "staging") == ("https://staging.example.com", "bk_mine")
    monkeypatch.setenv("BAKEOFF_PROFILE", "staging")
    assert resolve(None, None, None) == ("https://staging.example.com", "bk_staging")


@pytest.mark.usefixtures("kept")
def test_a_named_profile_goes_before_the_environment_and_gets_no_key_of_it(monkeypatch):
    monkeypatch.setenv("BAKEOFF_URL", "https://prod.example.com")
    monkeypatch.setenv("BAKEOFF_API_KEY", "bk_prod")
    assert resolve(None, None, "staging") == ("https://staging.example.com", "bk_staging")
    assert resolve(None, None, None) == ("https://prod.example.com", "bk_prod")


@pytest.mark.usefixtures("kept")
def test_a_profiles_key_goes_to_no_other_service(monkeypatch):
    monkeypatch.setenv("BAKEOFF_URL", "https://elsewhere.example.com")
    assert resolve(None, None, None) == ("https://elsewhere.example.com", None)
    with pytest.raises(bakeoff.BakeoffError, match="No API key for https://elsewhere"):
        bakeoff.Client()


@pytest.mark.usefixtures("kept")
def test_a_profile_that_is_not_there_is_said_with_those_that_are():
    with pytest.raises(bakeoff.BakeoffError, match=r"no profile prod .*research, staging"):
        resolve(None, None, "prod")


def test_without_a_file_the_way_out_is_said(kept):
    kept.unlink()
    with pytest.raises(bakeoff.BakeoffError, match="run `bakeoff login`"):
        bakeoff.Client()
