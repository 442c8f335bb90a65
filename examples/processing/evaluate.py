"""Evaluates a file of predictions, as a SageMaker processing job or on any machine.

    python3 evaluate.py

Reads every *.jsonl below /opt/ml/processing/input/predictions. Each record has what the model was asked for and what it
said, or how surprised it was, or both:

    {"reference": "ja", "prediction": "ja"}            exact match, and the F1 of words
    {"negative_log_likelihood": 12.4, "tokens": 7}     loss per token (nats) and perplexity

Writes output/evaluation/evaluation.json below /opt/ml/processing: each figure with how many records it rests on and, from 30
records on, its 95 % interval: Wilson's for shares of right answers, for the others a bootstrap over records (over 1,000 groups
of them where there are more), from a fixed seed, so that the same files give the same figures. The job's exit message is the
same, within 1 KB. Standard library only."""

import argparse
import collections
import json
import math
import pathlib
import random
import sys

MESSAGE_BYTES = 1024  # SageMaker keeps the first kilobyte (DescribeProcessingJob, ExitMessage).
DRAWS = 1_000
GROUPS = 1_000
# With fewer, no interval holds at its rate.
INTERVAL_RECORDS = 30
Z = 1.959964  # 95 % of a normal distribution


class Wrong(Exception):
    """What a person must mend."""


def word_f1(reference, prediction):
    """F1 of the words, as SQuAD counts them: each as often as both sides have it."""
    ours, theirs = reference.split(), prediction.split()
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * common / (len(ours) + len(theirs))


def number(record, field, least):
    value = record[field]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise ValueError(f"{field} must be a finite number, at least {least}")
    return value


def read(folder):
    """What each record says, as parts of a ratio: right answers and F1 of one, nats of its tokens."""
    exact, words, losses = [], [], []
    files = sorted(folder.rglob("*.jsonl"))
    if not files:
        raise Wrong(f"there is no *.jsonl below {folder}: check the input's S3 prefix")
    for path in files:
        with path.open(encoding="utf-8") as file:
            for line_number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    has_answer, has_loss = "prediction" in record, "negative_log_likelihood" in record
                    if not has_answer and not has_loss:
                        raise KeyError("prediction or negative_log_likelihood")
                    if has_answer:
                        reference, prediction = record["reference"].strip(), record["prediction"].strip()
                        exact.append((float(reference == prediction), 1))
                        words.append((word_f1(reference, prediction), 1))
                    if has_loss:
                        losses.append((number(record, "negative_log_likelihood", 0), number(record, "tokens", 1)))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    place = f"{path.relative_to(folder)}:{line_number}"
                    raise Wrong(f"{place}: {type(error).__name__}: {error}") from error
    if not exact and not losses:
        raise Wrong("the predictions are empty")
    return exact, words, losses


def ratio(parts):
    return sum(value for value, _ in parts) / sum(weight for _, weight in parts)


def bootstrap(parts):
    """95 % of the ratios of as many parts, drawn with replacement."""
    groups = [[0.0, 0] for _ in range(min(GROUPS, len(parts)))]
    for place, (value, weight) in enumerate(parts):
        group = groups[place % len(groups)]
        group[0] += value
        group[1] += weight
    dice = random.Random(1)
    drawn = sorted(ratio(dice.choices(groups, k=len(groups))) for _ in range(DRAWS))
    return drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]


def wilson(parts):
    """Of a share (Wilson 1927): it holds near 0 and 1, too."""
    count, share = len(parts), ratio(parts)
    middle = share + Z * Z / (2 * count)
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return (middle - half) / (1 + Z * Z / count), (middle + half) / (1 + Z * Z / count)


def told(parts, interval, unit, shown=lambda value: value):
    """A figure with its interval; `shown` makes of a ratio what is told."""
    low, high = interval(parts) if len(parts) >= INTERVAL_RECORDS else (None, None)
    rounded = [None if value is None else float(f"{shown(value):.6g}") for value in (ratio(parts), low, high)]
    return {"value": rounded[0], "low": rounded[1], "high": rounded[2], "unit": unit, "records": len(parts)}


def perplexity(loss):
    # Above 700 nats a token, e to that power is no number any more.
    return math.exp(min(loss, 700.0))


def evaluate(folder):
    exact, words, losses = read(folder)
    figures = {}
    if exact:
        figures["exact_match"] = told(exact, wilson, "share")
        figures["word_f1"] = told(words, bootstrap, "share")
    if losses:
        figures["loss"] = told(losses, bootstrap, "nats/token")
        figures["perplexity"] = told(losses, bootstrap, "1", perplexity)
    return {"metrics": figures, "interval_percent": 95}


def say(base, message):
    """The exit message."""
    path = base / "output/message"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(message.encode("utf-8")[:MESSAGE_BYTES].decode("utf-8", "ignore").encode("utf-8"))
    print(message)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=pathlib.Path, default=pathlib.Path("/opt/ml"), help=argparse.SUPPRESS)
    base = parser.parse_args().base
    try:
        found = evaluate(base / "processing/input/predictions")
    except Wrong as wrong:
        say(base, f"evaluate.py: {wrong}")
        sys.exit(1)
    folder = base / "processing/output/evaluation"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.json").write_text(json.dumps(found, indent=1) + "\n")
    say(base, json.dumps(found))


main()
