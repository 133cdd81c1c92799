"""Entry point of the `dicast` command: finds the command, runs it, turns errors into one sentence and an exit code.

Only the module of the command that was asked for is imported, so that `dicast decide` never pays for `dicast train`;
the other commands are registered as names with a help line. Command modules are `dicast.cli.<name>` and hold a typer
function of the same name.

Exit codes: 0 fine, 2 the input is wrong, 1 anything else, 130 interrupted. Errors go to standard error. A traceback is
shown only with `--debug` (before the command) or `DICAST_DEBUG=1`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from dicast._version import __version__
from dicast.cli.text import printable
from dicast.errors import CheckpointError, DicastError, InputError

COMMANDS = {
    "decide": "Answer questions about one state: a System One request in, probabilities out.",
    "batch": "Answer a file of requests, one JSON object per line.",
    "serve": "Serve the System One and Decisions APIs over HTTP.",
    "info": "Show what a model is and what it can do.",
    "train": "Train a decision model from a configuration file.",
    "calibrate": "Fit temperatures and thresholds on held-out answers.",
    "eval": "Measure a model on labelled requests.",
    "export": "Write a trained model for another runtime.",
    "bench": "Measure speed and memory on this machine.",
}
"""Command -> help line, in the order of `dicast --help`."""

EXIT_OK, EXIT_ERROR, EXIT_BAD_INPUT = 0, 1, 2
DEBUG_VARIABLE = "DICAST_DEBUG"
_COMPLETION_WORDS = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")
"""Where shells put the line to complete (typer's convention)."""


def main() -> None:
    """Run the command line of this process and exit."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are written to standard error."""
    arguments = arguments or ["--help"]
    command = _command_of(arguments)
    place = arguments.index(command) if command else len(arguments)
    before, behind = arguments[:place], arguments[place + 1 :]
    debug = "--debug" in before or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    try:
        application = build(command or _command_of(_words_to_complete()))
        code = application(args=list(arguments), prog_name="dicast", standalone_mode=False, obj=list(behind))
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_OK
    except BrokenPipeError:
        # The reader went away (`dicast ... | head`); point the stream elsewhere, or closing it would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except typer.Abort:
        return _fail("aborted", EXIT_ERROR)
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _fail(*_explain(error))


def build(only: str | None = None) -> typer.Typer:
    """The application.

    Args:
        only: the one command whose module is imported; the others are there by name.
    """
    application = typer.Typer(
        name="dicast",
        help="Dicast: open decision models. A state and typed questions in, a probability for every option out.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(_global_options)
    for name, text in COMMANDS.items():
        function = _load(name) if name == only else _placeholder
        application.command(name, short_help=text)(function)
    return application


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dicast {__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when a command fails.")] = False,
) -> None:
    """Options before the command; `run` looks for `--debug` itself, since an error may come before this is called."""


def _placeholder() -> None:
    raise AssertionError("a command is imported before it runs")


def _load(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(f"dicast.cli.{name}"), name)
    return function


def _command_of(arguments: Sequence[str]) -> str | None:
    """The first argument that is no option, if it is a command; options before the command take no values."""
    first = next((argument for argument in arguments if not argument.startswith("-")), None)
    return first if first in COMMANDS else None


def _words_to_complete() -> Sequence[str]:
    """The line that a shell wants completed, without the program's name; empty when nothing is to be completed."""
    line = next((os.environ[name] for name in _COMPLETION_WORDS if name in os.environ), "")
    return line.split()[1:]


def _explain(error: Exception) -> tuple[str, int]:
    """One sentence about an error, and the exit code."""
    if isinstance(error, InputError | CheckpointError):
        return str(error), EXIT_BAD_INPUT
    if isinstance(error, typer.TyperException):
        return error.format_message(), error.exit_code
    if isinstance(error, DicastError):
        return str(error), EXIT_ERROR
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", EXIT_ERROR
    return f"unexpected {type(error).__name__}: {error}; `dicast --debug ...` shows where", EXIT_ERROR


def _fail(message: str, code: int) -> int:
    print(f"dicast: error: {printable(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
