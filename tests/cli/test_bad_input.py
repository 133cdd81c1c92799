"""Every bad input gives exit code 2 and one clear sentence on standard error, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RELEASE = Path(__file__).parents[1] / "golden" / "release"
NOUL = {"q": {"type": "noul", "instructions": "Is it?"}}


def body(**changes: Any) -> dict[str, Any]:
    fields = {"state": "x", "questions": NOUL} | changes
    return {key: value for key, value in fields.items() if value is not ...}


def question(**fields: Any) -> dict[str, Any]:
    return body(questions={"team": fields})


CASES = {
    "missing state": (body(state=...), "state: Field required"),
    "null state": (body(state=None), "state: Field required"),
    "missing questions": (body(questions=...), "questions: Field required"),
    "empty questions": (body(questions={}), "questions: at least one question"),
    "unknown type": (question(type="maybe"), "questions.team.type: must be noul, choice or score, not 'maybe'"),
    "empty choice criteria": (question(type="choice", criteria={}), "questions.team.criteria: must not be empty"),
    "empty score criteria": (question(type="score", criteria=[]), "questions.team.criteria: must not be empty"),
    "choice criteria as a list": (
        question(type="choice", criteria=["a"]),
        "questions.team.criteria: must be an object",
    ),
    "score criteria as an object": (
        question(type="score", criteria={"a": 1}),
        "questions.team.criteria: must be an array",
    ),
    "noul criteria as a string": (question(type="noul", criteria="yes"), "questions.team.criteria: must be an object"),
    "256 options": (
        question(type="choice", criteria={f"o{i}": None for i in range(256)}),
        "questions.team.criteria: 256 options are more than the limit of 255",
    ),
    "11 levels": (
        question(type="score", criteria=[f"l{i}" for i in range(11)]),
        "questions.team.criteria: 11 levels are more than the limit of 10",
    ),
    "duplicate keys": (b'{"state": "x", "state": "y", "questions": {}}', "the key 'state' is given twice"),
    "invalid JSON": (b'{"state": "x",', "JSON decode error at character 14"),
    "not an object": (b"[]", "the body must be a JSON object"),
    "empty file": (b"", "JSON decode error"),
    "not UTF-8": (b'{"state": "\xff"}', "not valid UTF-8 at byte 11"),
    "over the token budget": (body(state="word " * 60), "state: 61 tokens, but 50 fit"),
    "unknown model in the request": (body(model="gpt-7"), "model: the request asks for 'gpt-7'"),
}


def assert_one_sentence(outcome: Any, message: str) -> None:
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    assert outcome.err.startswith("dicast: error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("toy")
def test_a_bad_request_is_refused(
    case: str, dicast_command: Callable[..., Any], request_file: Callable[..., Path]
) -> None:
    content, message = CASES[case]
    assert_one_sentence(dicast_command("decide", request_file(content)), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decide"], "nothing to decide"),
        (["decide", "nowhere.json"], "cannot read nowhere.json: no such file or directory"),
        (["decide", "."], "cannot read .: is a directory"),
        (["decide", "x.json", "--state", "x"], "not both"),
        (["decide", "--state", "x"], "needs at least one question"),
        (["decide", "--state", "x", "--noul", "=Is it?"], "has no question id"),
        (["decide", "--state", "x", "--noul", "a", "--noul", "a=?"], "given twice"),
        (["decide", "--state", "x", "--choice", "a=Which?"], "lists no options behind a colon"),
        (["decide", "--state", "x", "--score", "a=How?:low,,high"], "lists no levels behind a colon"),
        (["decide", "--state", "x", "--choice", "a=?:b,b"], "given twice"),
        (["decide", "--state", "x", "--noul", "a", "--image", "nowhere.png"], "cannot read nowhere.png"),
        (["decide", "--state", "x", "--noul", "a", "--image", "pyproject.toml"], "pyproject.toml"),
        (["decide", "--state", "x", "--noul", "a", "--digits", "0"], "--digits"),
        (["decide", "--state", "x", "--noul", "a", "--nouns"], "No such option"),
        (["decide", "--state", "x", "--noul", "a", "-m", "missing"], "model: no model 'missing'"),
        (["decode"], "No such command 'decode'"),
        (["info", "a", "--model", "b"], "give the model once"),
    ],
)
@pytest.mark.usefixtures("toy")
def test_a_bad_command_line_is_refused(
    arguments: list[str], message: str, dicast_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RELEASE.parents[2])
    assert_one_sentence(dicast_command(*arguments), message)


@pytest.mark.parametrize("name", ["no-such-model", "./nowhere", "/nowhere/at/all"])
def test_an_unknown_model_is_named(name: str, dicast_command: Callable[..., Any]) -> None:
    outcome = dicast_command("decide", "--state", "x", "--noul", "a", "--model", name)
    assert_one_sentence(outcome, f"no model {name!r}")


@pytest.mark.parametrize("file", ["joint_head.safetensors", "model.safetensors"])
def test_a_corrupt_checkpoint_is_named(file: str, dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    folder = shutil.copytree(RELEASE, tmp_path / "broken", copy_function=shutil.copyfile)
    (folder / file).write_bytes(b"\xff" * 100)
    outcome = dicast_command("decide", "--state", "x", "--noul", "a", "-m", folder)
    assert outcome.code == 2
    assert outcome.out == ""
    last = outcome.err.splitlines()[-1]
    assert last.startswith("dicast: error: ")
    assert str(folder) in last
    assert "Traceback" not in outcome.err


@pytest.mark.usefixtures("toy")
def test_a_strangers_text_in_an_error_cannot_drive_the_terminal(
    dicast_command: Callable[..., Any], request_file: Callable[..., Path]
) -> None:
    outcome = dicast_command("decide", request_file({"state": "x", "questions": {"\x1b[2J": {"type": "?"}}}))
    assert outcome.code == 2
    assert "\x1b" not in outcome.err
    assert json.dumps("\x1b[2J")[1:-1].replace("u001b", "x1b") in outcome.err
