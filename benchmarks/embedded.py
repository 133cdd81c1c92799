"""The embedded model: latency, throughput, cold start and memory, against its own torch form and `sparrow-decider`.

The comparison with torch runs on random weights of the same shape, exported here, so that both forms hold the same
numbers. Sparrow's bundled model reads words without attention: it is far smaller, far quicker, and another class of
answers; it stands here because it is the other decision model that pip installs for a CPU.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoints import CACHE
from benchmarks.measure import Row, compare
from dicast.checkpoints import EMBEDDED_FOLDER
from dicast.engine import Engine
from dicast.model import DecisionModel, load
from dicast.records import Record, as_questions

QUESTIONS: dict[str, Any] = {
    "urgent": {"type": "noul", "instructions": "Is this urgent?"},
    "team": {
        "type": "choice",
        "instructions": "Which team should handle it?",
        "criteria": {"billing": "Payments and refunds", "technical": "Outages and errors", "sales": "Plans"},
    },
    "mood": {"type": "score", "instructions": "How upset is the customer?", "criteria": ["calm", "annoyed", "furious"]},
}
TEXT = (
    "the customer said that order invoice refund payment server error late broken account password login price plan "
    "and our team will check it again today because nothing works since monday please help"
)
WORDS = TEXT.split()
STATE_TOKENS = (64, 128, 512, 2048)
BATCH = 16
TORCH_TARGET = 2.0
COLD = {
    "dicast": "import dicast; m = dicast.load(); m.decide(S, Q)",
    "sparrow-decider": "from sparrow_decider import Decider; m = Decider.load(); m.ask(S, Q)",
}
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
"""Prints the peak resident KiB. (`ru_maxrss` would count the parent, from which the process is forked.)"""


def rows(rounds: int) -> Iterator[Row]:
    """Against torch, throughput, cold start, Sparrow: last, so that without its package only its rows lack."""
    yield from _against_torch(rounds)
    yield _throughput(rounds)
    yield _cold_start(rounds)
    yield from _against_sparrow(rounds)


def text(words: int, seed: int) -> str:
    """A state of so many words, each about one token."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def _fresh(words: int) -> Callable[[], str]:
    """A new state at every call, so that no cache knows it; the questions stay, as they do in use."""
    seeds = itertools.count()
    return lambda: text(words, next(seeds))


def _against_torch(rounds: int) -> Iterator[Row]:
    onnx, torch_form = _same_weights()
    for words in STATE_TOKENS:
        fresh, again = _fresh(words), _fresh(words)
        sample = Record(text(words, 999), as_questions(QUESTIONS))
        yield compare(
            "embedded",
            f"{words} state tokens, 3 questions, against its torch form",
            {
                "dicast (onnx)": lambda fresh=fresh: onnx.decide(fresh(), QUESTIONS),
                "torch float32": lambda again=again: torch_form.decide(again(), QUESTIONS),
            },
            rounds=rounds,
            target=TORCH_TARGET,
            difference=_difference(onnx.logits(sample), torch_form.logits(sample)),
            tolerance=5e-2,
            note="every state is new; the questions are known to the segment cache, which the torch form does not have",
        )


def _against_sparrow(rounds: int) -> Iterator[Row]:
    from sparrow_decider import Decider

    ours, sparrow = load(), Decider.load()
    for words in STATE_TOKENS:
        fresh, again = _fresh(words), _fresh(words)
        yield compare(
            "embedded",
            f"{words} state tokens, 3 questions, shipped weights",
            {
                "dicast (onnx)": lambda fresh=fresh: ours.decide(fresh(), QUESTIONS),
                "sparrow-decider": lambda again=again: sparrow.ask(again(), QUESTIONS),
            },
            rounds=rounds,
            note="not the same answers: Sparrow's bundled model is a much smaller one without attention",
        )


def _throughput(rounds: int) -> Row:
    """Records per second of one schema in bulk, against one by one."""
    ours = load()
    seeds = itertools.count(10_000)

    def records() -> list[Record]:
        questions = as_questions(QUESTIONS)
        return [Record(text(40 + 2 * n, next(seeds)), questions) for n in range(BATCH)]

    with Engine(ours) as engine:
        row = compare(
            "embedded",
            f"{BATCH} records of 40 to {40 + 2 * BATCH} state tokens, one schema",
            {
                "dicast in batches": lambda: ours.decide_batch(records()),
                "dicast engine": lambda: engine.decide_batch(records()),
                "dicast one by one": lambda: [ours.decide(r.state, r.questions) for r in records()],
            },
            rounds=rounds,
        )
    row.facts = {f"records/s, {name}": round(BATCH / seconds, 1) for name, seconds in row.medians.items()}
    return row


def _cold_start(rounds: int) -> Row:
    """A new process that loads the model and answers once; its peak memory is in the facts."""
    contenders = [name for name in COLD if name == "dicast" or find_spec("sparrow_decider")]
    peaks: dict[str, list[int]] = {name: [] for name in contenders}

    def start(name: str) -> None:
        source = Path(__file__).parents[1] / "src"
        setup = f"import sys; sys.path.insert(0, {str(source)!r}); S = {text(128, 0)!r}; Q = {QUESTIONS!r}"
        code = "; ".join([setup, COLD[name], PEAK])
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peaks[name].append(1024 * int(done.stdout.splitlines()[-1]))

    row = compare(
        "embedded",
        "cold start: new process, load, one answer to 128 state tokens",
        {name: lambda name=name: start(name) for name in contenders},
        rounds=rounds,
    )
    row.processor, row.processor_ratios = {}, {}  # the work is done by other processes
    row.facts = {f"peak memory MiB, {name}": round(statistics.median(p) / 2**20, 1) for name, p in peaks.items()}
    return row


def _same_weights() -> tuple[DecisionModel, DecisionModel]:
    """The embedded model's shape with random weights, as ONNX (int8 weights) and in torch float32."""
    import torch

    from dicast.models.bert import BertConfig
    from dicast.models.head import HeadConfig
    from dicast.models.onnx import OnnxSegmentModel
    from dicast.models.onnx_export import export_onnx
    from dicast.models.segmented import SegmentModel, SegmentNet
    from dicast.segments import SegmentEncoder

    config = json.loads((EMBEDDED_FOLDER / "dicast.json").read_text(encoding="utf-8"))
    tokenizer = EMBEDDED_FOLDER / "tokenizer.json"
    torch.manual_seed(0)
    net = SegmentNet(BertConfig(**config["bert"]), HeadConfig(**config["head"])).eval()
    model = SegmentModel(net, SegmentEncoder.from_file(tokenizer))
    folder = CACHE / "segments"
    shutil.rmtree(folder, ignore_errors=True)
    export_onnx(model, folder, tokenizer=tokenizer)
    return DecisionModel(OnnxSegmentModel(folder, threads=torch.get_num_threads())), DecisionModel(model)


def _difference(a: dict[str, dict[str, float]], b: dict[str, dict[str, float]]) -> float:
    return max(float(np.abs(np.array(list(a[k].values())) - np.array(list(b[k].values()))).max()) for k in a)
