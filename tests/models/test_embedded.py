"""The model that comes with the package: it is there, small, readable for training, and right where it must be."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest

import dicast
from dicast.calibration import Calibration
from dicast.models.onnx import OnnxSegmentModel, embedded_folder
from dicast.models.onnx_int8 import PRODUCT_LEVELS
from dicast.records import Choice, Noul, Question, Record

CASES = [
    ("I want to book a table for two tonight", "restaurant"),
    ("play the new album by Miles Davis", "music"),
    ("will it rain in Oslo tomorrow?", "weather"),
    ("wake me up at six", "alarm"),
]
INTENTS: dict[str, Question] = {
    "intent": Choice(
        "What does the user want?",
        {"restaurant": "reserve a table", "music": "play music", "weather": "forecast", "alarm": "set an alarm"},
    )
}


@pytest.fixture(scope="module")
def model() -> OnnxSegmentModel:
    return OnnxSegmentModel.load(threads=1)


def best(model: OnnxSegmentModel, record: Record) -> str:
    encoding = model.encode(record)
    return encoding.questions[0].options[int(np.argmax(model.score([encoding])[0][0]))]


@pytest.mark.parametrize(("text", "intent"), CASES)
def test_plain_intents_are_right(model: OnnxSegmentModel, text: str, intent: str) -> None:
    assert best(model, Record(text, INTENTS)) == intent


@pytest.mark.parametrize(("text", "intent"), CASES)
def test_text_in_the_instruction_is_read_as_well(model: OnnxSegmentModel, text: str, intent: str) -> None:
    asked = Choice(f"Classify the intent of this user request:\n{text}", INTENTS["intent"].criteria)  # type: ignore[arg-type]
    assert best(model, Record({}, {"q": asked})) == intent


def test_a_yes_no_question_follows_the_state_whatever_its_labels(model: OnnxSegmentModel) -> None:
    spam = "WINNER! You have won a 1000 pound prize, call now to claim your free cash"
    plain = "see you at home tonight, shall I bring some bread?"
    criteria = [None, {"true": "yes", "false": "no"}, {"true": "It is spam.", "false": "It is not spam."}]
    for given in criteria:
        question: dict[str, Question] = {"q": Noul("Is this text message spam?", given)}
        found = [model.score([model.encode(Record(text, question))])[0][0] for text in (spam, plain)]
        assert found[0][0] - found[0][1] > found[1][0] - found[1][1] + 0.5


def test_the_files_are_small_and_complete() -> None:
    folder = embedded_folder()
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < 60e6
    for name in ("README.md", "NOTICE", "dicast.json", "rest.safetensors"):
        assert (folder / name).is_file()
    assert json.loads((folder / "dicast.json").read_text())["name"] == "dicast-embedded"


@pytest.fixture(scope="module")
def product_matrices() -> list[np.ndarray]:
    """The int8 matrices by which the shipped encoder multiplies rounded rows, ``[in, out]``."""
    graph = onnx.load(embedded_folder() / "encoder.onnx").graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    made = {node.output[0]: node for node in graph.node}
    products = [made[node.input[1]].input[0] for node in graph.node if node.op_type == "Gemm"]
    assert len(products) == 73
    return [onnx.numpy_helper.to_array(held[name]) for name in products]


def test_two_products_of_any_shipped_row_fit_in_16_bits(product_matrices: list[np.ndarray]) -> None:
    """That is where processors with AVX2 and without VNNI add them."""
    assert max(int(np.abs(matrix.astype(int)).max()) for matrix in product_matrices) <= PRODUCT_LEVELS


def test_this_processor_sums_the_worst_bytes_exactly(product_matrices: list[np.ndarray]) -> None:
    """Rows that make a column as large, or as small, as it can be."""
    for matrix in product_matrices:
        columns = matrix[:, :: matrix.shape[1] // 24].T
        rows = 255 * np.concatenate([columns > 0, columns < 0]).astype(np.uint8)
        session = onnxruntime.InferenceSession(integer_product(matrix), providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(None, {"rows": rows})[0], rows.astype(int) @ matrix.astype(int))


def integer_product(matrix: np.ndarray) -> bytes:
    """A graph of one integer product."""
    helper, kinds = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["rows", "matrix"], ["sums"])],
        "product",
        [helper.make_tensor_value_info("rows", kinds.UINT8, ["n", len(matrix)])],
        [helper.make_tensor_value_info("sums", kinds.INT32, ["n", matrix.shape[1]])],
        [onnx.numpy_helper.from_array(matrix, "matrix")],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    ).SerializeToString()
    return made


def test_it_has_a_calibration() -> None:
    assert Calibration.load(embedded_folder()) is not None


def test_load_gives_it_with_its_calibration() -> None:
    decision = dicast.load().decide(CASES[0][0], INTENTS)
    assert decision["intent"].value == "restaurant"
