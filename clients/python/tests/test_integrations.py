"""The loggers of training frameworks, with the frameworks themselves: skipped where torch (5 GB) is not installed."""

from __future__ import annotations

import json

import pytest

import bakeoff

torch = pytest.importorskip("torch")


@pytest.fixture
def reporter(server, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with bakeoff.Reporter(url=server.url, token="t", trial_id="trl_1") as reporter:
        yield reporter


def lines(server):
    return [json.loads(line) for _, _, _, body in server.requests for line in body.splitlines()]


def test_hugging_face_s_trainer_reports_its_log(server, reporter, tmp_path):
    transformers = pytest.importorskip("transformers")
    from bakeoff.integrations.transformers import BakeoffCallback

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    tokens = torch.arange(16)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=10,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=5,
        per_device_train_batch_size=4,
        include_num_input_tokens_seen="all",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = transformers.Trainer(
        model=transformers.LlamaForCausalLM(config),
        args=arguments,
        train_dataset=[{"input_ids": tokens, "labels": tokens}] * 64,
        eval_dataset=[{"input_ids": tokens, "labels": tokens}] * 8,
        callbacks=[BakeoffCallback(reporter)],
    )
    trainer.train()
    told = lines(server)
    assert [line["step"] for line in told if "loss" in line] == [2, 4, 6, 8, 10]
    assert [line["step"] for line in told if "eval_loss" in line] == [5, 10]
    assert told[0]["num_input_tokens_seen"] == 2 * 4 * 16
    assert reporter.dropped == 0


def test_lightning_reports_what_is_logged(server, reporter, tmp_path):
    lightning = pytest.importorskip("lightning")
    from bakeoff.integrations.lightning import BakeoffLogger

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.save_hyperparameters()

        def training_step(self, batch, _):
            loss = self.layer(batch).mean() ** 2
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, _):
            self.log("val_loss", self.layer(batch).mean() ** 2)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2,
        logger=BakeoffLogger(reporter),
        log_every_n_steps=8,
        accelerator="cpu",
        default_root_dir=str(tmp_path),
        enable_progress_bar=False,
    )
    trainer.fit(Model(), data, data)
    told = lines(server)
    assert [line["step"] for line in told if "train_loss" in line] == [7, 15, 23, 31]
    assert [line["step"] for line in told if "val_loss" in line] == [15, 31]
