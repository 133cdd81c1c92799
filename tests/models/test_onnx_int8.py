"""Int8 rewrites of graphs: how close, and why integer products cannot saturate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from dicast.models.onnx_int8 import PRODUCT_LEVELS, int8_rows, integer_products, stored_int8

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(32, 24)).astype(np.float32)
TABLE = RNG.normal(size=(50, 32)).astype(np.float32)
SAMPLES = [{"ids": np.arange(0, 50, 3)}]
Rewrite = Callable[..., onnx.ModelProto]


def toy() -> onnx.ModelProto:
    """Rows of a table times a matrix."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], axis=0),
        helper.make_node("MatMul", ["x", "weight"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 24])],
        [numpy_helper.from_array(WEIGHT, "weight"), numpy_helper.from_array(TABLE, "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(model: onnx.ModelProto, ids: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"ids": ids})[0]
    return found


@pytest.mark.parametrize("rewrite", [stored_int8, partial(integer_products, samples=SAMPLES)])
def test_a_rewritten_graph_is_close(rewrite: Rewrite) -> None:
    ids = np.arange(50)
    exact = run(toy(), ids)
    found = run(rewrite(toy(), least=64), ids)
    assert 0 < np.abs(found - exact).max() < 0.03 * np.abs(exact).max()


def test_integer_products_do_not_depend_on_the_other_rows() -> None:
    model = integer_products(toy(), SAMPLES, least=64)
    together = run(model, np.arange(50))
    np.testing.assert_array_equal(together[7], run(model, np.array([7]))[0])


def test_a_channel_far_above_the_others_does_not_take_their_resolution() -> None:
    table = TABLE.copy()
    table[:, 5] *= 200.0
    weight = WEIGHT.copy()
    weight[5] /= 200.0
    model = toy()
    del model.graph.initializer[:]
    model.graph.initializer.extend([numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(table, "table")])
    ids = np.arange(50)
    exact = run(model, ids)
    assert np.abs(run(integer_products(model, SAMPLES, least=64), ids) - exact).max() < 0.03 * np.abs(exact).max()


def test_small_matrices_stay_as_they_are() -> None:
    assert {node.op_type for node in integer_products(toy(), SAMPLES, least=10_000).graph.node} == {"Gather", "MatMul"}
    assert [tensor.name for tensor in stored_int8(toy(), least=10_000).graph.initializer] == ["weight", "table"]


def test_two_products_of_a_row_fit_in_16_bits() -> None:
    whole, _ = int8_rows(WEIGHT, 1, PRODUCT_LEVELS)
    assert np.abs(whole.astype(int)).max() == PRODUCT_LEVELS
    assert np.iinfo(np.int16).max >= 2 * 255 * PRODUCT_LEVELS


def test_rows_of_the_largest_activations_are_exact_sums() -> None:
    """All activations at the top and all weights at the bottom: what a saturating product would get wrong."""
    weight = np.full((32, 24), -1.0, np.float32)
    model = toy()
    del model.graph.initializer[:]
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.full((50, 32), 5.0, np.float32), "table"),
        ]
    )
    np.testing.assert_allclose(run(integer_products(model, SAMPLES, least=64), np.arange(3)), -160.0, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_int8_rows_are_within_half_a_step(axis: int) -> None:
    values = WEIGHT.copy()
    values[2] = 0.0
    whole, scale = int8_rows(values, axis)
    assert whole.dtype == np.int8
    assert (np.abs(whole * scale - values) <= scale * 0.5 + 1e-7).all()
