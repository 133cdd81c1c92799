"""`dicast serve` on the command line: sizes, keys, refusals before anything is loaded."""

import hashlib
import re
from pathlib import Path

import pytest

from dicast.cli.app import run
from dicast.cli.serve import size
from dicast.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("1048576", 2**20), ("32MiB", 32 * 2**20), ("8G", 8 * 2**30), ("1.5 k", 1536), ("2GB", 2 * 2**30)],
)
def test_sizes(text: str, count: int) -> None:
    assert size(text, "--max-body") == count


@pytest.mark.parametrize("text", ["", "many", "-1", "1X", "1MiBB"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a size"):
        size(text, "--max-body")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "no API key is set"),
        (["--port", "99999"], "--port: must be from 0 to 65535"),
        (["--model", "=x"], "NAME=PATH"),
        (["--model", "a", "--model", "b"], "different names"),
        (["--confidence", "margin"], "--confidence"),
        (["--max-body", "much"], "--max-body"),
        (["--api-keys-file", "/nowhere/keys.toml"], "cannot read"),
        (["--api-key-env", "NOT_SET_ANYWHERE"], "is not set"),
    ],
)
def test_mistakes_end_with_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


def test_a_taken_port_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "in use" in capsys.readouterr().err


def test_a_new_key_belongs_to_the_line_that_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from dicast.server.keys import KeyStore

    assert run(["serve", "--new-key", "alice"]) == 0
    shown = capsys.readouterr().out
    key = re.search(r"dk_[\w-]+", shown)
    assert key
    assert hashlib.sha256(key[0].encode()).hexdigest() in shown
    path = tmp_path / "keys.toml"
    path.write_text(shown[shown.index("[") :])
    assert KeyStore(file=path).find(key[0])
