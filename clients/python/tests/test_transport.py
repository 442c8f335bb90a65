"""What is tried again and what is not, and what errors say."""

from __future__ import annotations

import pytest

import bakeoff
from bakeoff import _transport


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    waits = []
    monkeypatch.setattr(_transport.time, "sleep", waits.append)
    return waits


def busy(**headers):
    return (503, headers, {"title": "Busy", "status": 503, "retryable": True})


def client_of(server):
    return bakeoff.Client(server.url, "key")


def test_reading_is_tried_again_as_long_as_the_service_asks(server, no_waiting):
    server.answers = [busy(), (0, {}, {}), busy(**{"Retry-After": "3"}), (200, {}, {"project": "p"})]
    assert client_of(server).whoami() == {"project": "p"}
    assert len(server.requests) == 4
    assert 0.37 < no_waiting[0] <= 0.5
    assert no_waiting[2] == 3.0


def test_it_gives_up_with_the_last_error(server):
    server.answers = [busy()] * 9
    with pytest.raises(bakeoff.UnavailableError) as caught:
        client_of(server).whoami()
    assert caught.value.status == 503
    assert len(server.requests) == 5


def test_what_starts_something_carries_one_key_over_all_tries(server):
    made = {"id": "exp_1", "name": "n", "state": "running"}
    server.answers = [busy(), (0, {}, {}), (201, {}, made), (200, {}, made)]
    client_of(server).experiments.create({"name": "n"})
    keys = {headers.get("idempotency-key") for method, _, headers, _ in server.requests if method == "POST"}
    assert len(keys) == 1
    assert None not in keys
    assert len(server.requests) == 4


def test_what_was_started_is_returned_also_where_it_cannot_be_read_just_now(server):
    server.answers = [(201, {}, {"id": "exp_1", "name": "n", "state": "running"}), *[busy()] * 9]
    experiment = client_of(server).experiments.create({"name": "n"})
    assert (experiment.id, experiment.state) == ("exp_1", "running")


def test_a_retry_is_a_trial_of_its_own(server):
    server.answers = [(201, {}, {"trials": [{"id": "trl_2"}]}), (200, {}, {"id": "trl_2", "state": "queued"})]
    retry = bakeoff.Trial(client_of(server)._transport, {"id": "trl_1", "state": "failed"}).retry()
    assert (retry.id, retry.state) == ("trl_2", "queued")


def test_each_is_compared_as_what_it_is(server):
    server.answers = [(200, {}, {"rows": []})]
    client_of(server).compare(["exp_1", "trl_1", "trl_2", "run_1"])
    path = "/v1/comparison?experiment_id=exp_1&trial_id=trl_1&trial_id=trl_2&run_id=run_1"
    assert server.requests[0][1] == path


def test_metrics_are_pushed_again_and_read_from_a_file(server, tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}')
    server.answers = [busy(), (200, {}, {"stored": 1})]
    run = bakeoff.Run(client_of(server)._transport, {"id": "run_1"})
    assert run.push(str(file), started_at="2026-11-30T00:00:00Z") == {"stored": 1}
    assert [body for *_, body in server.requests] == [b'{"step": 1}'] * 2
    assert server.requests[0][1].endswith("/metrics?started_at=2026-11-30T00%3A00%3A00Z")


def test_many_trials_and_points_are_read_in_parts(server):
    pytest.importorskip("pandas")
    nothing = (200, {}, {"metrics": [], "series": []})
    trials = (200, {}, {"items": [{"id": f"trl_{number}"} for number in range(200)]})
    server.answers = [trials, *[nothing] * 4]
    experiment = bakeoff.Experiment(client_of(server)._transport, {"id": "exp_1"})
    experiment.history(["a", "b"], points=2000)
    # 300,000 points at once: a metric of 150 trials.
    asked = [path for _, path, _, _ in server.requests[1:]]
    assert [path.count("trial_id=") for path in asked] == [150, 150, 50, 50]
    assert [path.count("metric=") for path in asked] == [1, 1, 1, 1]


def test_a_change_without_a_key_is_sent_once(server):
    server.answers = [busy()]
    with pytest.raises(bakeoff.UnavailableError):
        client_of(server).request("POST", "/v1/experiments/exp_1/cancel")
    assert len(server.requests) == 1


def test_what_is_refused_is_not_tried_again_and_says_how_to_mend_it(server):
    error = {"pointer": "/budget_usd", "detail": "it is missing", "rule": "required", "fix": "Add a budget"}
    problem = {"title": "Invalid", "detail": "1 error", "code": "invalid", "errors": [error], "request_id": "r"}
    server.answers = [(422, {}, problem)]
    with pytest.raises(bakeoff.InvalidRequestError) as caught:
        client_of(server).plan({})
    assert str(caught.value) == ("Invalid (422)\n1 error\n  /budget_usd: it is missing\n    → Add a budget")
    assert caught.value.errors[0].pointer == "/budget_usd"
    assert caught.value.request_id == "r"
    assert len(server.requests) == 1


def test_an_answer_that_is_no_problem_document_is_an_error_all_the_same(server):
    server.answers = [(404, {}, ["?"])]
    with pytest.raises(bakeoff.NotFoundError):
        client_of(server).trial("trl_1")


def test_pages_are_read_to_the_end(server):
    server.answers = [
        (200, {}, {"items": [{"id": "exp_1"}], "next_page_token": "t"}),
        (200, {}, {"items": [{"id": "exp_2"}]}),
    ]
    listed = client_of(server).experiments.list(state="running")
    assert [one.id for one in listed] == ["exp_1", "exp_2"]
    assert server.requests[1][1] == "/v1/experiments?page_token=t&state=running"


def test_without_an_address_or_a_key_it_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.setenv("BAKEOFF_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.delenv("BAKEOFF_URL", raising=False)
    monkeypatch.delenv("BAKEOFF_API_KEY", raising=False)
    with pytest.raises(bakeoff.BakeoffError, match="BAKEOFF_URL"):
        bakeoff.Client()
    with pytest.raises(bakeoff.BakeoffError, match="BAKEOFF_API_KEY"):
        bakeoff.Client("http://127.0.0.1:1")
