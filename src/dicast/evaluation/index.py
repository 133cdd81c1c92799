"""The parts of the community Decision Index that open data can rebuild, scored as the index scores them.

Raw result = native metric x answered / requests; skill = chance-corrected raw result, clipped to 0..1; what is
unanswered, refused or failed is wrong. Task definitions and published rows are data (`published.json`), prompts come
from the record files. Six of the 38 counted benchmarks are at hand, so a mean over them is our own number, not a
Decision Index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dicast.errors import ConfigError
from dicast.evaluation import metrics
from dicast.evaluation.backends import Backend
from dicast.evaluation.bootstrap import bootstrap
from dicast.evaluation.data import DataFile, read
from dicast.evaluation.harness import PREDICTIONS, check_run, predict
from dicast.evaluation.metrics import Floats
from dicast.evaluation.report import interval_text
from dicast.evaluation.scoring import label_of
from dicast.evaluation.seen import flag

SYSTEMS = ("Clef", "Clef-Flash", "Jev", "Kev-9B", "Laya")


@dataclass(slots=True)
class Case:
    """One request of a task.

    Attributes:
        answered: whether every question got an answer.
        correct: whether every question was answered rightly.
        gold: label of the scored question.
        predicted: label given; "" when unanswered.
        track: for tasks scored in tracks.
    """

    answered: bool
    correct: bool
    gold: str
    predicted: str
    track: str = ""


def published() -> dict[str, Any]:
    """Task definitions and published rows, with their sources."""
    text = files("dicast.evaluation").joinpath("published.json").read_text(encoding="utf-8")
    body: dict[str, Any] = json.loads(text)
    return body


def run_index(
    folder: Path,
    backend: Backend,
    out: Path,
    *,
    tasks: Sequence[str] = (),
    limit: int = 0,
    repeats: int = 1000,
    seed: int = 0,
    known: frozenset[str] | None = None,
    facts: Mapping[str, Any] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Run the tasks that the folder holds.

    Args:
        folder: holds ``TASK/test.jsonl.gz`` for tasks of `published.json`.
        backend: who answers.
        out: gets one folder of predictions per task; a second run goes on there.
        tasks: names; all that are found when empty.
        limit: most requests per task, as a fixed random subset; 0 for all.
        repeats: bootstrap draws.
        seed: of subset and draws.
        known: data sets whose train part the model has read; None when not known.
        facts: what else must be the same for an earlier run to be continued.
        advance: called with the number of requests done.

    Raises:
        ConfigError: an unknown task, or none found.
    """
    definitions = published()["tasks"]
    unknown = set(tasks) - set(definitions)
    if unknown:
        raise ConfigError(f"no such task; there are {', '.join(definitions)}", field="task", seen=min(unknown))
    rows, missing, done = [], [], 0
    for name in tasks or definitions:
        path = next(iter(sorted((folder / name).glob("test.*"))), None)
        if path is None:
            missing.append(definitions[name]["title"])
            continue
        target = out / name
        target.mkdir(parents=True, exist_ok=True)
        check_run(target, {"model": backend.name, "task": name, "limit": limit, "seed": seed, **(facts or {})})
        cases = []
        examples = read([DataFile(name, str(path))], limit=limit, seed=seed)
        for example, prediction in predict(examples, backend, target / PREDICTIONS):
            cases.append(case_of(example, prediction, definitions[name].get("track", "")))
            done += 1
            advance(done)
        scored = score_task(definitions[name], cases, repeats=repeats, seed=seed)
        rows.append({"task": name, "seen": flag(name, known), **scored})
    if not rows:
        raise ConfigError(f"no task of the index found in {folder}", field="index", seen=str(folder))
    counted = [row for row in rows if row["counted"]]
    return {
        "model": backend.describe(),
        "tasks": rows,
        "mean_skill": float(np.mean([row["skill"]["value"] for row in counted])) if counted else None,
        "counted": len(counted),
        "missing": missing + published()["missing"],
    }


