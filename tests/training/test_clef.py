import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.training.test_loop import make_config, step_losses

from dicast import checkpoints
from dicast.errors import CapabilityError, ConfigError, MissingDependencyError, TokenBudgetError
from dicast.training import adapters
from dicast.training.clef import build_trainable, fresh_head
from dicast.training.config import Config, LoraConfig
from dicast.training.data import question_row, read_examples
from dicast.training.run import load_data, train

RELEASE = Path(__file__).parents[1] / "golden" / "release"
LAYER_MAPS = {
    "linear_attn": {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"},
    "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "mlp": {"gate_proj", "up_proj", "down_proj"},
}


def clef_config(tmp_path: Path, *, train: str = "lora", start: Path = RELEASE, **tables: Any) -> Config:
    model = {"family": "clef", "start": str(start), "train": train} | tables.pop("model", {})
    common: dict[str, Any] = {
        "model": model,
        "batch": {"tokens": 4000, "records": 8, "micro_batches": 1},
        "lora": {"rank": 4},
        "optimizer": {"lr": 5e-3, "head_lr": 5e-3},
        "schedule": {"max_steps": 4},
        "dev": {"every_steps": 100},
    }
    for name, table in tables.items():
        common[name] = common.get(name, {}) | table
    return make_config(tmp_path, **common)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config]:
    """A tiny LoRA run and its configuration."""
    folder = tmp_path_factory.mktemp("lora")
    config = clef_config(folder)
    train(config)
    return folder / "run" / "model", config


def test_training_logits_are_those_of_scoring(tmp_path: Path) -> None:
    config = clef_config(tmp_path, train="all")
    trainable = build_trainable(config)
    trainable.module.eval()
    examples = load_data(config).train[:3]
    padded = trainable.forward_batch(trainable.collate(examples).to("cpu"))
    loaded = checkpoints.load_model(RELEASE, device="cpu", dtype="float32", vision=False)
    scored = loaded.score([loaded.encode(example.record) for example in examples])
    for index, row in enumerate(row for record in scored for row in record):
        np.testing.assert_allclose(padded.logits[index, : len(row)].detach(), row, atol=1e-5)


def test_adapters_are_found_on_every_linear_map_of_the_decoder(tmp_path: Path) -> None:
    decoder = build_trainable(clef_config(tmp_path, train="head")).model.network.backbone.text
    targets = adapters.find_targets(decoder, LoraConfig())
    kinds = {name.split(".")[-2]: set() for name in targets}
    for name in targets:
        kinds[name.split(".")[-2]].add(name.split(".")[-1])
    assert kinds == LAYER_MAPS
    assert len(targets) == 3 * 8 + 7
    last = adapters.find_targets(decoder, LoraConfig(last_layers=1))
    assert last == [name for name in targets if name.startswith("layers.3.")]
    assert len(adapters.find_targets(decoder, LoraConfig(targets=["in_proj_a"]))) == 3
    with pytest.raises(ConfigError, match="in_proj_qkv"):
        adapters.find_targets(decoder, LoraConfig(targets=["nonsense"]))
    with pytest.raises(ConfigError, match="4 layers"):
        adapters.find_targets(decoder, LoraConfig(last_layers=5))


def test_only_adapters_and_head_learn_and_both_are_float32(tmp_path: Path) -> None:
    config = clef_config(tmp_path, model={"dtype": "bfloat16", "vision": True})
    network = build_trainable(config).model.network
    learning = {name: p for name, p in network.named_parameters() if p.requires_grad}
    assert all(name.startswith("head.") or ".lora_" in name for name in learning)
    assert all(parameter.dtype == torch.float32 for parameter in learning.values())
    assert not any("visual" in name or "lm_head" in name for name in learning)
    frozen = network.backbone.text.layers[0].mlp.up_proj.base_layer.weight
    assert frozen.dtype == torch.bfloat16


@pytest.mark.parametrize("dora", [False, True])
def test_the_export_decides_as_the_adapted_model_does(tmp_path: Path, dora: bool) -> None:
    config = clef_config(tmp_path, lora={"rank": 4, "dora": dora})
    trainable = build_trainable(config)
    torch.manual_seed(1)
    for name, parameter in trainable.module.named_parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter) * (1 if "lora_B" in name else 0.1)
    trainable.module.eval()
    trainable.save(tmp_path / "model")
    loaded = checkpoints.load_model(tmp_path / "model", device="cpu", dtype="float32", vision=True)
    examples = load_data(config).train[:4]
    with torch.no_grad():
        padded = trainable.forward_batch(trainable.collate(examples).to("cpu"))
    scored = loaded.score([loaded.encode(example.record) for example in examples])
    for index, row in enumerate(row for record in scored for row in record):
        np.testing.assert_allclose(padded.logits[index, : len(row)], row, atol=2e-4)


