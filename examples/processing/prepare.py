"""Splits JSON Lines into training and validation data, as a SageMaker processing job or on any machine.

    python3 prepare.py --text-field text --validation-share 0.1 [--language-field lang --language he]

Reads every *.jsonl and *.jsonl.gz below /opt/ml/processing/input/raw, drops empty, unwanted and repeated records, and
writes output/train/data.jsonl and output/validation/data.jsonl below /opt/ml/processing. Where a record goes depends on its
text alone: more data, other files or another order move no record from one side to the other, and no text is on both sides.

The job's exit message (/opt/ml/output/message, at most 1 KB) is JSON: how many records and bytes each side has, what was
dropped, and a SHA-256 of the data that does not depend on files or their order. It reads the files twice, and holds 64 bytes of each record. One host only. Standard library only."""

import argparse
import gzip
import hashlib
import json
import pathlib
import sys

MESSAGE_BYTES = 1024  # SageMaker keeps the first kilobyte (DescribeProcessingJob, ExitMessage).


class Wrong(Exception):
    """What a person must mend."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text-field", default="text", help="the field that is trained on (default: text)")
    parser.add_argument("--language-field", help="keep only records whose field has the value of --language")
    parser.add_argument("--language")
    parser.add_argument("--validation-share", type=float, default=0.1, help="of the records, 0 to 0.5 (default: 0.1)")
    parser.add_argument("--seed", default="1", help="another seed gives another split (default: 1)")
    parser.add_argument("--malformed-max", type=int, default=0, help="lines that may be unreadable (default: none)")
    parser.add_argument("--base", type=pathlib.Path, default=pathlib.Path("/opt/ml"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not 0 < asked.validation_share <= 0.5:
        parser.error(f"--validation-share must be above 0 and at most 0.5, not {asked.validation_share}")
    if (asked.language is None) != (asked.language_field is None):
        parser.error("--language and --language-field belong together")
    return asked


def one_host(base):
    config = base / "config/resourceconfig.json"
    hosts = json.loads(config.read_text())["hosts"] if config.exists() else ["algo-1"]
    if len(hosts) > 1:
        raise Wrong(f"this script splits on one host, and the job has {len(hosts)}: set InstanceCount to 1")


def lines(folder):
    """Each line of each file, with where it stands."""
    files = sorted(path for path in folder.rglob("*") if path.name.endswith((".jsonl", ".jsonl.gz")))
    if not files:
        raise Wrong(f"there is no *.jsonl or *.jsonl.gz below {folder}: check the input's S3 prefix")
    for path in files:
        opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
        with opened as file:
            try:
                for number, line in enumerate(file, 1):
                    yield f"{path.relative_to(folder)}:{number}", line
            except (OSError, EOFError, UnicodeDecodeError) as error:
                raise Wrong(f"{path.relative_to(folder)} cannot be read: {error}") from error


def records(asked, dropped):
    """The records that are wanted: the digest of the text, and the whole record as a line."""
    first = None
    for place, line in lines(asked.base / "processing/input/raw"):
        if not line.strip():
            dropped["empty"] += 1
            continue
        try:
            record = json.loads(line)
            text = record[asked.text_field]
            if not isinstance(text, str):
                raise TypeError(f"{asked.text_field} is not a text")
        except (ValueError, KeyError, TypeError) as error:
            dropped["malformed"] += 1
            first = first or f"{place}: {type(error).__name__}: {error}"
            if dropped["malformed"] > asked.malformed_max:
                raise Wrong(f"{first}; at most {asked.malformed_max} lines may be malformed (--malformed-max)") from error
            continue
        if asked.language_field and record.get(asked.language_field) != asked.language:
            dropped["other_language"] += 1
            continue
        if not text.strip():
            dropped["empty"] += 1
            continue
        line = json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n"
        yield digest_of(text), line


def digest_of(text):
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def chosen(asked, dropped):
    """The record that stands for each text: of several, the one with the smallest digest, whichever comes first."""
    best = {}
    for text, line in records(asked, dropped):
        whole = digest_of(line)
        if text in best:
            dropped["repeated"] += 1
            whole = min(whole, best[text])
        best[text] = whole
    return best


def is_validation(digest, seed, share):
    """By the text's digest and the seed: the same everywhere and always."""
    place = int.from_bytes(hashlib.sha256(seed.encode() + digest).digest()[:8], "big")
    return place < share * 2**64


def split(asked):
    dropped = {"empty": 0, "malformed": 0, "repeated": 0, "other_language": 0}
    sides = {name: {"records": 0, "bytes": 0} for name in ("train", "validation")}
    best = chosen(asked, dropped)
    # The sum of the digests does not depend on the order of the records.
    total, files = sum(int.from_bytes(whole, "big") for whole in best.values()) % 2**256, {}
    try:
        for name in sides:
            folder = asked.base / "processing/output" / name
            folder.mkdir(parents=True, exist_ok=True)
            files[name] = (folder / "data.jsonl").open("w", encoding="utf-8", errors="surrogatepass")
        for text, line in records(asked, dict.fromkeys(dropped, 0)):
            if best.get(text) != digest_of(line):
                continue
            del best[text]
            name = "validation" if is_validation(text, asked.seed, asked.validation_share) else "train"
            files[name].write(line)
            sides[name]["records"] += 1
            sides[name]["bytes"] += len(line.encode("utf-8", "surrogatepass"))
    finally:
        for file in files.values():
            file.close()
    for name, side in sides.items():
        if side["records"] == 0:
            raise Wrong(f"no record is left for {name}: dropped {json.dumps(dropped)}")
    how = f"{asked.seed} {asked.validation_share} {asked.text_field} {asked.language_field} {asked.language}"
    digest = hashlib.sha256(total.to_bytes(32, "big") + how.encode()).hexdigest()
    return {"data_sha256": digest, **sides, "dropped": dropped}


def say(base, message):
    """The exit message."""
    path = base / "output/message"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(message.encode("utf-8")[:MESSAGE_BYTES].decode("utf-8", "ignore").encode("utf-8"))
    print(message)


def main():
    asked = arguments()
    try:
        one_host(asked.base)
        say(asked.base, json.dumps(split(asked)))
    except Wrong as wrong:
        say(asked.base, f"prepare.py: {wrong}")
        sys.exit(1)


main()
