"""Int8 in graphs: how close, how roundings are chosen, and why integer products cannot saturate."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from dicast.models.onnx_int8 import CLIPPED, LEVELS, PRODUCT_LEVELS, Rounding, int8_rows, roundings, stored_int8

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(32, 24)).astype(np.float32)
TABLE = RNG.normal(size=(50, 32)).astype(np.float32)
SAMPLES = [{"ids": np.arange(0, 50, 3)}]


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


def choose(
    table: np.ndarray = TABLE, weight: np.ndarray = WEIGHT, samples: list[dict[str, np.ndarray]] = SAMPLES
) -> Rounding:
    """The rounding of the looked up rows."""
    model = toy()
    del model.graph.initializer[:]
    model.graph.initializer.extend([numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(table, "table")])
    return roundings(model, {"x": weight}, samples)["x"]


def divisor_of(rounding: Rounding) -> np.ndarray:
    """The divisor of every channel."""
    return np.ones(32, np.float32) if rounding.divisor is None else rounding.divisor


def product(rows: np.ndarray, weight: np.ndarray, rounding: Rounding) -> np.ndarray:
    """What an integer product of rounded rows gives."""
    divisor = divisor_of(rounding)
    whole = np.clip(np.rint(rows / divisor / rounding.step) + float(rounding.zero), 0, LEVELS)
    values, scale = int8_rows(weight * divisor[:, None], 1, PRODUCT_LEVELS)
    found: np.ndarray = ((whole - float(rounding.zero)) @ values.astype(int)) * scale * rounding.step
    return found


def test_stored_weights_are_close() -> None:
    ids = np.arange(50)
    exact = run(toy(), ids)
    found = run(stored_int8(toy(), least=64), ids)
    assert 0 < np.abs(found - exact).max() < 0.03 * np.abs(exact).max()


def test_a_rounded_product_is_close() -> None:
    rows = TABLE[::3]
    exact = rows @ WEIGHT
    assert 0 < np.abs(product(rows, WEIGHT, choose()) - exact).max() < 0.03 * np.abs(exact).max()


def test_the_same_samples_give_the_same_rounding() -> None:
    first, second = choose(), choose()
    assert (first.step, first.zero) == (second.step, second.zero)
    np.testing.assert_array_equal(divisor_of(first), divisor_of(second))


def test_a_channel_far_above_the_others_is_divided_out() -> None:
    table, weight = TABLE.copy(), WEIGHT.copy()
    table[:, 5] *= 200.0
    weight[5] /= 200.0
    rounding = choose(table, weight)
    assert divisor_of(rounding)[5] > 20 * np.median(divisor_of(rounding))
    rows = table[::3]
    exact = rows @ weight
    assert np.abs(product(rows, weight, rounding) - exact).max() < 0.03 * np.abs(exact).max()
    undivided = Rounding(np.float32(2 * np.abs(table).max() / LEVELS), np.uint8(128), None)
    assert np.abs(product(rows, weight, undivided) - exact).max() > 0.1 * np.abs(exact).max()


def test_values_of_one_sign_use_all_levels() -> None:
    table = np.abs(TABLE)
    table[:, 0] = 0.0
    assert choose(table).zero == 0
    assert choose(-table).zero == LEVELS


def test_a_few_values_in_a_million_are_clipped() -> None:
    """One value in 1,600,000 is a thousand times larger than all others; the step must not be made for it."""
    table = np.tile(TABLE, (1000, 1))
    assert 2 <= CLIPPED * table.size < 10
    plain = choose(table, samples=[{"ids": np.arange(len(table))}])
    table[77, 3] = 1000 * np.abs(table).max()
    largest = choose(table, samples=[{"ids": np.arange(len(table))}])
    usual, wide = (float(rounding.step * np.median(divisor_of(rounding))) for rounding in (plain, largest))
    assert wide < 3 * usual


def test_small_matrices_stay_as_they_are() -> None:
    assert [tensor.name for tensor in stored_int8(toy(), least=10_000).graph.initializer] == ["weight", "table"]


def test_two_products_of_a_row_fit_in_16_bits() -> None:
    whole, _ = int8_rows(WEIGHT, 1, PRODUCT_LEVELS)
    assert np.abs(whole.astype(int)).max() == PRODUCT_LEVELS
    assert np.iinfo(np.int16).max >= 2 * 255 * PRODUCT_LEVELS


def test_sums_of_the_largest_values_are_exact() -> None:
    """All activations at the top and all weights at the bottom: what a saturating product would get wrong."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["dq"]),
        helper.make_node("DequantizeLinear", ["whole", "scale", "zeros"], ["matrix"], axis=1),
        helper.make_node("Gemm", ["dq", "matrix"], ["y"]),
    ]
    constants = {
        "step": np.float32(1.0),
        "zero": np.uint8(0),
        "whole": np.full((32, 24), -PRODUCT_LEVELS, np.int8),
        "scale": np.ones(24, np.float32),
        "zeros": np.zeros(24, np.int8),
    }
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 24])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": np.full((3, 32), 300.0, np.float32)})[0]
    np.testing.assert_array_equal(found, -32.0 * LEVELS * PRODUCT_LEVELS)


@pytest.mark.parametrize("axis", [0, 1])
def test_int8_rows_are_within_half_a_step(axis: int) -> None:
    values = WEIGHT.copy()
    values[2] = 0.0
    whole, scale = int8_rows(values, axis)
    assert whole.dtype == np.int8
    assert (np.abs(whole * scale - values) <= scale * 0.5 + 1e-7).all()
