"""Quality of an embedded model on the parts of `shared/data`: one line per set and question type, JSON at the end.

    python recipes/embedded/evaluate.py MODEL DATA --sets bfcl:test,clinc150:dev --limit 500 --out results.json

MODEL is a folder of the torch model (model.safetensors) or of the onnx runtime. Every set is shuffled by a fixed seed
before `--limit` is applied. `case` is the share of records with every question right. Intervals are 95% percentile
bootstraps over records.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dicast.answers import softmax
from dicast.records import Record, as_questions

ZERO_SHOT = ("banking77", "snips", "strategyqa", "tabfact", "response_preference", "api_bank", "bfcl", "bfcl_other",
             "metatool", "cruxeval")  # fmt: skip


def load_model(folder: Path) -> Any:
    """The torch model or the onnx runtime, whichever the folder holds."""
    if (folder / "model.safetensors").exists():
        from dicast.models.segmented import SegmentModel

        return SegmentModel.load(folder)
    from dicast.models.onnx import OnnxSegmentModel

    return OnnxSegmentModel.load(folder)


def read_rows(data: Path, name: str, part: str, limit: int) -> list[dict[str, Any]]:
    """Records of one part in a fixed random order. `holdout30` means 30% of test, `rest70` the others."""
    file = "test" if part in ("holdout30", "rest70") else part
    with gzip.open(data / name / f"{file}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    random.Random(7).shuffle(rows)
    cut = int(len(rows) * 0.3)
    rows = {"holdout30": rows[:cut], "rest70": rows[cut:]}.get(part, rows)
    return rows[:limit] if limit else rows


def answers_of(model: Any, rows: Sequence[dict[str, Any]], batch: int) -> Iterable[tuple[dict[str, Any], Any, Any]]:
    """Row, encoding and logits of each record; records of similar length are scored together."""
    encoded = [(row, model.encode(Record(row["state"], as_questions(row["questions"])))) for row in rows]
    encoded.sort(key=lambda pair: pair[1].length)
    for first in range(0, len(encoded), batch):
        chunk = encoded[first : first + batch]
        for (row, encoding), logits in zip(chunk, model.score([item for _, item in chunk]), strict=True):
            yield row, encoding, logits


def gold_index(gold: Any, options: Sequence[str]) -> int:
    """Index of the gold option."""
    return options.index(str(gold).lower() if isinstance(gold, bool) else str(gold))


def label_text(question: dict[str, Any], option: str) -> str:
    """The text by which labels are compared across records."""
    criteria = question.get("criteria")
    return str((criteria or {}).get(option) or option) if isinstance(criteria, dict) else option


def evaluate(model: Any, rows: Sequence[dict[str, Any]], batch: int = 16) -> dict[str, Any]:
    """Metrics of one set."""
    per_type: dict[str, list[tuple[int, int, float, np.ndarray]]] = defaultdict(list)
    texts: list[tuple[str, str]] = []
    cases: list[float] = []
    for number, (row, encoding, logits) in enumerate(answers_of(model, rows, batch)):
        right = []
        for question, values in zip(encoding.questions, logits, strict=True):
            if question.id not in row["gold"]:
                continue
            gold = gold_index(row["gold"][question.id], question.options)
            p = softmax(np.asarray(values, np.float64))
            best = int(np.argmax(p))
            right.append(best == gold)
            per_type[question.type].append((number, gold, float(best == gold), p))
            if question.type == "choice":
                asked = row["questions"][question.id]
                texts.append((label_text(asked, question.options[gold]), label_text(asked, question.options[best])))
        cases.append(float(all(right)))
    result: dict[str, Any] = {"records": len(rows), "case": round(float(np.mean(cases)), 4)}
    result["case_interval"] = interval(np.asarray(cases))
    for kind, items in per_type.items():
        result[kind] = type_metrics(kind, items)
    if "choice" in result and len({gold for gold, _ in texts}) > 2:
        result["choice"]["macro_f1"] = round(macro_f1(texts), 4)
    return result


def type_metrics(kind: str, items: Sequence[tuple[int, int, float, np.ndarray]]) -> dict[str, Any]:
    """Accuracy with an interval, log loss, majority share, ECE, and AUC (noul) or the error of the expected level."""
    hits = np.asarray([hit for _, _, hit, _ in items])
    golds = [gold for _, gold, _, _ in items]
    loss = -np.mean([np.log(max(p[gold], 1e-9)) for _, gold, _, p in items])
    found = {
        "n": len(items),
        "accuracy": round(float(hits.mean()), 4),
        "interval": interval(hits, [number for number, *_ in items]),
        "nll": round(float(loss), 4),
        "ece": round(ece([(float(p.max()), hit) for _, _, hit, p in items]), 4),
        "chance": round(float(np.mean([1 / len(p) for *_, p in items])), 4),
    }
    if kind != "choice":
        found["majority"] = round(max(golds.count(value) for value in set(golds)) / len(golds), 4)
    if kind == "noul":
        found["auc"] = round(auc([p[0] for *_, p in items], [gold == 0 for gold in golds]), 4)
    if kind == "score":
        found["mae"] = round(float(np.mean([abs(np.arange(len(p)) @ p - gold) for _, gold, _, p in items])), 4)
    return found


def interval(values: np.ndarray, clusters: Sequence[int] | None = None, draws: int = 1000) -> list[float]:
    """95% bootstrap interval of the mean, resampling clusters (records)."""
    keys = np.arange(len(values)) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    sums, counts = np.bincount(keys, values), np.bincount(keys)
    picks = np.random.default_rng(0).integers(0, len(sums), (draws, len(sums)))
    means = sums[picks].sum(1) / counts[picks].sum(1)
    return [round(float(x), 4) for x in np.quantile(means, [0.025, 0.975])]


def macro_f1(pairs: Sequence[tuple[str, str]]) -> float:
    """Macro-F1 over the union of gold and predicted texts."""
    scores = []
    for label in {text for pair in pairs for text in pair}:
        true = sum(g == label and p == label for g, p in pairs)
        scores.append(2 * true / max(1, sum(g == label for g, _ in pairs) + sum(p == label for _, p in pairs)))
    return float(np.mean(scores))


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Area under the ROC curve; 0.5 where one class is missing."""
    order = np.argsort(np.argsort(scores, kind="stable"), kind="stable") + 1
    labels_array = np.asarray(labels)
    positive, negative = labels_array.sum(), (~labels_array).sum()
    if not positive or not negative:
        return 0.5
    return float((order[labels_array].sum() - positive * (positive + 1) / 2) / (positive * negative))


def ece(pairs: Sequence[tuple[float, float]], bins: int = 15) -> float:
    """Expected calibration error of the top option, equal-width bins."""
    array = np.asarray(pairs)
    which = np.minimum((array[:, 0] * bins).astype(int), bins - 1)
    gaps = [abs(array[which == b, 0].mean() - array[which == b, 1].mean()) * (which == b).mean() for b in set(which)]
    return float(sum(gaps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", required=True, help="name:part, separated by commas")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model = load_model(args.model)
    results = {}
    for item in args.sets.split(","):
        name, _, part = item.partition(":")
        started = time.perf_counter()
        found = evaluate(model, read_rows(args.data, name, part, args.limit), args.batch)
        found |= {"zero_shot": name in ZERO_SHOT, "seconds": round(time.perf_counter() - started, 1)}
        results[item] = found
        print(item, json.dumps(found), flush=True)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
