"""The runtime without torch: equal to torch, cached, safe from several threads, clear when a folder is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.segment_models import save_tokenizer, tiny_model, wide_model

from dicast.checkpoints import load_model
from dicast.errors import CapabilityError, CheckpointError, TokenBudgetError
from dicast.model import DecisionModel
from dicast.models import onnx_export, onnx_int8
from dicast.models.base import Logits
from dicast.models.onnx import EncodedSegment, OnnxSegmentModel, SegmentCache, load_segments
from dicast.models.onnx_export import WeightFormat, export_onnx
from dicast.models.segmented import SegmentModel
from dicast.records import Choice, Noul, Question, Record, Score
from dicast.segments import Segment

SRC = Path(__file__).parents[2] / "src"
SCHEMA: dict[str, Question] = {
    "urgent": Noul("is it urgent"),
    "team": Choice("which team", {"billing": "money", "pay": "the card", "lost": None}),
    "level": Score("is it the card", ["no", "yes it is", "the team"]),
}
RECORDS = [
    Record("the card is lost", SCHEMA),
    Record({"text": "pay " * 500, "plan": "billing"}, SCHEMA),
    Record("", {"q": Choice("which team:\nlost card", [f"x{n}" for n in range(9)])}),
    Record({}, {"n": Noul()}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("onnx")
    export_onnx(tiny_model(), made, tokenizer=save_tokenizer(made.parent / "tokenizer"), weights="float32")
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> OnnxSegmentModel:
    return OnnxSegmentModel(folder, threads=1)


def logits_of(model: OnnxSegmentModel | SegmentModel, record: Record) -> Logits:
    return model.score([model.encode(record)])[0]


def test_logits_equal_those_of_torch(model: OnnxSegmentModel) -> None:
    torch_model = tiny_model()
    expected = torch_model.score([torch_model.encode(record) for record in RECORDS])
    found = model.score([model.encode(record) for record in RECORDS])
    for record, other in zip(found, expected, strict=True):
        for mine, theirs in zip(record, other, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-5)


def test_a_cached_answer_is_the_same_answer(folder: Path) -> None:
    model = OnnxSegmentModel(folder, threads=1)
    first = logits_of(model, RECORDS[0])
    misses = model.cache.misses
    second = logits_of(model, RECORDS[0])
    assert model.cache.misses == misses
    for mine, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_new_state_encodes_only_the_state(folder: Path) -> None:
    model = OnnxSegmentModel(folder, threads=1)
    logits_of(model, RECORDS[0])
    misses = model.cache.misses
    logits_of(model, Record("the team is urgent", SCHEMA))
    assert model.cache.misses == misses + 1


def test_tokens_of_known_segments_are_counted_per_record(folder: Path) -> None:
    model = OnnxSegmentModel(folder, threads=1)
    first, second = (model.encode(Record(state, SCHEMA)) for state in ("the card is lost", "the team is urgent"))
    assert [scored.cached_tokens for scored in model.score_reusing([first])] == [0]
    shared = sum(len(segment.tokens) for segment in second.segments if segment in first.segments)
    assert 0 < shared < second.length
    scored = model.score_reusing([second, first])
    assert [one.cached_tokens for one in scored] == [shared, sum(len(s.tokens) for s in first.segments)]
    assert DecisionModel(model).decide("the card is lost", SCHEMA).usage.cached_tokens == scored[1].cached_tokens
    uncached = OnnxSegmentModel(folder, threads=1, cache_mb=0)
    assert [uncached.score_reusing([first])[0].cached_tokens for _ in range(2)] == [0, 0]


def test_without_a_cache_answers_are_the_same(folder: Path, model: OnnxSegmentModel) -> None:
    bare = OnnxSegmentModel(folder, threads=1, cache_mb=0)
    for mine, other in zip(logits_of(bare, RECORDS[0]), logits_of(model, RECORDS[0]), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)
    assert len(bare.cache) == 0


def test_a_segment_first_seen_as_an_option_can_become_a_state(folder: Path) -> None:
    model = OnnxSegmentModel(folder, threads=1)
    logits_of(model, Record("lost", {"q": Choice("which", [f"pay {n}" for n in range(9)])}))
    found = logits_of(model, Record("pay 3", {"q": Noul("is it")}))
    fresh = logits_of(OnnxSegmentModel(folder, threads=1), Record("pay 3", {"q": Noul("is it")}))
    np.testing.assert_allclose(found[0], fresh[0], atol=1e-6)


def test_threads_get_the_answers_of_one(model: OnnxSegmentModel) -> None:
    records = [Record(f"the card {n} is lost", SCHEMA) for n in range(12)]
    alone = [logits_of(model, record) for record in records]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda record: logits_of(model, record), records))
    for mine, other in zip(together, alone, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_cache_drops_the_oldest_and_counts_bytes() -> None:
    def item(rows: int) -> EncodedSegment:
        vector = np.zeros(4, np.float32)
        return EncodedSegment(np.zeros((rows, 4), np.float32), vector, vector, vector)

    cache = SegmentCache(item(2).size * 2)
    first, second, third = (Segment((number,), 0, 1) for number in range(3))
    for segment in (first, second):
        cache.put(segment, item(2))
    assert cache.get(first, memory=True) is not None
    cache.put(third, item(2))
    assert cache.get(second, memory=True) is None
    assert cache.get(first, memory=True) is not None
    assert cache.size == 2 * item(2).size
    cache.put(first, item(2))
    assert cache.size == 2 * item(2).size


@pytest.mark.parametrize("weights", ["float32", "stored", "integer"])
def test_exported_files_give_the_torch_model_back(folder: Path, tmp_path: Path, weights: WeightFormat) -> None:
    original = wide_model()
    onnx_export.export_onnx(original, tmp_path, tokenizer=folder / "tokenizer.json", weights=weights)
    again, runtime = SegmentModel.load(tmp_path), OnnxSegmentModel(tmp_path, threads=1)
    exact = original.score([original.encode(RECORDS[0])])[0]
    for mine, theirs, light in zip(logits_of(again, RECORDS[0]), exact, logits_of(runtime, RECORDS[0]), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 if weights == "float32" else 0.2)
        if weights == "stored":  # the same weights in both runtimes
            np.testing.assert_allclose(mine, light, atol=1e-4)


def test_a_folder_without_the_small_weights_cannot_be_trained_further(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.name != "rest.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match="rest"):
        SegmentModel.load(tmp_path)


@pytest.mark.parametrize("weights", ["stored", "integer"])
def test_int8_files_are_smaller_and_close(
    folder: Path, tmp_path: Path, weights: WeightFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "stored_int8", partial(onnx_int8.stored_int8, least=64))
    monkeypatch.setattr(onnx_export, "QUANTISE_FROM", 64)
    onnx_export.export_onnx(tiny_model(), tmp_path, tokenizer=folder / "tokenizer.json", weights=weights)
    model, exact = OnnxSegmentModel(tmp_path, threads=1), OnnxSegmentModel(folder, threads=1)
    for name in ("encoder.onnx", "head.onnx"):
        assert (tmp_path / name).stat().st_size < (folder / name).stat().st_size
    for mine, other in zip(logits_of(model, RECORDS[0]), logits_of(exact, RECORDS[0]), strict=True):
        assert 0 < np.abs(mine - other).max() < 0.5


def test_files_use_standard_operators_only(folder: Path) -> None:
    onnx = pytest.importorskip("onnx")
    for name in ("encoder", "head"):
        graph = onnx.load(folder / f"{name}.onnx")
        assert {item.domain for item in graph.opset_import} <= {"", "ai.onnx"}
        assert {node.domain for node in graph.graph.node} == {""}


def test_no_records_no_answers(model: OnnxSegmentModel) -> None:
    assert model.score([]) == []


def test_media_is_refused(model: OnnxSegmentModel) -> None:
    with pytest.raises(CapabilityError, match="text"):
        model.encode(Record("x", SCHEMA, images=[object()]))


@pytest.mark.parametrize("missing", ["encoder.onnx", "head.onnx", "dicast.json", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, missing: str) -> None:
    for file in folder.iterdir():
        if file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match=missing):
        OnnxSegmentModel(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"), [("encoder.onnx", b"junk"), ("dicast.json", b"{"), ("dicast.json", b"{}")]
)
def test_a_broken_file_is_named(folder: Path, tmp_path: Path, name: str, content: bytes) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError):
        OnnxSegmentModel(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", b"{", "EOF while parsing"),
        ("tokenizer.json", b"{}", "cannot be loaded"),
    ],
)
def test_loading_names_the_folder_whose_files_are_wrong(
    folder: Path, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_model(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_only_wrong_content_becomes_a_checkpoint_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Exception) -> None:
        def load(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("dicast.models.onnx.load_segments", load)

    fails(KeyError("weights"))
    with pytest.raises(CheckpointError, match="its files lack 'weights'"):
        load_model(str(folder))
    fails(RuntimeError("a fault of ours"))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        load_model(str(folder))


def test_load_segments_takes_either_runtime(folder: Path, tmp_path: Path) -> None:
    assert load_segments(folder, name="shown").info.name == "shown"
    tiny_model().save(tmp_path, folder / "tokenizer.json")
    assert load_segments(tmp_path).info.runtime == "torch"
    for options in ({"device": "cuda"}, {"dtype": "bfloat16"}):
        with pytest.raises(CapabilityError):
            load_segments(folder, **options)


def test_info_says_what_runs(model: OnnxSegmentModel, folder: Path) -> None:
    info = model.info
    assert info.runtime == "onnx"
    assert info.parameters == json.loads((folder / "dicast.json").read_text())["parameters"]
    assert info.details["threads"] == 1


def test_the_runtime_does_not_import_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dicast.models.onnx import OnnxSegmentModel;"
        f"OnnxSegmentModel(Path({str(folder)!r}), threads=1); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env={"PYTHONPATH": str(SRC)})


def test_more_options_than_the_head_can_hold_for_a_long_state_are_refused(
    model: OnnxSegmentModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dicast.models.onnx.MOST_SCORES", 1_000_000)
    questions = {f"q{number}": Choice(f"which {number}", [f"{number} {n}" for n in range(250)]) for number in range(8)}
    with pytest.raises(TokenBudgetError, match=r"2000 options over \d+ tokens .* the limit is 1000000") as caught:
        model.encode(Record("the card is lost " * 300, questions))
    assert caught.value.field == "questions"


def test_a_large_record_gives_its_memory_back_and_answers_the_same(
    folder: Path, model: OnnxSegmentModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record("the card is lost " * 20, {"q": Choice("which", ["pay", "card", "team"])})
    expected = logits_of(model, record)
    monkeypatch.setattr("dicast.models.onnx.HEAD_SCORES", 1)
    np.testing.assert_array_equal(logits_of(OnnxSegmentModel(folder, threads=1), record)[0], expected[0])
