"""Questions typed on the command line, in the order in which they were typed.

    --noul urgent="Is this urgent?" --choice team="Who?:billing,technical" --score mood="How upset?:calm,angry"

What follows the last colon is the list of options or levels; the part between `=` and that colon is the instructions
and may be empty. Without `=`, a noul's id alone is the question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dicast.errors import ConfigError
from dicast.records import Choice, Noul, Question, Score

FLAGS = {"--noul": "noul", "--choice": "choice", "--score": "score"}


def parse_questions(typed: Sequence[tuple[str, str]]) -> dict[str, Question]:
    """Questions by id.

    Args:
        typed: (`noul`, `choice` or `score`; the text behind the flag), in the order in which they were typed.

    Raises:
        ConfigError: an empty id, an id twice, or missing options.
        RecordError: an option twice.
    """
    questions: dict[str, Question] = {}
    for kind, text in typed:
        question_id, question = _parse(kind, text)
        if question_id in questions:
            raise ConfigError(f"the question id {question_id!r} is given twice", field=f"--{kind}", seen=question_id)
        questions[question_id] = question
    return questions


def in_typed_order(
    arguments: Sequence[str], valued: Mapping[str, bool], typed: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """The question flags in the order of the command line; the option parser only keeps the order within one flag.

    Args:
        arguments: the command line behind the command's name.
        valued: option name -> whether it takes a value.
        typed: `noul`, `choice`, `score` -> the texts as parsed.
    """
    queues = {kind: iter(texts) for kind, texts in typed.items()}
    ordered: list[tuple[str, str]] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            break
        name, has_value, _ = word.partition("=")
        if name in FLAGS:
            ordered.append((FLAGS[name], next(queues[FLAGS[name]])))
        if valued.get(name, False) and not has_value:
            next(words, None)
    return ordered


def _parse(kind: str, text: str) -> tuple[str, Question]:
    question_id, has_text, rest = text.partition("=")
    question_id = question_id.strip()
    if not question_id:
        raise ConfigError(f"{text!r} has no question id: write id=QUESTION", field=f"--{kind}", seen=text)
    if kind == "noul":
        return question_id, Noul(rest.strip() or None)
    instructions, colon, listed = rest.rpartition(":")
    options = [option.strip() for option in listed.split(",")]
    if not has_text or not colon or not all(options):
        wanted = "billing,technical" if kind == "choice" else "low,middle,high"
        raise ConfigError(
            f"{text!r} lists no {'options' if kind == 'choice' else 'levels'} behind a colon: "
            f'write {question_id}="QUESTION:{wanted}"',
            field=f"--{kind}",
            seen=text,
        )
    asked = instructions.strip() or None
    return question_id, Choice(asked, options) if kind == "choice" else Score(asked, options)
