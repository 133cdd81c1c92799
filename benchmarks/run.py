"""`python -m benchmarks.run`: every comparison in turn; writes benchmarks/results/<name>.json and .md.

    --sections head,clef,embedded     which to run (these; also clef_small, and server has a command of its own)
    --rounds 5                               times that each contender runs
    --name local                             name of the result files

A section whose packages are not installed is left out and named; noise never fails a run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.measure import Row, machine, markdown

SECTIONS = ("head", "clef", "embedded")
RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections and write the result files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="local")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    facts = machine() | {"command": "python -m benchmarks.run " + " ".join(arguments or sys.argv[1:])}
    rows: list[Row] = []
    left_out = {}
    for section in asked.sections.split(","):
        try:
            for row in import_module(f"benchmarks.{section}").rows(asked.rounds):
                rows.append(row)
                _write(asked.name, rows, facts, left_out)
                print(f"{time.strftime('%H:%M:%S')} {row.section}: {row.name}: {row.processor_ratios}", flush=True)
        except ImportError as error:
            left_out[section] = str(error)
            print(f"{section} is left out: {error}", flush=True)
    _write(asked.name, rows, facts, left_out)
    print(markdown(rows, facts))
    return 0


def _write(name: str, rows: Sequence[Row], facts: dict[str, object], left_out: dict[str, str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": facts, "left_out": left_out, "rows": [row.to_dict() for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(markdown(rows, facts), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
