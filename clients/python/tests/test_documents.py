"""The Python that the documents show runs as it stands, on a real service."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def snippets(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)\n```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


OPENAPI = json.loads((ROOT / "openapi/bakeoff.json").read_text(encoding="utf-8"))


def examples() -> list:
    operations = [operation for item in OPENAPI["paths"].values() for operation in item.values()]
    bodies = [(one["operationId"], one["requestBody"]["content"]) for one in operations if "requestBody" in one]
    return [pytest.param(body, id=f"{name} {kind}") for name, content in bodies for kind, body in content.items()]


@pytest.mark.parametrize("body", examples())
def test_each_example_of_the_api_is_of_its_own_schema(body):
    jsonschema = pytest.importorskip("jsonschema")
    schema = body["schema"] | {"components": OPENAPI["components"]}
    # In a pipeline, a reference stands for an id that is made later.
    text = json.dumps(body["example"]).replace("${register.model_package_id}", f"mpk_{'0' * 32}")
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("name", ["README.md", "docs/how-to/notebook.md"])
def test_the_first_snippet_compares_and_draws(monkeypatch, name):
    monkeypatch.chdir(ROOT)
    pytest.importorskip("matplotlib").use("Agg")
    known: dict = {}
    exec(compile(snippets(name)[0], name, "exec"), known)
    assert known["plan"]["would_start"] is True
    assert known["experiment"].state == "completed"
    assert len(known["experiment"].frame()) > 1


def test_the_reporters_snippet_sends_what_it_logs(server, monkeypatch):
    monkeypatch.setenv("BAKEOFF_URL", server.url)
    monkeypatch.setenv("BAKEOFF_TRIAL_ID", "trl_1")
    monkeypatch.setenv("BAKEOFF_PUSH_TOKEN", "token")
    monkeypatch.setenv("RANK", "0")
    known = {"batches": ["a", "b"], "train": len}
    exec(compile(snippets("docs/how-to/notebook.md")[1], "reporter", "exec"), known)
    sent = b"".join(body for _, path, _, body in server.requests if "/metrics" in path)
    assert sent.count(b"train_loss") == 2
