# ruff: noqa: E501 - long lines of wording are data here
"""Build the training mixture: one JSON-lines file per source and a manifest.

    PYTHONPATH=recipes/embedded python -m mixture.build DATA OUT --manifest recipes/embedded/manifest.json

DATA is `shared/data`. Only train parts are read, and none of the held-out sets (`HELD_OUT`). The output is a pure function
of DATA and the seed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mixture import answers, attributes, derived, forms, plugins
from mixture.generated import MAKERS

Row = dict[str, Any]
SEED = 20
HELD_OUT = (
    "api_bank",
    "banking77",
    "bfcl",
    "bfcl_other",
    "cruxeval",
    "response_preference",
    "snips",
    "strategyqa",
    "tabfact",
)
"""Never read: zero-shot sets, and the other categories of BFCL."""
MOST_STATE = 1800
"""Longest state in characters; longer records are left out."""
REAL: dict[str, tuple[int, int, str]] = {
    "clinc150": (2600, 1, "CC BY 3.0"),
    "hwu64": (2600, 2, "CC BY 4.0"),
    "sgd": (2400, 2, "CC BY-SA 4.0"),
    "goemotions": (3400, 3, "CC BY 4.0"),
    "vader_sentiment": (2200, 2, "MIT"),
    "hate_offensive": (1500, 2, "MIT"),
    "sms_spam": (1500, 2, "CC BY 4.0"),
    "pii_detect": (1858, 3, "MIT"),
    "prompt_injection": (1900, 2, "MIT, contexts CC BY-SA"),
    "synth_policy": (4500, 2, "CC0"),
    "creak": (2500, 1, "MIT"),
    "folio": (900, 1, "CC BY-SA 4.0"),
    "gsm8k_choice": (400, 1, "MIT"),
    "onestop_english": (350, 1, "CC BY-SA 4.0"),
    "rubric_score": (400, 1, "Apache-2.0"),
    "metatool": (2400, 2, "MIT"),
}
"""Set -> records, most questions of a record, licence."""
DERIVED = {"intent_yes_no": 2600, "intent_pairs": 1000, "intent_inverse": 1000, "intent_many": 3000, "intent_tools": 2400,
           "sgd_api": 2000, "sgd_reply": 700, "better_answer": 500, "emotion_choice": 1200, "plugin_calls": 2600,
           "no_evidence": 1800}  # fmt: skip
KEEP_PLAIN = 0.4
"""Share of public records that keep their own form."""


def read(data: Path, name: str) -> list[Row]:
    """The train part of a set."""
    if name in HELD_OUT:
        raise ValueError(f"{name} is held out")
    with gzip.open(data / name / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def short_enough(row: Row, most: int = MOST_STATE) -> bool:
    """Whether the state is short enough to train on."""
    return len(json.dumps(row["state"], ensure_ascii=False)) <= most


def real_rows(rng: random.Random, rows: list[Row], count: int, most_questions: int) -> Iterator[Row]:
    """Sampled records of a set, part of them in other forms."""
    rows = [row for row in rows if short_enough(row)]
    for row in rng.sample(rows, min(count, len(rows))):
        row = forms.subset(rng, row, most_questions)
        yield row if rng.random() < KEEP_PLAIN else varied(rng, row)


def varied(rng: random.Random, row: Row) -> Row:
    """One record in another form."""
    steps: tuple[tuple[float, Callable[[], Row]], ...] = (
        (0.4, lambda: forms.reverse_scores(row)),
        (0.8, lambda: forms.vary_noul(rng, row)),
        (0.2, lambda: forms.fewer_options(rng, row, 2, 6)),
        (0.2, lambda: row if has_none(row) else forms.without_gold(rng, row)),
        (0.3, lambda: forms.neutral_ids(rng, row)),
        (0.3, lambda: forms.wrap_state(rng, row)),
        (0.35, lambda: forms.index_form(rng, row)),
    )
    for share, step in steps:
        if rng.random() < share:
            row = step()
    return row


def has_none(row: Row) -> bool:
    """Whether a choice already has an option for "none of them", or its options are few."""
    texts = [
        f"{key} {value}".lower()
        for question in row["questions"].values()
        if question["type"] == "choice"
        for key, value in forms.as_map(question["criteria"]).items()
    ]
    return any(word in text for text in texts for word in ("none", "out of scope", "neither", "no intent")) or bool(
        row.get("soft")
    )


def labelled(rows: list[Row], name: str) -> derived.Labelled:
    """Texts of intent sets with their labels as words."""
    found = []
    for row in rows:
        label = row["meta"]["label"].replace("_", " ")
        text = row["state"] if isinstance(row["state"], str) else (row["state"] or {}).get("message")
        if isinstance(text, str) and text.strip() and label not in ("oos", ""):
            found.append((text, label))
    return found


def sgd_catalogue(rows: list[Row]) -> dict[str, str]:
    """Intents of all services with their description."""
    found: dict[str, str] = {}
    for row in rows:
        criteria = row["questions"]["intent"]["criteria"]
        found.update({key: value for key, value in criteria.items() if key != "NONE"})
    return found


def emotion_choice(rng: random.Random, rows: list[Row], names: list[str]) -> Row | None:
    """A comment with one emotion, as a choice among several."""
    row = rng.choice(rows)
    labels = row["meta"]["labels"]
    if len(labels) != 1 or labels[0] not in names:
        return None
    options = [*rng.sample([name for name in names if name != labels[0]], rng.choice((2, 3, 5, 7, 12, 20))), labels[0]]
    rng.shuffle(options)
    asked = rng.choice(
        (
            "Which emotion does the writer show?",
            "Main feeling of the comment?",
            "Classify the emotion.",
            "What does the author feel?",
        )
    )
    return {"state": row["state"], "questions": {"q": {"type": "choice", "instructions": asked, "criteria": dict.fromkeys(options)}},
            "gold": {"q": labels[0]}}  # fmt: skip


def derived_sources(rng: random.Random, data: Path) -> Iterator[tuple[str, list[Row]]]:
    """Everything made from the labels of public sets."""
    intents = {name: labelled(read(data, name), name) for name in ("clinc150", "hwu64")}
    near = {name: derived.near_labels(sorted({label for _, label in items})) for name, items in intents.items()}
    texts: dict[str, dict[str, list[str]]] = {name: {} for name in intents}
    for name, items in intents.items():
        for text, label in items:
            texts[name].setdefault(label, []).append(text)
    either = ("clinc150", "clinc150", "hwu64")

    def pick() -> str:
        return rng.choice(either)

    def many() -> Row:
        name = pick()
        sizes = (5, 10, 20, 40, 64, 77, 100, 150)
        return derived.many(rng, intents[name], list(texts[name]), sizes)

    sgd = [row for row in read(data, "sgd") if short_enough(row)]
    catalogue = sgd_catalogue(sgd)
    rubric = [row for row in read(data, "rubric_score") if isinstance(row["state"].get("response"), str)]
    emotions = read(data, "goemotions")
    names = sorted({label for row in emotions for label in row["meta"]["labels"]})
    requests = read(data, "metatool")
    known = plugins.descriptions(requests)
    makers: dict[str, Callable[[], Row | None]] = {
        "intent_yes_no": lambda: (lambda n: derived.yes_no(rng, intents[n], near[n]))(pick()),
        "intent_pairs": lambda: derived.pair(rng, texts[pick()]),
        "intent_inverse": lambda: derived.inverse(rng, texts[pick()]),
        "intent_many": many,
        "intent_tools": lambda: (lambda n: derived.as_tools(rng, intents[n], near[n]))(pick()),
        "sgd_api": lambda: derived.api_choice(rng, sgd, catalogue),
        "sgd_reply": lambda: derived.next_reply(rng, sgd),
        "better_answer": lambda: derived.better_answer(rng, rubric),
        "emotion_choice": lambda: emotion_choice(rng, emotions, names),
        "plugin_calls": lambda: plugins.calls(rng, rng.choice(requests), known),
    }
    for name, make in makers.items():
        rows: list[Row] = []
        while len(rows) < DERIVED[name]:
            row = make()
            if row is not None:
                rows.append(forms.vary_noul(rng, row) if rng.random() < 0.4 else row)
        yield name, rows


def no_evidence(rng: random.Random, pool: list[Row]) -> list[Row]:
    """Records whose state was taken away or exchanged; without an option for that case all answers are equally likely."""
    rows = [row for row in pool if not has_none(row) and short_enough(row, 600) and row["state"]]
    made = []
    for row in rng.sample(rows, DERIVED["no_evidence"]):
        other = rng.choice(("The quick brown fox jumps over the lazy dog.", "asdf qwer zxcv", "1234 5678", "Lorem ipsum dolor sit amet.",
                            "The library opens at nine.", {"note": "test"}, {"text": "hello"}, "The moon is 384,400 km away."))  # fmt: skip
        made.append(forms.uniform_state(rng, row, other))
    return made


def generated_sources(rng: random.Random) -> Iterator[tuple[str, list[Row]]]:
    """Everything made from nothing."""
    for name, (maker, count) in MAKERS.items():
        rows = [maker(rng) for _ in range(count)]
        if name not in ("tool_calls", "tool_choice"):
            rows = [forms.subset(rng, {"soft": {}, **row}, 3) for row in rows]
        yield name, [varied(rng, row) if rng.random() < 0.3 and name != "tool_calls" else row for row in rows]


def write(out: Path, name: str, rows: list[Row], licence: str) -> Row:
    """Write one source; the entry for the manifest."""
    lines = []
    for number, row in enumerate(rows):
        kept = {
            "id": f"{name}/{number}",
            **{
                key: row[key]
                for key in ("state", "questions", "gold", "soft")
                if key == "state" or row.get(key) is not None
            },
        }
        lines.append(json.dumps(kept, ensure_ascii=False))
    body = ("\n".join(lines) + "\n").encode()
    (out / f"{name}.jsonl").write_bytes(body)
    return {"source": name, "records": len(rows), "sha256": hashlib.sha256(body).hexdigest(), "licence": licence}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--manifest", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    entries, pool = [], []
    for name, (count, questions, licence) in REAL.items():
        rows = list(real_rows(random.Random(f"{SEED}/{name}"), read(args.data, name), count, questions))
        pool += rows
        entries.append(write(args.out, f"real_{name}", rows, licence))
    for name, rows in derived_sources(random.Random(f"{SEED}/derived"), args.data):
        pool += rows if name in ("intent_many", "emotion_choice") else []
        entries.append(write(args.out, name, rows, "as the sets it is made from"))
    for name, rows in generated_sources(random.Random(f"{SEED}/generated")):
        pool += rows if name in ("ticket", "facts", "tool_choice") else []
        entries.append(write(args.out, f"made_{name}", rows, "own work, CC0"))
    rows = attributes.records(random.Random(f"{SEED}/attributes"))
    entries.append(write(args.out, "made_attributes", rows, "own work, CC0"))
    rows = answers.records(random.Random(f"{SEED}/answers"), lambda name: read(args.data, name))
    entries.append(write(args.out, "made_preference", rows, "as the sets it is made from"))
    entries.append(write(args.out, "no_evidence", no_evidence(random.Random(f"{SEED}/none"), pool), "as its sources"))
    summary = {
        "seed": SEED,
        "held_out": HELD_OUT,
        "records": sum(entry["records"] for entry in entries),
        "sources": entries,
    }
    if args.manifest:
        args.manifest.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps({entry["source"]: entry["records"] for entry in entries}), summary["records"])


if __name__ == "__main__":
    main()
