"""Small checks of behaviour that the card quotes: evidence taken away, questions added, other languages.

python recipes/embedded/behaviour.py DATA [--out FILE]
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

import dicast
from dicast.records import Choice, Record, as_questions

SETS = ("snips", "hwu64", "pii_detect", "sms_spam", "synth_policy", "vader_sentiment")
RECORDS = 20
OFF_TOPIC = "Lorem ipsum dolor sit amet, the library opens at nine."
INTENTS = Choice(
    "What does the user want?",
    {
        "restaurant": "reserve a table",
        "music": "play music",
        "weather": "weather forecast",
        "alarm": "set an alarm",
        "taxi": "order a taxi",
    },
)
TEXTS = {
    "English": ("book a table for two", "play some jazz", "will it rain tomorrow?", "wake me at six", "get me a cab"),
    "German": (
        "reserviere einen Tisch für zwei",
        "spiel etwas Jazz",
        "regnet es morgen?",
        "weck mich um sechs",
        "ruf mir ein Taxi",
    ),
    "French": (
        "réserve une table pour deux",
        "mets du jazz",
        "va-t-il pleuvoir demain ?",
        "réveille-moi à six heures",
        "appelle-moi un taxi",
    ),
    "Spanish": (
        "reserva una mesa para dos",
        "pon algo de jazz",
        "¿lloverá mañana?",
        "despiértame a las seis",
        "pídeme un taxi",
    ),
    "Turkish": (
        "iki kişilik masa ayırt",
        "biraz caz çal",
        "yarın yağmur yağacak mı?",
        "beni altıda uyandır",
        "bana taksi çağır",
    ),
}


def entropy(decision: Any) -> list[float]:
    """Entropy of each answer as a share of the largest possible."""
    return [answer.entropy / np.log(len(answer.probabilities)) for answer in decision.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model = dicast.load()
    with_state: list[float] = []
    empty: list[float] = []
    off_topic: list[float] = []
    moved: list[float] = []
    for name in SETS:
        with gzip.open(args.data / name / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line, _ in zip(lines, range(RECORDS), strict=False)]
        for row in rows:
            questions = as_questions(row["questions"])
            base = model.decide_batch([Record(row["state"], questions)])[0]
            with_state += entropy(base)
            empty += entropy(model.decide_batch([Record("", questions)])[0])
            off_topic += entropy(model.decide_batch([Record(OFF_TOPIC, questions)])[0])
            more = dict(reversed([*questions.items(), ("extra", INTENTS)]))
            other = model.decide_batch([Record(row["state"], more)])[0]
            for key, answer in base.items():
                moved += [abs(p - other[key].probabilities[o]) for o, p in answer.probabilities.items()]
    languages = {
        language: sum(
            model.decide(text, {"q": INTENTS})["q"].value == intent
            for text, intent in zip(texts, INTENTS.options, strict=True)
        )
        for language, texts in TEXTS.items()
    }
    found = {
        "entropy": {
            "with state": round(float(np.mean(with_state)), 3),
            "empty state": round(float(np.mean(empty)), 3),
            "off topic": round(float(np.mean(off_topic)), 3),
        },
        "change when questions are added and reordered": {
            "median": round(float(np.median(moved)), 5),
            "max": round(float(np.max(moved)), 5),
        },
        "right intents of 5": languages,
    }
    print(json.dumps(found, indent=1, ensure_ascii=False))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