def case_of(example: Any, prediction: Mapping[str, Any], track_key: str) -> Case:
    """A request and its prediction as a case; a task with several questions per request counts them together."""
    correct, answered, gold, predicted = True, not prediction["error"], "", ""
    for question_id, asked in prediction["questions"].items():
        question, p = example.record.questions[question_id], asked.get("p")
        gold = label_of(question, asked["gold"])
        predicted = label_of(question, asked["options"][int(np.argmax(p))]) if p else ""
        answered = answered and p is not None
        correct = correct and p is not None and asked["options"][int(np.argmax(p))] == asked["gold"]
    return Case(answered, answered and correct, gold, predicted, str(example.meta.get(track_key, "")))


def score_task(task: Mapping[str, Any], cases: Sequence[Case], *, repeats: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Native metric, coverage, raw result and skill of one task, with bootstrap intervals over requests.

    Args:
        task: a definition from `published.json`; a chance per track means that skills are averaged over tracks.
        cases: the requests.
        repeats: bootstrap draws.
        seed: of the draws.
    """
    chances = task["chance"] if isinstance(task["chance"], dict) else {"": task["chance"]}
    answered = np.array([case.answered for case in cases])
    correct = np.array([float(case.correct) for case in cases])
    known: dict[str, int] = {}
    gold = metrics.label_numbers([case.gold for case in cases], known)
    predicted = metrics.label_numbers([case.predicted for case in cases], known)
    tracks = np.array([case.track if len(chances) > 1 else "" for case in cases])

    def measure(weights: Floats) -> dict[str, float]:
        native, coverage, raw, skill = [], [], [], []
        for track, chance in chances.items():
            here = tracks == track
            used = here & answered
            if task["metric"] == "macro_f1":
                native.append(metrics.macro_f1(gold[used], predicted[used], weights[used]))
            else:
                native.append(metrics.accuracy(correct[used], weights[used]))
            coverage.append(metrics.mean(answered[here], weights[here]))
            raw.append(native[-1] * coverage[-1] if coverage[-1] > 0 else 0.0)
            skill.append(metrics.skill(raw[-1], chance))
        values = {"native": native, "coverage": coverage, "raw": raw, "skill": skill}
        return {name: float(np.mean(value)) for name, value in values.items()}

    measured = bootstrap(measure, np.arange(len(cases)), repeats=repeats, seed=seed)
    facts = {key: task[key] for key in ("title", "area", "metric", "chance", "counted")}
    whole = {"requests": len(cases), "requests_of_index": task["requests"]}
    return facts | whole | {name: asdict(interval) for name, interval in measured.items()}


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a Markdown page, beside the published rows."""
    rows = published()["rows"]
    lines = [
        f"# Decision Index tasks rebuilt from open data: {result['model']['name']}",
        "",
        "Raw results and skills in percent, with 95 % bootstrap intervals over requests; published rows are raw.",
        "",
        "| area | benchmark | n | metric | coverage | raw | skill | train part | " + " | ".join(SYSTEMS) + " |",
        "|---|---|---:|---|---:|---:|---:|---|" + "---:|" * len(SYSTEMS),
    ]
    for row in result["tasks"]:
        n, whole = row["requests"], row["requests_of_index"]
        counted = "" if row["counted"] else " (not counted)"
        others = " | ".join(_percent(rows[system].get(row["task"])) for system in SYSTEMS)
        lines.append(
            f"| {row['area']} | {row['title']}{counted} | {n if n == whole else f'{n} of {whole}'} | {row['metric']} "
            f"| {row['coverage']['value']:.1%} | {_shown(row['raw'])} | {_shown(row['skill'])} | {row['seen']} "
            f"| {others} |"
        )
    if result["mean_skill"] is not None:
        lines += ["", f"Mean skill of the {result['counted']} counted benchmarks: {100 * result['mean_skill']:.1f}."]
    lines += [
        "",
        f"This mean is our own number. It must not be called a Decision Index, which has {_whole_index()} counted "
        f"benchmarks; not at hand: {', '.join(result['missing'])}.",
        "",
        published()["about"] + " Sources: " + "; ".join(published()["sources"]) + ".",
    ]
    return "\n".join(lines) + "\n"


def _whole_index() -> int:
    body = published()
    return len(body["missing"]) + len([task for task in body["tasks"].values() if task["counted"]])


def _shown(value: Mapping[str, float]) -> str:
    return interval_text(value, scale=100, digits=1)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
