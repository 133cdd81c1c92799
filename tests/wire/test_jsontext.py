"""Strict JSON: what the contract allows and nothing more."""

import pytest

from dicast.wire.errors import RequestError
from dicast.wire.jsontext import MAX_TEXT_NESTING, MAX_VALUES, read_json, write_json


def test_reads_what_is_json_and_keeps_key_order() -> None:
    assert read_json('{"b":[1,2.5,true,null,"é\\n😀"],"a":{}}'.encode()) == {
        "b": [1, 2.5, True, None, "é\n😀"],
        "a": {},
    }
    assert list(read_json(b'{"b":1,"a":2}')) == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "JSON decode error"),
        (b'{"a": 1', "JSON decode error"),
        (b"{'a': 1}", "JSON decode error"),
        (b'{"a": 1}{}', "JSON decode error"),
        (b'{"a": 1, "a": 1}', "the key 'a' is given twice"),
        (b'{"x": [{"a": 1, "b": 2, "a": 3}]}', "the key 'a' is given twice"),
        (b"[NaN]", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e999]", "too large"),
        (b"[" + b"9" * 5000 + b"]", r"^the number 9{40}\.\.\. has 5000 characters, which is too many$"),
        (b'"\xff"', "not valid UTF-8 at byte 1"),
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        ('{"a": 1}'.encode("utf-16"), "not valid UTF-8"),
        (b'"\x01"', "control character"),
    ],
)
def test_refuses_what_is_not(text: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read_json(text)
    assert caught.value.status == 422


def test_nesting_is_bounded_before_anything_recurses() -> None:
    deep = b"[" * MAX_TEXT_NESTING + b"]" * MAX_TEXT_NESTING
    assert read_json(deep)
    for text in (b"[" + deep + b"]", b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(RequestError, match="nested deeper") as caught:
            read_json(text)
        assert caught.value.status == 400


def test_brackets_inside_strings_are_not_nesting() -> None:
    text = b'["' + b"[{" * 500 + b'", "\\"[[[[", "' + b"\\\\" * 200 + b'"]'
    assert len(read_json(text)) == 3


def test_number_of_values_is_bounded() -> None:
    assert len(read_json(b"[" + b"0," * 1000 + b"0]")) == 1001
    with pytest.raises(RequestError, match=f"more than {MAX_VALUES} JSON values"):
        read_json(b"[" + b"[]," * MAX_VALUES + b"0]")


def test_writes_compact_utf8_and_refuses_to_write_what_is_not_json() -> None:
    assert write_json({"a": 1.0, "é": None}) == '{"a":1.0,"é":null}'.encode()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json({"a": float("nan")})
