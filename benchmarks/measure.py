"""Timing side by side: every contender once per round, in turn, so that a busy machine slows all of them alike.

The median over the rounds stands for a contender; a ratio is the median of the rounds' own ratios. Beside the time on
the clock stands the processor time of this process, in which other programs on the machine have no part: on a busy
machine its ratios are the ones to trust. Nothing here fails on noise: every single measurement is written down.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

Contender = Callable[[], Any]
PACKAGES = ("dicast", "torch", "transformers", "onnxruntime", "numpy", "clef-finetune", "sparrow-decider")


@dataclass(slots=True)
class Row:
    """One line of the result.

    Attributes:
        section, name: what was measured.
        seconds: contender -> seconds per round, in rounds' order; the first contender is ours.
        processor: contender -> processor seconds per round, over all threads; empty where work runs in other processes.
        ratios: other contender -> how many times quicker ours was on the clock, median over rounds.
        processor_ratios: the same in processor time.
        target: ratio that was aimed at, if any.
        difference: largest difference of an answer to the other implementation's, in `unit`.
        tolerance: largest difference that counts as equal.
        unit: of difference and tolerance.
        note: what one must know to read the row.
        facts: further numbers (tokens, bytes, records per second).
    """

    section: str
    name: str
    seconds: dict[str, list[float]]
    processor: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    processor_ratios: dict[str, float] = field(default_factory=dict)
    target: float | None = None
    difference: float | None = None
    tolerance: float | None = None
    unit: str = "logit"
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def medians(self) -> dict[str, float]:
        """Contender -> median seconds."""
        return {name: statistics.median(values) for name, values in self.seconds.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the result file."""
        return asdict(self) | {"medians": self.medians}


def compare(section: str, name: str, contenders: Mapping[str, Contender], *, rounds: int, **facts: Any) -> Row:
    """Time contenders in turn.

    Args:
        section, name: what is measured.
        contenders: name -> a call that does the work once; the first is ours.
        rounds: how often each runs, after one run of each that is not counted.
        **facts: further fields of :class:`Row`.
    """
    for contender in contenders.values():
        contender()
    times: dict[str, list[Time]] = {label: [] for label in contenders}
    for _ in range(rounds):
        for label, contender in contenders.items():
            times[label].append(timed(contender))
    return row(section, name, times, **facts)


def row(section: str, name: str, times: Mapping[str, Sequence[Time]], **facts: Any) -> Row:
    """A row from the times per round; the first contender is ours."""
    seconds = {label: [time.clock for time in taken] for label, taken in times.items()}
    processor = {label: [time.processor for time in taken] for label, taken in times.items()}
    return Row(section, name, seconds, processor, _ratios(seconds), _ratios(processor), **facts)


class Time(NamedTuple):
    """What one call took.

    Attributes:
        clock: seconds that passed.
        processor: seconds of processor time, over all threads of this process.
    """

    clock: float
    processor: float

    def times(self, factor: float) -> Time:
        """So many times as long."""
        return Time(factor * self.clock, factor * self.processor)


def timed(call: Contender) -> Time:
    """What a call takes."""
    clock, processor = time.perf_counter(), time.process_time()
    call()
    return Time(time.perf_counter() - clock, time.process_time() - processor)


def _ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    ours, *others = seconds
    return {
        other: statistics.median(b / a for a, b in zip(seconds[ours], seconds[other], strict=True))
        for other in others
        if min(seconds[ours]) > 0
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": _threads(),
        "load_before": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
    }


def markdown(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """The result as a Markdown table."""
    lines = [
        f"Measured on {facts['processor']}, {facts['cores']} cores, {facts['threads']} torch threads, load average "
        f"{facts['load_before'][0]} when it began; torch {facts['packages']['torch']}, "
        f"transformers {facts['packages']['transformers']}, onnxruntime {facts['packages']['onnxruntime']}.",
        "",
        "| what | ours | others | times quicker (target) | by processor time | difference (tolerance) | rounds |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, rows), *_notes(rows)]) + "\n"


def _line(item: Row) -> str:
    ours, *others = item.medians
    aim = f" ({item.target:g})" if item.target else ""
    ratios, processor = (
        "; ".join(f"{name} {ratio:.2f}" for name, ratio in values.items())
        for values in (item.ratios, item.processor_ratios)
    )
    equal = "" if item.difference is None else f"{item.difference:.1e} {item.unit} ({item.tolerance:.0e})"
    shown = "; ".join(f"{name} {_time(item.medians[name])}" for name in others)
    rounds = len(item.seconds[ours])
    return (
        f"| {item.section}: {item.name} | {_time(item.medians[ours])} | {shown} | {ratios}{aim} | {processor} | "
        f"{equal} | {rounds} |"
    )


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = [f"- {item.section}, {item.name}: {item.note}" for item in rows if item.note]
    facts = [
        f"- {item.section}, {item.name}: " + ", ".join(f"{key} {value}" for key, value in item.facts.items())
        for item in rows
        if item.facts
    ]
    return ["", *notes, *facts] if notes or facts else []


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "source" if name == "dicast" else "not installed"
