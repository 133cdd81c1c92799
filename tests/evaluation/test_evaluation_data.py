"""Finding files, fixed subsets, content hashes, and what a model was trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.evaluation.toys import DATA, examples

from dicast.errors import ConfigError
from dicast.evaluation.data import ContentHash, find_files, read, record_hash, subset
from dicast.evaluation.seen import flag, known_sets, refuse_training_files, trained_on, training_hashes
from dicast.records import Noul, Record
from dicast.training.data import data_hash


def test_a_folder_stands_for_its_split_or_its_subfolders() -> None:
    one = find_files([str(DATA / "records" / "creak")], split="dev")
    assert [(file.name, Path(file.path).name) for file in one] == [("creak", "dev.jsonl")]
    assert len(find_files([str(DATA / "index")])) == 4
    assert find_files([one[0].path])[0].name == "creak"
    with pytest.raises(ConfigError, match="no test records"):
        find_files([str(DATA / "records")])


def test_every_source_must_hold_something(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no dev records"):
        find_files([str(DATA / "records"), str(tmp_path)], split="dev")


def test_a_subset_is_fixed_uniform_and_in_order() -> None:
    made = list(examples(50))
    chosen = [example.record.id for example in subset(made, 10, seed=3)]
    assert chosen == [example.record.id for example in subset(iter(made), 10, seed=3)]
    assert chosen == sorted(chosen, key=lambda name: int(str(name)[1:]))
    assert chosen != [example.record.id for example in subset(made, 10, seed=4)]
    counts = dict.fromkeys((example.record.id for example in made), 0)
    for seed in range(400):
        for example in subset(made, 10, seed=seed):
            counts[example.record.id] += 1
    assert min(counts.values()) > 40
    assert max(counts.values()) < 125
    assert len(subset(made, 99)) == 50


def test_limits_hold_per_file() -> None:
    files = find_files([str(DATA / "records")], split="dev")
    assert len(list(read(files, limit=2))) == 6


def test_a_hash_stands_for_what_the_model_sees() -> None:
    record = Record("state", {"q": Noul("Is it?")}, id="1")
    assert record_hash(record) == record_hash(Record("state", {"q": Noul("Is it?")}, id="2"))
    assert record_hash(record) != record_hash(Record("state", {"q": Noul("Is it not?")}))
    first, second = ContentHash(), ContentHash()
    for example in examples(3):
        first.add(example)
        example.gold = {"yes": "true"}
        second.add(example)
    assert len(first.hexdigest()) == 64
    assert first.hexdigest() != second.hexdigest()


def test_what_a_model_has_seen_is_read_from_its_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"sources": [{"source": "real_creak"}, {"source": "made_up"}]}))
    known = trained_on(manifest)
    assert flag("creak", known) == "seen"
    assert flag("snips", known) == "zero-shot"
    assert flag("snips", None) == "unknown"
    assert known_sets(tmp_path / "model") == known
    assert known_sets(tmp_path / "model" / "deeper") is None
    manifest.write_text("[]")
    with pytest.raises(ConfigError, match="not a training manifest"):
        trained_on(manifest)


def test_training_files_are_refused_for_calibration(tmp_path: Path) -> None:
    files = find_files([str(DATA / "records")], split="dev")
    checkpoint = tmp_path / "run" / "model"
    checkpoint.mkdir(parents=True)
    refuse_training_files(files, checkpoint)
    summary = {"data": {files[1].path: data_hash(files[1].path)}}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    assert training_hashes(checkpoint) == {data_hash(files[1].path)}
    with pytest.raises(ConfigError, match="was trained on this file"):
        refuse_training_files(files, checkpoint)
