"""Bodies: bounds while reading, while decompressing, and over all requests; parts; lines."""

import asyncio
import gzip
import random

import pytest
import zstandard

from dicast.errors import OverloadedError
from dicast.server.bodies import BodyBudget, decompress, lines, read_body, split_multipart
from dicast.server.http import ClientGoneError, Request
from dicast.wire.errors import RequestError

TEXT = b"word " * 1000


def streamed_zstd(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        pytest.param(TEXT, "", id="none"),
        pytest.param(TEXT, "identity", id="identity"),
        pytest.param(gzip.compress(TEXT), "gzip", id="gzip"),
        pytest.param(gzip.compress(TEXT[:70]) + gzip.compress(TEXT[70:]), "GZIP ", id="two gzip members"),
        pytest.param(zstandard.compress(TEXT), "zstd", id="zstd"),
        pytest.param(streamed_zstd(TEXT), "zstd", id="streamed zstd"),
        pytest.param(zstandard.compress(TEXT[:70]) + streamed_zstd(TEXT[70:]), "zstd", id="two zstd frames"),
    ],
)
def test_decompression(body: bytes, encoding: str) -> None:
    assert decompress(body, encoding, len(TEXT)) == TEXT


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_output_is_bounded(encoding: str) -> None:
    make = {"gzip": gzip.compress, "zstd": zstandard.compress}[encoding]
    with pytest.raises(RequestError) as caught:
        decompress(make(bytes(50_000_000)), encoding, 1_000_000)
    assert (caught.value.status, caught.value.limit) == (413, 1_000_000)
    assert decompress(make(TEXT), encoding, len(TEXT)) == TEXT


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_broken_streams_are_refused(encoding: str) -> None:
    whole = {"gzip": gzip.compress, "zstd": streamed_zstd}[encoding](bytes(random.Random(1).randbytes(3000)))
    for broken in (whole[:-1], whole[: len(whole) // 2], b"junk", whole + b"junk"):
        with pytest.raises(RequestError) as caught:
            decompress(broken, encoding, 10_000)
        assert caught.value.status == 400
    with pytest.raises(RequestError, match="not supported"):
        decompress(whole, "br", 10_000)


def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    window = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    body = zstandard.ZstdCompressor(compression_params=window).compressobj().compress(bytes(1000))
    stream = zstandard.ZstdCompressor(compression_params=window).compressobj()
    body = stream.compress(bytes(1000)) + stream.flush()
    with pytest.raises(RequestError, match="zstd stream"):
        decompress(body, "zstd", 10_000)


def request(*chunks: bytes | None, **headers: str) -> Request:
    """A request whose body arrives in chunks; None stands for a client that goes away."""
    left = list(chunks)

    async def receive() -> dict[str, object]:
        chunk = left.pop(0)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    return Request("POST", "/", headers, "127.0.0.1", receive, "id")


def read(asked: Request, limit: int = 100, budget: BodyBudget | None = None) -> bytes:
    with (budget or BodyBudget(1000)).share() as take:
        return asyncio.run(read_body(asked, limit, 5, take))


def test_reading_is_bounded() -> None:
    assert read(request(b"ab", b"", b"cd")) == b"abcd"
    with pytest.raises(RequestError) as caught:
        read(request(b"x" * 60, b"x" * 60, b"never read"))
    assert caught.value.status == 413
    with pytest.raises(RequestError):
        read(request(b"never read", **{"content-length": "101"}))
    with pytest.raises(ClientGoneError):
        read(request(b"x", None))


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    asked = Request("POST", "/", {}, "", never, "id")
    with pytest.raises(RequestError) as caught:
        asyncio.run(read_body(asked, 100, 0.01, lambda count: None))
    assert caught.value.status == 408


def test_bodies_share_a_budget_and_give_it_back() -> None:
    budget = BodyBudget(100)
    with budget.share() as take:
        take(60)
        with pytest.raises(OverloadedError):
            read(request(b"x" * 50), budget=budget)
        assert budget.held == 60
    assert budget.held == 0
    assert read(request(b"x" * 50), budget=budget)


def part(name: str | None, data: bytes) -> bytes:
    disposition = b"form-data" + (f'; name="{name}"'.encode() if name is not None else b"")
    return b"--B\r\nContent-Disposition: " + disposition + b"\r\n\r\n" + data + b"\r\n"


def test_multipart_bodies_are_split() -> None:
    body = part("request", b'{"a":1}') + part("asset-0", b"\x00\r\n--C\r\n") + b"--B--\r\n"
    assert split_multipart(body, 'multipart/form-data; boundary="B"') == (b'{"a":1}', {"asset-0": b"\x00\r\n--C\r\n"})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "ends before"),
        (part("request", b"{}"), "ends before"),
        (part("other", b"{}") + b"--B--", "no part is named 'request'"),
        (part("request", b"{}") * 2 + b"--B--", "given twice"),
        (part("request", b"{}") + part(None, b"") + b"--B--", "no name"),
        (part("request", b"{}") + part("x", b"") * 250 + b"--B--", "more than 200 parts"),
        (b"junk", "cannot be read"),
    ],
)
def test_broken_multipart_bodies_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        split_multipart(body, "multipart/form-data; boundary=B")
    assert caught.value.status == 400


def test_lines_are_cut_where_they_end() -> None:
    async def collected(*chunks: bytes) -> list[bytes]:
        async def source():  # type: ignore[no-untyped-def]
            for chunk in chunks:
                yield chunk

        return [line async for line in lines(source(), 10)]

    assert asyncio.run(collected(b"a\nb", b"c\n\n \nd\r\n", b"e")) == [b"a", b"bc", b"d\r", b"e"]
    with pytest.raises(RequestError):
        asyncio.run(collected(b"x" * 8, b"x" * 8))
