"""The reporter never raises, never waits, and loses nothing while the service is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

import bakeoff
from bakeoff import _reporter


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("RANK", "BAKEOFF_TRIAL_ID", "BAKEOFF_PUSH_TOKEN", "BAKEOFF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def reporter_of(server, **more):
    return bakeoff.Reporter(url=server.url, token="t", trial_id="trl_1", flush_seconds=0.02, **more)


def lines(server):
    return [json.loads(line) for _, _, _, body in server.requests for line in body.splitlines()]


def test_lines_arrive_in_order_with_their_token(server):
    with reporter_of(server) as reporter:
        for step in range(5000):
            reporter.log(step, train_loss=1.0 / (step + 1))
    assert [line["step"] for line in lines(server)] == list(range(5000))
    method, path, headers, _ = server.requests[0]
    assert (method, path) == ("POST", "/v1/trials/trl_1/metrics?skip_bad_lines=true")
    assert headers["Authorization"] == "Bearer t"


def test_what_could_not_be_sent_is_sent_again(server):
    server.answers = [(503, {}, {}), (0, {}, {}), (429, {}, {})]
    with reporter_of(server) as reporter:
        reporter.log(1, train_loss=2.0)
        assert reporter.flush(30)
    # Each of the four tries carried it; the service stores it once.
    assert [line["step"] for line in lines(server)] == [1, 1, 1, 1]
    assert reporter.dropped == 0


def test_what_is_refused_for_good_is_said_once_and_dropped(server, capsys):
    server.answers = [(403, {}, {"detail": "the token is of another trial"})] * 3
    reporter = reporter_of(server)
    for step in range(3):
        reporter.log(step, train_loss=1.0)
        assert reporter.flush()
    reporter.close()
    said = capsys.readouterr().err
    assert said.count("refuses the metrics (403): the token is of another trial") == 1
    assert reporter.dropped == 3


def test_an_unreachable_service_costs_nothing_and_raises_nothing(server, monkeypatch):
    monkeypatch.setattr(_reporter, "CLOSE_SECONDS", 0.2)
    server.close()
    reporter = reporter_of(server)
    begun = time.perf_counter()
    for step in range(20_000):
        reporter.log(step, train_loss=1.0)
    each = (time.perf_counter() - begun) / 20_000
    assert not reporter.flush(0.2)
    # At 1,000 steps a second, 2 % are 20 µs.
    assert each < 100e-6, f"{each * 1e6:.1f} µs a call"


def test_what_is_no_number_is_left_out_and_nothing_raises(server, capsys):
    with reporter_of(server) as reporter:
        reporter.log(1, train_loss="2.5", note=object(), other=float("nan"))
        reporter.log("x", train_loss=1)
    (line,) = lines(server)
    assert line["train_loss"] == 2.5
    assert "note" not in line
    assert "note is not a number" in capsys.readouterr().err


def test_other_ranks_say_nothing(server, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with reporter_of(server) as reporter:
        reporter.log(1, train_loss=1.0)
    assert server.requests == []


def test_without_a_service_it_prints_what_its_patterns_match(capsys, monkeypatch):
    import re

    monkeypatch.delenv("BAKEOFF_URL", raising=False)
    with bakeoff.Reporter() as reporter:
        reporter.log(12, train_loss=2.5, tokens_per_second=1e6)
    printed = capsys.readouterr().out
    found = {one["meaning"]: re.search(one["regex"], printed) for one in bakeoff.METRIC_DEFINITIONS}
    assert found["step"].group(1) == "12"
    assert float(found["train_loss"].group(1)) == 2.5
    assert float(found["tokens_per_second"].group(1)) == 1e6


def test_what_trainers_log_is_printed_under_the_names_that_the_patterns_match(capsys, monkeypatch):
    monkeypatch.delenv("BAKEOFF_URL", raising=False)
    with bakeoff.Reporter() as reporter:
        reporter.log(12, loss=2.5, tokens_per_second=1e6)
        reporter.log(12, eval_loss=2.25)
        reporter.log(12, train_runtime=60.0, train_loss=4.0, train_tokens_per_second=5.0)
    assert capsys.readouterr().out.splitlines() == [
        "bakeoff step=12 train_loss=2.5 tokens_per_second=1000000",
        "bakeoff step=12 validation_loss=2.25",
        "bakeoff step=12 train_runtime=60",
    ]


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)"])
def test_what_waits_is_sent_at_the_end_of_the_process(server, ending):
    program = f"""
        import os, signal, sys, time
        import bakeoff
        reporter = bakeoff.Reporter(flush_seconds=60)
        reporter.log(7, train_loss=1.0)
        {ending}
    """
    env = os.environ | {"BAKEOFF_URL": server.url, "BAKEOFF_TRIAL_ID": "trl_1", "BAKEOFF_PUSH_TOKEN": "t"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=env, check=False, timeout=60)
    assert done.returncode == (0 if "exit" in ending else -15)
    assert [line["step"] for line in lines(server)] == [7]


def test_a_forked_worker_sends_nothing_of_its_parent(server):
    reporter = reporter_of(server)
    reporter.log(1, train_loss=1.0)
    assert reporter.flush()
    child = os.fork()
    if child == 0:
        reporter.log(2, train_loss=1.0)
        reporter.close()
        os._exit(0)
    os.waitpid(child, 0)
    reporter.close()
    assert [line["step"] for line in lines(server)] == [1]
