from pathlib import Path

import pytest

from dicast.errors import ConfigError
from dicast.training.config import Config, config_from, documented_keys, load_config

MINIMAL = '[run]\nname = "a"\n[[data.train]]\npath = "x.jsonl"\ncap = 5\n[optimizer]\nlr = 1\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_a_file_fills_the_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL))
    assert config.run.name == "a"
    assert config.data.train[0].cap == 5
    assert config.optimizer.lr == 1.0
    assert isinstance(config.optimizer.lr, float)
    assert config.batch == Config().batch


def test_overrides_are_toml_or_text(tmp_path: Path) -> None:
    overrides = [
        "optimizer.lr=1e-4",
        "data.train.0.cap=7",
        "run.folder=runs/b",
        "ema.decay=0.9",
        "lora.targets=['q_proj']",
    ]
    config = load_config(write(tmp_path, MINIMAL), overrides)
    assert (config.optimizer.lr, config.data.train[0].cap, config.run.folder) == (1e-4, 7, "runs/b")
    assert config.lora.targets == ["q_proj"]


@pytest.mark.parametrize(
    ("override", "field", "message"),
    [
        ("optimizer.learning=1", "optimizer.learning", "unknown key"),
        ("optimizer.lrr=1", "optimizer.lrr", "did you mean lr"),
        ("data.train.0.pat='x'", "data.train.0.pat", "did you mean path"),
        ("data.train.3.cap=1", "data.train.3.cap", "no item"),
        ("run.stage='rl'", "run.stage", "sft, rlcd"),
        ("run.seed=1.5", "run.seed", "must be int"),
        ("run.seed=true", "run.seed", "must be int"),
        ("batch.tokens=0", "batch.tokens", "at least 1"),
        ("augment.question_order=1.5", "augment.question_order", "between 0 and 1"),
        ("data.train.0.path=''", "data.train.0.path", "needs a path"),
        ("optimizer.betas=[0.9]", "optimizer.betas", "two numbers"),
        ("run=3", "run", "must be a table"),
        ("nonsense", "set", "key=value"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, override: str, field: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(tmp_path, MINIMAL), [override])
    assert caught.value.field == field


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(write(tmp_path, "[run"))


def test_every_key_has_a_sentence() -> None:
    rows = documented_keys()
    assert len(rows) > 80
    assert all(sentence for _, _, sentence in rows)


def test_the_documentation_lists_every_key() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    for name, default, sentence in documented_keys():
        assert f"| `{name}` | `{default}` | {sentence} |" in text


def test_plain_data_goes_there_and_back() -> None:
    config = config_from({"data": {"train": [{"path": "x"}]}, "model": {"options": {"a": 1}}})
    assert config_from(config.to_dict()) == config
