import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.training.test_loop import TOPICS, make_config
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from dicast.errors import ConfigError
from dicast.models.bert import BertConfig, BertEncoder
from dicast.models.segmented import SegmentModel
from dicast.training.config import config_from
from dicast.training.export import ExportError, export_onnx
from dicast.training.run import load_data, train
from dicast.training.segments import build_trainable

HEAD = {"width": 16, "routing_layers": 1, "layers": 1, "heads": 2, "feedforward": 32}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random encoder of two layers with a vocabulary of the toy tickets."""
    folder = tmp_path_factory.mktemp("encoder")
    words = sorted(
        {word for text in TOPICS.values() for word in text.split()} | set(TOPICS) | {"who", "urgent", "yes", "no", "?"}
    )
    vocabulary = {
        word: index
        for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *(f"word{i}" for i in range(100))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = BertConfig(len(vocabulary), 16, 2, 2, 32, 512)
    save_file(BertEncoder(config).state_dict(), folder / "bert.safetensors")
    (folder / "bert.json").write_text(json.dumps(config.to_dict()))
    return folder


def tables(start: Path) -> dict:
    return {
        "model": {"family": "segments", "start": str(start), "options": {"head": HEAD}},
        "batch": {"tokens": 2000, "records": 8},
    }


def test_training_logits_are_those_of_scoring(tmp_path: Path, start: Path) -> None:
    config = make_config(tmp_path, **tables(start))
    trainable = build_trainable(config)
    examples = load_data(config).train[:5]
    trainable.module.eval()
    padded = trainable.forward_batch(trainable.collate(examples).to("cpu"))
    scored = trainable.model.score([trainable.model.encode(example.record) for example in examples])
    rows = [row for record in scored for row in record]
    for index, row in enumerate(rows):
        np.testing.assert_allclose(padded.logits[index, : len(row)].detach(), row, atol=1e-5)
        assert padded.mask[index].sum() == len(row)
    assert padded.record.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert padded.types.tolist() == [1, 0] * 5


def test_it_trains_and_its_folder_loads(tmp_path: Path, start: Path) -> None:
    config = make_config(
        tmp_path,
        **tables(start),
        optimizer={"lr": 1e-2, "head_lr": 1e-2},
        schedule={"epochs": 40.0},
        dev={"every_steps": 60},
    )
    summary = train(config)
    assert summary["dev"]["accuracy"] > 0.8
    loaded = SegmentModel.load(tmp_path / "run" / "model")
    examples = load_data(config).dev
    right = [
        int(np.argmax(loaded.score([loaded.encode(example.record)])[0][0])) == list(TOPICS).index(example.gold["team"])
        for example in examples
    ]
    assert sum(right) / len(right) > 0.8


def test_head_only_leaves_the_encoder_alone(tmp_path: Path, start: Path) -> None:
    config = make_config(tmp_path, **tables(start))
    plain = config.to_dict() | {"model": config.to_dict()["model"] | {"train": "head"}}
    trainable = build_trainable(config_from(plain))
    names = [name for name, parameter in trainable.module.named_parameters() if parameter.requires_grad]
    assert names
    assert not any(name.startswith("bert.") for name in names)


def test_unknown_settings_are_refused(tmp_path: Path, start: Path) -> None:
    config = make_config(tmp_path, model={"family": "segments", "start": str(start), "options": {"heads": 3}})
    with pytest.raises(ConfigError, match="heads"):
        build_trainable(config)


@pytest.mark.parametrize("weights", ["integer", "float32"])
def test_a_model_that_ships_as_onnx_can_be_trained_further(tmp_path: Path, start: Path, weights: Any) -> None:
    model = build_trainable(make_config(tmp_path, **tables(start))).model
    torch.manual_seed(2)
    for parameter in model.net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.net.eval()
    facts = export_onnx(model, tmp_path / "onnx", tokenizer=start / "tokenizer.json", weights=weights)
    assert facts["largest difference"] < (1e-4 if weights == "float32" else 0.12)
    plain = tables(start) | {"model": {"family": "segments", "start": str(tmp_path / "onnx")}}
    again = build_trainable(make_config(tmp_path, **plain)).model
    again.net.eval()
    for name, value in model.net.state_dict().items():
        torch.testing.assert_close(
            again.net.state_dict()[name], value, atol=1e-6 if weights == "float32" else 0.03, rtol=0.01
        )


def test_an_export_that_decides_otherwise_is_not_written(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dicast.training import export

    model = build_trainable(make_config(tmp_path, **tables(start))).model
    monkeypatch.setattr(export, "largest_gap", lambda *arguments: 0.5)
    with pytest.raises(ExportError, match=r"differ by 0\.5"):
        export_onnx(model, tmp_path / "onnx", tokenizer=start / "tokenizer.json")
    assert not (tmp_path / "onnx").exists()
