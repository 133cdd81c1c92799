"""From the trained torch model to the files that the package ships, with the check of what int8 costs.

    python recipes/embedded/package.py MODEL OUT --released 2026-12-01 --data DATA --rivalry 1.35
    python recipes/embedded/package.py MODEL OUT --check DATA --out agreement.json

The first form writes the graphs, `rest.safetensors`, `dicast.json` and `tokenizer.json` into OUT; the ranges of rounded
activations are taken from train records of DATA, zero-shot sets left out. The same records and layers give the same
bytes. The word vectors, which no training changes, lie in a file of their own to which encoder.onnx refers as external
data, so that a repository keeps them once. The second compares OUT with MODEL in float32 on dev records of DATA: share
of equal answers and change of the largest probability.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data

from dicast.answers import softmax
from dicast.models.onnx import OnnxSegmentModel
from dicast.models.onnx_export import export_onnx
from dicast.models.segmented import SegmentModel
from dicast.records import Record, as_questions
from dicast.segments import Segment

CHECKED = ("banking77", "clinc150", "creak", "goemotions", "hwu64", "pii_detect", "prompt_injection", "sgd",
           "snips", "strategyqa", "synth_policy")  # fmt: skip
RECORDS = 25
SAMPLED = 8
"""Train records of each data set from which the ranges of activations are taken."""
SAMPLED_SEGMENTS = 12
"""Most segments of each of these records."""
ZERO_SHOT = ("banking77", "snips", "strategyqa", "tabfact", "response_preference")
"""Sets with a train part of which nothing is read."""
WORD_TABLE = "word_table.onnx"


def samples(model: SegmentModel, data: Path) -> list[Segment]:
    """Segments of the first train records of every data set, evenly spaced where a record has many."""
    found: dict[Segment, None] = {}
    for file in sorted(data.glob("*/train.jsonl.gz")):
        if file.parent.name in ZERO_SHOT:
            continue
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line, _ in zip(lines, range(SAMPLED), strict=False)]
        for row in rows:
            if row.get("images") or row.get("videos"):
                continue
            segments = model.encode(Record(row["state"], as_questions(row["questions"]))).segments
            found.update(dict.fromkeys(segments[:: math.ceil(len(segments) / SAMPLED_SEGMENTS)]))
    return list(found)


def write(model: Path, out: Path, released: str, data: Path | None, rivalry: float) -> None:
    """Write the shipped files; `rivalry` multiplies what options take of their rivals' odds (why: STUDY.md)."""
    trained = SegmentModel.load(model)
    with torch.no_grad():
        trained.net.prior.rivalry.mul_(rivalry)
    trained.name = "dicast-embedded"
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    trained.extra = {"licence": "Apache-2.0", "released": released, "revision": digest[:16]}
    chosen = samples(trained, data) if data else []
    print(len(chosen), "segments,", sum(len(segment.tokens) for segment in chosen), "tokens sampled")
    print(export_onnx(trained, out, tokenizer=model / "tokenizer.json", weights="integer", samples=chosen))
    split_word_table(out)


def split_word_table(folder: Path) -> None:
    """Move the table of word vectors out of encoder.onnx into a graph of its own that looks rows up.

    encoder.onnx then refers to the table's bytes inside that file.
    """
    encoder = onnx.load(folder / "encoder.onnx")
    (table,) = (
        t for t in encoder.graph.initializer if t.name.startswith("bert.word.weight") and t.name.endswith("int8")
    )
    rows = table.raw_data
    shapes = {"ids": (TensorProto.INT64, ["n"]), "rows": (TensorProto.INT8, ["n", table.dims[1]])}
    ids, out = (helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in shapes.items())
    graph = helper.make_graph(
        [helper.make_node("Gather", [table.name, "ids"], ["rows"])], "words", [ids], [out], [table]
    )
    words = helper.make_model(graph, opset_imports=list(encoder.opset_import), ir_version=encoder.ir_version)
    written = words.SerializeToString()
    (folder / WORD_TABLE).write_bytes(written)
    set_external_data(table, WORD_TABLE, offset=written.index(rows), length=len(rows))
    table.ClearField("raw_data")
    (folder / "encoder.onnx").write_bytes(encoder.SerializeToString())


def compare(model: Path, out: Path, data: Path) -> dict[str, Any]:
    """Agreement of the shipped files with float32 torch."""
    exact, shipped = SegmentModel.load(model), OnnxSegmentModel(out)
    equal: list[bool] = []
    drift: list[float] = []
    for name in CHECKED:
        with gzip.open(data / name / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line, _ in zip(lines, range(RECORDS), strict=False)]
        records = [Record(row["state"], as_questions(row["questions"])) for row in rows]
        first = exact.score([exact.encode(record) for record in records])
        second = shipped.score([shipped.encode(record) for record in records])
        for a, b in zip(first, second, strict=True):
            for x, y in zip(a, b, strict=True):
                p, q = softmax(x.astype(np.float64)), softmax(y.astype(np.float64))
                equal.append(int(p.argmax()) == int(q.argmax()))
                drift.append(float(np.abs(p - q).max()))
    return {
        "questions": len(equal),
        "agreement": round(float(np.mean(equal)), 4),
        "drift_mean": round(float(np.mean(drift)), 4),
        "drift_p95": round(float(np.quantile(drift, 0.95)), 4),
        "drift_max": round(max(drift), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--released", default="")
    parser.add_argument("--data", type=Path, help="folder of data sets: ranges of activations come from train records")
    parser.add_argument("--rivalry", type=float, default=1.0, help="factor of the prior's rivalry vector")
    parser.add_argument("--check", type=Path, help="folder of data sets: compare instead of writing")
    parser.add_argument("--out", type=Path, help="where the comparison goes")
    args = parser.parse_args()
    if args.check is None:
        write(args.model, args.folder, args.released, args.data, args.rivalry)
        return
    found = compare(args.model, args.folder, args.check)
    print(found)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
