"""Every recipe runs, on a tiny random checkpoint of the same architecture and a few records."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from tests.segment_models import save_tokenizer, tiny_model
from tests.training.test_loop import write_data

from dicast import checkpoints
from dicast.errors import MissingDependencyError
from dicast.models.onnx import OnnxSegmentModel
from dicast.records import Noul, Record
from dicast.training.config import load_config
from dicast.training.run import train

ROOT = Path(__file__).parents[2]
RELEASE = Path(__file__).parents[1] / "golden" / "release"


def bare_backbone(folder: Path) -> Path:
    """The tiny release without its head."""
    folder.mkdir()
    for path in RELEASE.iterdir():
        if not path.name.startswith("joint_head"):
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def dry_run(tmp_path: Path) -> list[str]:
    """Overrides that make a recipe small: paths, sizes and the number of steps; nothing of its method."""
    data = write_data(tmp_path / "data.jsonl", 12)
    return [
        f"data.train.0.path={str(data)!r}",
        f"run.folder={str(tmp_path / 'run')!r}",
        "run.device='cpu'",
        "lora.rank=4",
        "batch.records=4",
        "schedule.max_steps=2",
    ]


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("clef-flash-lora", []),
        ("clef-flash-qlora-24gb", ["model.train='lora'"]),
        ("from-backbone", []),
        ("from-backbone", ["model.train='head'"]),
    ],
)
def test_a_recipe_runs(tmp_path: Path, recipe: str, overrides: list[str]) -> None:
    start = bare_backbone(tmp_path / "bare") if recipe == "from-backbone" else RELEASE
    settings = [*dry_run(tmp_path), f"model.start={str(start)!r}", *overrides]
    summary = train(load_config(ROOT / "recipes" / f"{recipe}.toml", settings))
    assert summary["steps"] == 2
    assert summary["config"]["model"]["dtype"] == "bfloat16"
    loaded = checkpoints.load_model(tmp_path / "run" / "model", device="cpu", dtype="float32", vision=False)
    assert loaded.info.parameters["head"] > 0
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"# {summary['name']}" in card
    assert "| decisions |" in card


def test_the_reward_stage_of_the_backbone_recipe_runs(tmp_path: Path) -> None:
    off = ["question_order", "question_subset", "option_subset", "neutral_ids", "drop_descriptions"]
    settings = [
        *dry_run(tmp_path), f"model.start={str(RELEASE)!r}", "model.head='keep'", "run.stage='rlcd'",
        *(f"augment.{name}=0.0" for name in off),
    ]  # fmt: skip
    assert train(load_config(ROOT / "recipes" / "from-backbone.toml", settings))["steps"] == 2


def test_four_bits_without_a_gpu_are_refused_in_words(tmp_path: Path) -> None:
    settings = [*dry_run(tmp_path), f"model.start={str(RELEASE)!r}"]
    with pytest.raises(MissingDependencyError, match="CUDA"):
        train(load_config(ROOT / "recipes" / "clef-flash-qlora-24gb.toml", settings))


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").rglob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_has_only_known_keys(path: Path) -> None:
    assert load_config(path).run.name


def starting_point(folder: Path, stage: int) -> Path:
    """What a stage of the embedded model starts from, tiny: an encoder for the first, else a trained model."""
    model = tiny_model()
    model.save(folder / "start", save_tokenizer(folder / "tokenizer"))
    if stage == 1:
        (folder / "start" / "model.safetensors").unlink()
        (folder / "start" / "bert.json").write_text(json.dumps(model.net.bert.config.to_dict()))
        save_file(model.net.bert.state_dict(), folder / "start" / "bert.safetensors")
    return folder / "start"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_stage_of_the_embedded_model_runs(tmp_path: Path, stage: int) -> None:
    recipe = ROOT / "recipes" / "embedded" / f"stage{stage}.toml"
    data = str(write_data(tmp_path / "data.jsonl", 12))
    tables = tomllib.loads(recipe.read_text("utf-8"))["data"]
    overrides = [f"data.{part}.{n}.path={data!r}" for part in ("train", "dev") for n in range(len(tables[part]))]
    overrides += [f"model.start={str(starting_point(tmp_path, stage))!r}", f"run.folder={str(tmp_path / 'run')!r}"]
    summary = train(load_config(recipe, [*overrides, "schedule.max_steps=2"]))
    assert summary["steps"] == 2
    assert np.isfinite(summary["dev"]["loss"])
    record = Record("the card is lost", {"urgent": Noul("is it urgent")})
    loaded = OnnxSegmentModel(tmp_path / "run" / "model", threads=1)
    assert loaded.score([loaded.encode(record)])[0][0].shape == (2,)


def test_every_source_of_the_embedded_recipe_stands_in_its_manifest() -> None:
    folder = ROOT / "recipes" / "embedded"
    known = {item["source"] for item in json.loads((folder / "manifest.json").read_text("utf-8"))["sources"]}
    for stage in folder.glob("stage*.toml"):
        asked = {Path(item["path"]).stem for item in tomllib.loads(stage.read_text("utf-8"))["data"]["train"]}
        assert asked <= known, stage.name