def test_the_export_has_the_layout_of_the_release(trained: tuple[Path, Config]) -> None:
    folder, _ = trained
    names = {path.name for path in RELEASE.iterdir()}
    assert names <= {path.name for path in folder.iterdir()}
    for file in ("model.safetensors", "joint_head.safetensors"):
        before, after = load_file(RELEASE / file), load_file(folder / file)
        assert {name: (v.shape, v.dtype) for name, v in before.items()} == {
            n: (v.shape, v.dtype) for n, v in after.items()
        }
    before, after = load_file(RELEASE / "model.safetensors"), load_file(folder / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert len(changed) == 3 * 8 + 7
    assert all(name.startswith("model.language_model.layers.") for name in changed)
    for file in ("config.json", "joint_head_config.json", "tokenizer.json"):
        assert json.loads((RELEASE / file).read_text()) == json.loads((folder / file).read_text())


def test_a_broken_off_adapter_run_resumes_exactly(tmp_path: Path, trained: tuple[Path, Config]) -> None:
    from tests.training.test_loop import stop_after

    config = clef_config(tmp_path, checkpoint={"every_steps": 1})
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    train(config)
    whole = step_losses(trained[0].parent)
    assert step_losses(tmp_path / "run") == pytest.approx(whole, rel=1e-6)


def test_gradient_checkpointing_gives_the_same_gradients(tmp_path: Path) -> None:
    gradients = []
    for on in (False, True):
        config = clef_config(tmp_path, model={"gradient_checkpointing": on})
        torch.manual_seed(0)  # adapters start at random
        trainable = build_trainable(config)
        trainable.module.train()
        padded = trainable.forward_batch(trainable.collate(load_data(config).train[:2]).to("cpu"))
        padded.logits[padded.mask].square().sum().backward()
        gradients.append({n: p.grad for n, p in trainable.module.named_parameters() if p.requires_grad})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        if gradient is not None:
            torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-5)


def test_head_only_reads_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dicast.models.qwen import QwenBackbone

    read: list[int] = []
    forward = QwenBackbone.forward
    monkeypatch.setattr(
        QwenBackbone, "forward", lambda self, batch: read.append(len(batch.ids)) or forward(self, batch)
    )
    config = clef_config(tmp_path, train="head", schedule={"epochs": 3.0, "max_steps": 0}, data={"dev_share": 0.0})
    summary = train(config)
    assert sum(read) == summary["examples"]["train"]
    read.clear()
    again = clef_config(
        tmp_path,
        train="head",
        model={"cache_folder": str(tmp_path / "run" / "hidden")},
        run={"folder": str(tmp_path / "b")},
        data={"dev_share": 0.0},
    )
    train(again)
    assert read == []
    before, after = (load_file(path / "model.safetensors") for path in (RELEASE, tmp_path / "run" / "model"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_bare_backbone_gets_a_fresh_head(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in RELEASE.iterdir():
        if not path.name.startswith("joint_head"):
            (bare / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="fresh"):
        build_trainable(clef_config(tmp_path, start=bare))
    config = clef_config(tmp_path, start=bare, model={"head": "fresh"})
    train(config)
    loaded = checkpoints.load_model(tmp_path / "run" / "model", device="cpu", dtype="float32", vision=False)
    assert loaded.info.architecture.endswith("joint schema head)")


def test_the_shape_and_start_of_a_fresh_head() -> None:
    with torch.device("meta"):
        wide, narrow = fresh_head(4096).config, fresh_head(1024).config
    assert (wide.width, wide.heads, wide.feedforward, wide.routing_layers, wide.layers) == (1024, 16, 4096, 2, 4)
    assert (narrow.width, narrow.heads, narrow.feedforward) == (512, 8, 2048)
    torch.manual_seed(0)
    head = fresh_head(64)
    assert head.prior_logit_scale.item() == head.joint_logit_scale.item() == head.residual_gate.item() == 0.0
    assert head.type_embedding.weight.std().item() == pytest.approx(1.0, abs=0.2)


def test_what_does_not_fit_is_named_by_file_and_line_before_training(tmp_path: Path) -> None:
    config = clef_config(tmp_path, model={"max_length": 100})
    with pytest.raises(TokenBudgetError, match=r"data\.jsonl:\d+"):
        train(config)


def test_qlora_without_cuda_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="CUDA"):
        build_trainable(clef_config(tmp_path, train="qlora"))


def test_images_need_the_vision_tower(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    row = {
        "state": "s",
        "questions": {"red": {"type": "noul", "instructions": "Red?"}},
        "gold": {"red": True},
        "images": ["red.png"],
    }
    (tmp_path / "images.jsonl").write_text(json.dumps(row))
    (example,) = read_examples(tmp_path / "images.jsonl")
    with pytest.raises(CapabilityError, match="vision"):
        build_trainable(clef_config(tmp_path)).length(example)
    seeing = build_trainable(clef_config(tmp_path, model={"vision": True}))
    padded = seeing.forward_batch(seeing.collate([example]).to("cpu"))
    padded.logits.sum().backward()
    assert any(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in seeing.module.named_parameters() if "lora_B" in n
    )


def test_the_released_module_loads_the_export_and_answers_the_same(trained: tuple[Path, Config]) -> None:
    released = pytest.importorskip(
        "clef_finetune._vendor.joint_schema_model", reason="the released module comes with `pip install clef-finetune`"
    )
    folder, config = trained
    model, processor = released.load_release_model(folder, device="cpu", dtype=torch.float32)
    loaded = checkpoints.load_model(folder, device="cpu", dtype="float32", vision=False)
    for example in load_data(config).train[:3]:
        questions = {name: question_row(question) for name, question in example.record.questions.items()}
        body = {"model": "clef", "state": example.record.state, "questions": questions}
        answers = released.systemone(model, processor, body)["answers"]
        (logits,) = loaded.score([loaded.encode(example.record)])
        for row, asked in zip(logits, loaded.encode(example.record).questions, strict=True):
            ours = dict(zip(asked.options, np.exp(row - row.max()) / np.exp(row - row.max()).sum(), strict=True))
            theirs = answers[asked.id].get("probabilities") or {"true": answers[asked.id]["noul"]}
            for option, probability in theirs.items():
                assert ours[option] == pytest.approx(probability, abs=1e-3)
