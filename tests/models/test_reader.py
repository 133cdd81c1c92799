"""The reader: hypotheses attend to evidence as in a cross-encoder, alike in torch and in its graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.segment_models import save_tokenizer, tiny_model, wide_model

from dicast.errors import CheckpointError, TokenBudgetError
from dicast.models.bert import BertLayer
from dicast.models.onnx import OnnxSegmentModel
from dicast.models.onnx_export import OPSET, export_onnx, reader_graph, sample_encodings
from dicast.models.onnx_int8 import stored_int8
from dicast.models.onnx_reader import READER_INPUTS, reader_onnx, reader_product_inputs
from dicast.models.reader import Reader
from dicast.models.segment_batch import hypotheses_of, plan_batch, reading_of
from dicast.models.segmented import SegmentModel
from dicast.records import Choice, Noul, Question, Record

HYPOTHESES, TOKENS, ROWS = 3, 5, 8


def inputs_of(width: int) -> tuple[torch.Tensor, ...]:
    """Three hypotheses of 5, 4 and 2 tokens; eight rows of evidence of which the second may read five."""
    torch.manual_seed(1)
    mask = torch.arange(TOKENS) < torch.tensor([[5], [4], [2]])
    usable = torch.ones(HYPOTHESES, ROWS, dtype=torch.bool)
    usable[1, 5:] = False
    part = torch.tensor([0, 0, 0, 0, 0, 1, 2, 2])
    return torch.randn(HYPOTHESES, TOKENS, width), mask, torch.randn(ROWS, width), part, usable


def as_graph_inputs(inputs: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
    named = dict(zip(("rows", "mask", "evidence", "part", "usable"), inputs, strict=True))
    return {name: named[name].numpy() for name in READER_INPUTS}


def reader_of(model: SegmentModel) -> Reader:
    assert model.net.reader is not None
    return model.net.reader.eval()


def plain(layer: BertLayer, own: torch.Tensor, evidence: torch.Tensor) -> torch.Tensor:
    """A layer over the rows of one hypothesis, whose keys are its own rows and the evidence, head by head."""
    size = own.shape[1] // layer.heads
    keys, values = (projection(torch.cat((own, evidence))) for projection in (layer.key, layer.value))
    query, mixed = layer.query(own), []
    for head in range(layer.heads):
        at = slice(head * size, (head + 1) * size)
        mixed.append((query[:, at] @ keys[:, at].T / size**0.5).softmax(-1) @ values[:, at])
    own = layer.attention_norm(own + layer.output(torch.cat(mixed, dim=1)))
    return layer.norm(own + layer.down(torch.nn.functional.gelu(layer.up(own))))


def test_it_is_attention_over_own_rows_and_evidence() -> None:
    reader = reader_of(tiny_model())
    rows, mask, evidence, part, usable = inputs_of(16)
    with torch.inference_mode():
        found = reader(rows, mask, evidence, part, usable)
        for number in range(HYPOTHESES):
            own = rows[number][mask[number]]
            given = (evidence + reader.part[part])[usable[number]]
            for layer in reader.layers:
                own = plain(layer, own, given)
            torch.testing.assert_close(found[number], reader.score(own[0])[0], atol=1e-5, rtol=0)


def test_what_a_hypothesis_may_not_read_does_not_matter_and_what_it_may_does() -> None:
    reader = reader_of(tiny_model())
    rows, mask, evidence, part, usable = inputs_of(16)
    changed = evidence.clone()
    changed[6] += 1.0
    with torch.inference_mode():
        before, after = (reader(rows, mask, given, part, usable) for given in (evidence, changed))
    assert before[1] == after[1]
    assert abs(before[0] - after[0]) > 1e-4


def test_a_new_reader_says_nothing() -> None:
    model = tiny_model(reader=0)
    record = Record("the card is lost", {"urgent": Noul("is it urgent")})
    before = model.score([model.encode(record)])[0][0]
    model.net.add_reader(2)
    np.testing.assert_array_equal(model.score([model.encode(record)])[0][0], before)


def test_it_starts_as_the_upper_layers_of_the_encoder() -> None:
    net = tiny_model(reader=0).net
    net.add_reader(1)
    assert net.reader is not None
    assert net.before_reader == 1
    for mine, theirs in zip(net.reader.layers[0].parameters(), net.bert.layers[1].parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine is not theirs


def test_only_short_questions_have_hypotheses_and_each_reads_what_is_its_own() -> None:
    """Of text inside an instruction only that question reads; long choices have no hypotheses."""
    model = tiny_model()
    questions: dict[str, Question] = {
        "long": Choice("which", [f"x{n}" for n in range(9)]),
        "one": Noul("is it:\nthe card is lost"),
        "two": Noul("is it:\npay the team"),
    }
    batch = plan_batch([model.encode(Record("", questions))])
    options = hypotheses_of(batch, 0)
    assert options.tolist() == [9, 10, 11, 12]
    offsets = np.cumsum([0, *(len(segment.tokens) for segment in batch.segments)])[:-1].tolist()
    reading = reading_of(batch, 0, options, offsets)
    first, second = reading.usable[0], reading.usable[2]
    assert first.any()
    assert second.any()
    assert not (first & second).any()
    assert (reading.usable[0] == reading.usable[1]).all()


def test_the_float_graph_equals_torch() -> None:
    for model in (tiny_model(), wide_model()):
        inputs = inputs_of(model.net.bert.config.hidden_size)
        with torch.inference_mode():
            expected = reader_of(model)(*inputs).numpy()
        session = onnxruntime.InferenceSession(reader_onnx(model.net, OPSET).SerializeToString())
        np.testing.assert_allclose(session.run(None, as_graph_inputs(inputs))[0], expected, atol=2e-5)


def test_the_rounded_graph_is_close_and_the_runtime_fuses_its_products(tmp_path: Path) -> None:
    model = wide_model()
    inputs = inputs_of(64)
    graph = stored_int8(reader_graph(model.net, "integer", sample_encodings(model)))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options)
    with torch.inference_mode():
        expected = reader_of(model)(*inputs).numpy()
    found = session.run(None, as_graph_inputs(inputs))[0]
    assert 0 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    kinds = [node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node]
    assert kinds.count("QGemm") == sum(len(names) for names in reader_product_inputs(model.net).values())
    assert "DequantizeLinear" not in kinds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("reader")
    export_onnx(tiny_model(), made, tokenizer=save_tokenizer(made.parent / "tokenizer"), weights="float32")
    return made


def test_many_hypotheses_are_read_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record("the card is lost " * 9, {f"q{n}": Noul("is it " + "urgent " * n) for n in range(7)})
    model = OnnxSegmentModel(folder, threads=1)
    whole = model.score([model.encode(record)])[0]
    monkeypatch.setattr("dicast.models.onnx.READER_SCORES", 1)
    for mine, other in zip(model.score([model.encode(record)])[0], whole, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_more_than_can_be_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dicast.models.onnx.MOST_READING", 10_000)
    model = OnnxSegmentModel(folder, threads=1)
    questions: dict[str, Question] = {f"q{number}": Noul(f"is it {number}") for number in range(8)}
    with pytest.raises(TokenBudgetError, match=r"\d+ tokens of questions .* the limit is 10000") as caught:
        model.encode(Record("the card is lost " * 300, questions))
    assert caught.value.field == "questions"


def test_files_made_before_there_were_readers_still_run(folder: Path, tmp_path: Path) -> None:
    export_onnx(tiny_model(reader=0), tmp_path, tokenizer=folder / "tokenizer.json", weights="float32")
    head = onnx.load(tmp_path / "head.onnx")
    zeros = onnx.helper.make_node("Sub", ["option_mask.float", "option_mask.float"], ["read"])
    cast = onnx.helper.make_node("Cast", ["option_mask"], ["option_mask.float"], to=onnx.TensorProto.FLOAT)
    for place, node in enumerate((cast, zeros)):
        head.graph.node.insert(place, node)
    head.graph.input.remove(next(item for item in head.graph.input if item.name == "read"))
    onnx.save(head, tmp_path / "old.onnx")
    record = Record("the card is lost", {"urgent": Noul("is it urgent")})
    now = OnnxSegmentModel(tmp_path, threads=1)
    expected = now.score([now.encode(record)])[0][0]
    (tmp_path / "old.onnx").replace(tmp_path / "head.onnx")
    then = OnnxSegmentModel(tmp_path, threads=1)
    np.testing.assert_array_equal(then.score([then.encode(record)])[0][0], expected)


def test_a_missing_reader_is_named(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "reader.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"reader\.onnx"):
        OnnxSegmentModel(tmp_path, threads=1)
