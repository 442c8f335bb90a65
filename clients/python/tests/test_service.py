"""Against the real service on the simulated region."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import time

import pytest

import bakeoff

from .conftest import EXAMPLES


def test_an_experiment_runs_to_its_answer(experiment):
    assert experiment.state == "completed"
    answer = experiment.recommendation()
    assert answer.candidate == "g5-12xl"
    assert not answer.provisional
    assert answer.headline in str(answer)
    assert "g5-8xl-as-requested" in {left_out["candidate"] for left_out in answer.not_ranked}


def test_its_answer_shows_itself_in_a_notebook(experiment):
    html = experiment._repr_html_()
    answer = experiment.recommendation()
    assert "<table>" in html
    assert "ml.g5.12xlarge" in html
    evil = answer.raw | {"headline": "<script>alert(1)</script>"}
    assert "<script>" not in bakeoff.Recommendation(evil)._repr_html_()


def test_figures_arrive_as_frames(experiment):
    frame = experiment.frame()
    assert set(frame["candidate"]) == {"g5-12xl", "g5-8xl-as-requested"}
    assert frame["tokens_per_second"].max() > 0
    losses = experiment.history("train_loss")
    assert str(losses["at"].dtype).startswith("datetime64")
    assert losses["value"].between(0, 20).all()
    everything = experiment.trial("g5-12xl").history()
    assert {"train_loss", "tokens_per_second"} <= set(everything["metric"])
    ranked = experiment.recommendation().frame()
    assert ranked["odds.p_best"].sum() == pytest.approx(1.0, abs=0.1)


def test_charts_are_drawn(experiment):
    import matplotlib as mpl

    mpl.use("Agg")
    for kind in ("cost", "loss", "speed", "race"):
        axes = experiment.plot(kind)
        assert axes.get_title().startswith(experiment.name)
        assert axes.lines or axes.patches or axes.collections or axes.containers
    with pytest.raises(ValueError, match="no chart is called"):
        experiment.plot("pie")


def test_a_trial_has_its_log(experiment):
    trial = experiment.trial("g5-12xl")
    lines = list(trial.logs(grep="loss="))
    assert lines
    assert all("loss=" in line for line in lines)
    assert trial.refresh().state in ("completed", "stopped")
    with pytest.raises(KeyError, match="g5-12xl"):
        experiment.trial("missing")


def test_a_full_run_is_shown_before_it_is_bought(client, experiment):
    first = experiment.recommendation().ranked[0]
    choice = {name: first[name] for name in ("candidate", "purchase_option")}
    preview = experiment.preview_full_run(**choice)
    with pytest.raises(bakeoff.BakeoffError) as caught:
        experiment.buy(1.0, **choice)
    assert caught.value.errors or caught.value.detail
    bought = experiment.buy(preview["budget_usd"], **choice)
    assert bought.raw["full_run_of"]
    assert bought.cancel().state in ("cancelling", "cancelled")
    assert bought.wait(timeout=120, progress=False).is_over
    assert bought.id in {one.id for one in client.experiments.list()}


def test_a_wrong_document_says_where_and_how_to_mend_it(client):
    document = json.loads((EXAMPLES / "legal-g5-spot.json").read_text())
    del document["workload"]["model"]["layers"]
    with pytest.raises(bakeoff.InvalidRequestError) as caught:
        client.experiments.create(document)
    assert any("layers" in str(error) for error in caught.value.errors)
    assert caught.value.request_id


def test_a_plan_costs_nothing(client):
    before = len(list(client.experiments.list()))
    plan = client.plan(EXAMPLES / "legal-g5-spot.json")
    assert plan["would_start"]
    assert len(list(client.experiments.list())) == before


def test_a_described_job_becomes_an_experiment_in_one_round(client):
    described = {
        "TrainingJobName": "sft-2026-09-30-10-00-00-123",
        "TrainingJobStatus": "Completed",
        "CreationTime": dt.datetime(2026, 9, 30, 10, tzinfo=dt.UTC),
        "HyperParameters": {
            "sagemaker_program": '"run_sft.py"',
            "sagemaker_submit_directory": '"s3://bakeoff-example/code/sourcedir.tar.gz"',
            "model_id": '"Qwen/Qwen2.5-7B"',
            "per_device_train_batch_size": "1",
            "gradient_accumulation_steps": "16",
            "max_seq_length": "2048",
            "bf16": "true",
            "lora_r": "16",
        },
        "AlgorithmSpecification": {
            "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-training:"
            "2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04",
            "TrainingInputMode": "File",
        },
        "RoleArn": "arn:aws:iam::111122223333:role/train",
        "OutputDataConfig": {"S3OutputPath": "s3://bakeoff-example/out/"},
        "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 1, "VolumeSizeInGB": 100},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    }
    draft = client.draft(described)
    assert [one["pointer"] for one in draft["questions"] if "proposal" not in one] == ["/workload/total_tokens"]
    assert {one["member"] for one in draft["left_out"]} == {"VpcConfig"}
    answered = client.draft(described, answers={"/workload/total_tokens": 500_000_000})
    assert answered["is_complete"]
    plan = client.plan(answered["spec"])
    stops = [finding for finding in plan["findings"] if finding["severity"] == "error"]
    assert stops == []
    assert plan["would_start"]
    assert len(plan["candidates"]) == 3
    with pytest.raises(bakeoff.InvalidRequestError, match="/documents/0"):
        client.draft("acme/unknown-model")


def test_waiting_ends_in_time(client):
    spec = json.loads((EXAMPLES / "legal-g5-spot.json").read_text()) | {"name": "waited-for"}
    started = client.experiments.create(spec)
    with pytest.raises(bakeoff.WaitTimeoutError, match="is still running"):
        started.wait(timeout=0.2)
    with pytest.raises(TimeoutError):
        started.wait(timeout=0, progress=False)
    started.cancel()


def test_a_reporter_s_points_are_stored_once(client):
    start = dt.datetime(2026, 11, 20, tzinfo=dt.UTC).timestamp()
    run = client.runs.create("elsewhere", "8x H100", 8, usd_per_hour=7.92)
    key = client._transport._client.headers["authorization"].removeprefix("Bearer ")
    with bakeoff.Reporter(url=client._transport.url, token=key, run_id=run.id) as reporter:
        for step in range(3000):
            reporter.log(step, timestamp=start + step, train_loss=3.0 / (step + 1), grad_norm=float("nan"))
    assert reporter.dropped == 0
    assert reporter.stored == 6000
    history = run.history("train_loss", points=2000)
    assert history["step"].max() == 2999
    told = run.push([{"timestamp": start + 2999, "step": 2999, "train_loss": 3.0 / 3000}])
    assert (told["stored"], told["duplicates"]) == (0, 1)
    assert run.end().raw["state"] == "completed"
    rows = client.compare([run.id])
    assert rows[0]["candidate"] == "elsewhere"


def test_a_service_that_is_away_loses_no_point(client, relay, capsys):
    start = dt.datetime(2026, 11, 20, tzinfo=dt.UTC).timestamp()
    run = client.runs.create("outage", "8x H100", 8, usd_per_hour=7.92)
    key = client._transport._client.headers["authorization"].removeprefix("Bearer ")
    reporter = bakeoff.Reporter(url=relay.url, token=key, run_id=run.id, flush_seconds=0.05)
    steps = iter(range(60_000))

    def log(count: int) -> None:
        for step in itertools.islice(steps, count):
            reporter.log(step, timestamp=start + step / 1000, train_loss=3.0 / (step + 1))

    log(5_000)
    assert reporter.flush()
    relay.stop()
    # Most of a minute of steps, at 1,000 per second, while the service is unreachable.
    began = time.perf_counter()
    log(50_000)
    each = (time.perf_counter() - began) / 50_000
    assert not reporter.flush(seconds=0.5)
    relay.start()
    log(5_000)
    assert reporter.flush(seconds=60)
    reporter.close()
    assert (reporter.stored, reporter.dropped) == (60_000, 0)
    assert "cannot be reached" in capsys.readouterr().err
    assert each < 1e-3, f"{each * 1e6:.1f} microseconds a step while the service was away"


def test_other_keys_see_nothing(client):
    stranger = bakeoff.Client(client._transport.url, "bk_nobody")
    with pytest.raises(bakeoff.AuthenticationError):
        stranger.whoami()
    assert client.whoami()["project"]
    with pytest.raises(bakeoff.NotFoundError):
        client.experiments.get("exp_01890a5d-ac96-774b-bcce-b302099a8057")
