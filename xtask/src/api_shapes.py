"""Prints the shapes of the requests that the linter reads, one a line, from the API model that comes with botocore."""

import gzip
import json
import pathlib
import re

import botocore

ROOTS = [
    "CreateEndpointConfigInput",
    "CreateHyperParameterTuningJobRequest",
    "CreateModelInput",
    "CreateProcessingJobRequest",
    "CreateTrainingJobRequest",
    "CreateTransformJobRequest",
]
LIMITS = ("min", "max", "pattern", "enum")
# Rust's regular expressions look neither ahead nor behind.
LOOKS = re.compile(r"\(\?[!=<][^)]*\)")


def shape_of(shape):
    kind = shape["type"]
    made = {"type": kind}
    if kind == "structure":
        made["members"] = {name: member["shape"] for name, member in shape["members"].items()}
        made["required"] = shape.get("required", [])
    elif kind == "list":
        made["member"] = shape["member"]["shape"]
    elif kind == "map":
        made["key"], made["value"] = shape["key"]["shape"], shape["value"]["shape"]
    made |= {limit: shape[limit] for limit in LIMITS if limit in shape}
    if "pattern" in made:
        made["pattern"] = LOOKS.sub("", made["pattern"]).replace("\\p{Alnum}", "a-zA-Z0-9")
    # What holds of any text, and halves of characters, which Rust's text has not.
    if made.get("pattern") in ("[\\s\\S]*", "[\\S\\s]*") or "\\uD800" in made.get("pattern", ""):
        del made["pattern"]
    return made


def main():
    model = pathlib.Path(botocore.__file__).parent / "data/sagemaker/2017-07-24/service-2.json.gz"
    shapes = json.loads(gzip.decompress(model.read_bytes()))["shapes"]
    waiting, found = list(ROOTS), {}
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        made = found[name] = shape_of(shapes[name])
        waiting += made.get("members", {}).values()
        waiting += [made[part] for part in ("member", "key", "value") if part in made]
    lines = [f"    {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    source = f"botocore {botocore.__version__}, sagemaker/2017-07-24/service-2.json"
    print(f'{{\n  "source": {json.dumps(source)},\n  "shapes": {{\n' + ",\n".join(lines) + "\n  }\n}")


main()
