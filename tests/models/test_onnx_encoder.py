"""The encoder's graph: equal to torch, rounded products that runtimes fuse, and parameters that can be read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from tests.segment_models import save_tokenizer, tiny_model, wide_model

from dicast.models.onnx import embedded_folder
from dicast.models.onnx_encoder import ENCODER_OUTPUTS, encoder_onnx, product_inputs
from dicast.models.onnx_export import OPSET, SAMPLE_TEXTS, encoder_roundings, export_onnx, sample_segments
from dicast.models.onnx_int8 import stored_int8
from dicast.models.onnx_weights import is_large, read_weights, undone_divisors
from dicast.models.segmented import SegmentModel

RNG = np.random.default_rng(5)


def bucket(vocabulary: int) -> dict[str, np.ndarray]:
    """Three segments of 9, 6 and 2 tokens."""
    mask = np.arange(9) < np.array([[9], [6], [2]])
    return {
        "ids": np.where(mask, RNG.integers(5, vocabulary, (3, 9)), 0),
        "mask": mask,
        "span": mask & (np.arange(9) > 0),
    }


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(ENCODER_OUTPUTS, session.run(None, inputs), strict=True))


def rounded(model: SegmentModel) -> onnx.ModelProto:
    roundings = encoder_roundings(model.net, encoder_onnx(model.net, OPSET), sample_segments(model))
    return stored_int8(encoder_onnx(model.net, OPSET, roundings))


@pytest.fixture(scope="module")
def wide() -> SegmentModel:
    """A model with biases, whose matrices are large enough to be rounded."""
    model = wide_model()
    with torch.no_grad():
        for name, parameter in model.net.named_parameters():
            if name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def graph(wide: SegmentModel) -> onnx.ModelProto:
    return rounded(wide)


@pytest.mark.parametrize("make", [tiny_model, wide_model])
def test_the_float_graph_equals_torch(make: type[SegmentModel]) -> None:
    net = make().net
    inputs = bucket(net.bert.config.vocab_size)
    with torch.inference_mode():
        expected = net.encode_bucket(*(torch.from_numpy(array) for array in inputs.values()))
    found = run(encoder_onnx(net, OPSET), inputs)
    for name in ENCODER_OUTPUTS:
        exact = getattr(expected, name).numpy()
        mine = found[name][inputs["mask"]] if name == "memory" else found[name]
        np.testing.assert_allclose(mine, exact[inputs["mask"]] if name == "memory" else exact, atol=2e-5, err_msg=name)


def test_the_rounded_graph_is_close(wide: SegmentModel, graph: onnx.ModelProto) -> None:
    inputs = bucket(wide.net.bert.config.vocab_size)
    exact, found = run(encoder_onnx(wide.net, OPSET), inputs), run(graph, inputs)
    for name in ENCODER_OUTPUTS:
        error = np.abs(found[name] - exact[name])[:2].mean()
        assert 0 < error < 0.05 * np.abs(exact[name])[:2].mean(), name


def test_products_with_small_matrices_are_not_rounded() -> None:
    assert {node.op_type for node in rounded(tiny_model()).graph.node}.isdisjoint({"QuantizeLinear", "Gemm"})


def test_a_segment_does_not_depend_on_its_company(wide: SegmentModel, graph: onnx.ModelProto) -> None:
    inputs = bucket(wide.net.bert.config.vocab_size)
    together, alone = run(graph, inputs), run(graph, {name: array[:1] for name, array in inputs.items()})
    for name in ENCODER_OUTPUTS:
        np.testing.assert_allclose(together[name][0], alone[name][0], atol=1e-4)


def test_the_same_model_gives_the_same_bytes(wide: SegmentModel, graph: onnx.ModelProto) -> None:
    assert rounded(wide).SerializeToString() == graph.SerializeToString()


def test_the_runtime_fuses_every_rounded_product(wide: SegmentModel, graph: onnx.ModelProto, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node]
    products = [name for names in product_inputs(wide.net).values() for name in names]
    rounded_products = [name for name in products if is_large(wide.net.state_dict()[name])]
    assert kinds.count("QGemm") == len(rounded_products) > 4
    assert "DequantizeLinear" not in kinds


def test_parameters_can_be_read_back(wide: SegmentModel, tmp_path: Path) -> None:
    export_onnx(wide, tmp_path / "onnx", tokenizer=save_tokenizer(tmp_path))
    found, state = read_weights(tmp_path / "onnx"), wide.net.state_dict()
    assert set(found) == set(state)
    for name, value in state.items():
        if is_large(value):
            assert (found[name] - value).norm() < 0.02 * value.norm(), name
        else:
            assert torch.equal(found[name], value), name


def test_files_that_were_rounded_per_token_can_still_be_read() -> None:
    nodes = [helper.make_node("MatMulInteger", ["x.q", "w.int8"], ["y"])]
    made = helper.make_model(
        helper.make_graph(nodes, "old", [], [], [numpy_helper.from_array(np.ones(3), "x.divisor")])
    )
    np.testing.assert_array_equal(undone_divisors(made)["w.int8"], np.ones(3))


def test_the_shipped_parameters_can_be_read() -> None:
    found = read_weights(embedded_folder())
    assert found["bert.layers.11.down.weight"].shape == (384, 1536)
    assert all(bool(torch.isfinite(value).all()) for value in found.values())


def test_the_sample_texts_are_many_and_differ() -> None:
    assert len(set(SAMPLE_TEXTS)) == len(SAMPLE_TEXTS) > 60
    assert min(map(len, SAMPLE_TEXTS)) == 1
    assert max(map(len, SAMPLE_TEXTS)) > 400
