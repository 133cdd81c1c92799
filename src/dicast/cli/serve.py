"""`dicast serve`: the System One and Decisions APIs over HTTP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from dicast.errors import ConfigError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?", re.IGNORECASE)


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            envvar="DICAST_MODEL",
            metavar="[NAME=]FOLDER|HUB-NAME",
            help="A model to offer; repeat for several. The first is the default.",
            show_default="the embedded model",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; a public one needs keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free one.")] = 8000,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a public address without keys.")] = False,
    api_keys_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of hashed keys; SIGHUP reads it again.")
    ] = None,
    api_key_env: Annotated[
        list[str] | None, typer.Option(metavar="VARIABLE", help="Environment variable that holds a key; repeatable.")
    ] = None,
    new_key: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make a key, print it and its line for the keys file, and exit.")
    ] = None,
    missing_key_status: Annotated[int, typer.Option(help="401, or 403 as the hosted API answers.")] = 401,
    rate_limit: Annotated[int, typer.Option(help="Requests per minute per key; 0 for no limit.")] = 0,
    concurrent_per_key: Annotated[int, typer.Option(help="Requests at once per key; 0 for no limit.")] = 0,
    max_in_flight: Annotated[int, typer.Option(help="Requests at once in all.")] = 256,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="Largest body, decompressed or not.")] = "32MiB",
    deadline_ms: Annotated[int, typer.Option(help="Longest time for one request.")] = 30_000,
    grace: Annotated[int, typer.Option(help="Seconds for requests in flight to finish after SIGTERM.")] = 30,
    device: Annotated[str, typer.Option(envvar="DICAST_DEVICE", help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(envvar="DICAST_DTYPE", help="auto, float32, bfloat16 or float16.")] = "auto",
    model_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Most bytes of weights kept loaded; 0 for no limit.")
    ] = "0",
    any_model: Annotated[bool, typer.Option("--any-model", help="Answer unknown model names too.")] = False,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Score each question alone unless a request says otherwise.")
    ] = False,
    digits: Annotated[int, typer.Option(help="Decimals of shown numbers.")] = 4,
    confidence: Annotated[str, typer.Option(help="typesafe, pmax, purity or entropy.")] = "typesafe",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse unknown top-level fields.")] = False,
    allow_media_hosts: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Host to fetch images from by URL; repeatable.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Origin that browsers may call from; repeatable.")
    ] = None,
    public_metrics: Annotated[bool, typer.Option("--public-metrics", help="Serve /metrics without a key.")] = False,
    playground: Annotated[bool, typer.Option(help="Serve a page to try the server at /.")] = True,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="json, text, or auto: text on a terminal.")] = "auto",
    log_bodies: Annotated[
        bool, typer.Option("--log-bodies", help="Log request bodies; they hold your users' data.")
    ] = False,
) -> None:
    """Serve the System One and Decisions APIs over HTTP.

    Official clients work unchanged: point TypeSafe's at http://127.0.0.1:8000 and OpenAI's at http://127.0.0.1:8000/v1.
    """
    if new_key is not None:
        _print_new_key(new_key)
        return
    from dicast.server.process import serve as run
    from dicast.server.settings import ModelSpec, Settings

    settings = Settings(
        host=host,
        port=port,
        insecure=insecure,
        models=tuple(ModelSpec.parse(text) for text in model or ()) or (ModelSpec(),),
        device=device,
        dtype=dtype,
        model_memory=size(model_memory, "--model-memory"),
        any_model=any_model,
        isolate=isolate,
        digits=digits,
        confidence=confidence,  # type: ignore[arg-type]  # Settings.check refuses an unknown rule
        strict=strict,
        api_key_env=tuple(api_key_env or ()),
        api_keys_file=api_keys_file,
        missing_key_status=missing_key_status,
        public_metrics=public_metrics,
        cors_origins=tuple(cors_origin or ()),
        media_hosts=tuple(allow_media_hosts or ()),
        max_body=size(max_body, "--max-body"),
        max_in_flight=max_in_flight,
        requests_per_minute=rate_limit,
        concurrent_per_key=concurrent_per_key,
        deadline_ms=deadline_ms,
        grace_seconds=grace,
        log_level=log_level,
        log_format=log_format,
        log_bodies=log_bodies,
        playground=playground,
    )
    raise typer.Exit(run(settings))


def size(text: str, option: str) -> int:
    """Bytes of ``32MiB``, ``8G`` or ``1048576``; units are powers of 1024.

    Raises:
        ConfigError: not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"must be a size such as 32MiB or 8G, not {text!r}", field=option, seen=text)
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


def _print_new_key(name: str) -> None:
    from dicast.server.keys import new_key

    key, lines = new_key(name)
    print(f"The key, shown only now:\n\n    {key}\n\nFor the keys file:\n\n{lines}", end="")
