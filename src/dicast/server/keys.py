"""API keys: several, with names, hashed at rest, compared in constant time, read again on demand.

    # keys.toml
    [alice]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    requests_per_minute = 600     # optional
    concurrent = 8                # optional

`new_key` makes a key of 256 random bits, for which one round of SHA-256 is enough. Keys are never logged; their names
are.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dicast.errors import ConfigError

MIN_KEY_LENGTH = 16
"""Shortest key taken from an environment variable; shorter ones can be guessed."""
_NAME = re.compile(r"[\w.-]{1,64}")
_FIELDS = ("sha256", "requests_per_minute", "concurrent")


@dataclass(frozen=True, slots=True)
class Key:
    """One key, without the key itself.

    Attributes:
        name: for logs, metrics and limits.
        digest: SHA-256 of the key.
        requests_per_minute: its own rate; None means the server's.
        concurrent: its own bound on requests at once; None means the server's.
    """

    name: str
    digest: bytes
    requests_per_minute: int | None = None
    concurrent: int | None = None


class KeyStore:
    """The keys that a server knows.

    Args:
        variables: environment variables that hold one key each.
        file: TOML file of hashed keys.

    Raises:
        ConfigError: a variable is unset or too short, or the file is unreadable, empty or malformed.
    """

    def __init__(self, variables: Sequence[str] = (), file: Path | None = None) -> None:
        self._variables = tuple(variables)
        self._file = file
        self._keys: tuple[Key, ...] = self._read()

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._variables) or self._file is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keys."""
        return tuple(key.name for key in self._keys)

    def reload(self) -> None:
        """Read everything again; after an error the old keys stay in force.

        Raises:
            ConfigError: as the constructor.
        """
        self._keys = self._read()

    def find(self, token: str) -> Key | None:
        """The key that a token is, compared with every key in constant time."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def _read(self) -> tuple[Key, ...]:
        keys = [_from_variable(name) for name in self._variables]
        if self._file is not None:
            keys += _from_file(self._file)
        if len({key.name for key in keys}) < len(keys):
            raise ConfigError("two keys have the same name", field="--api-keys-file")
        return tuple(keys)


def new_key(name: str) -> tuple[str, str]:
    """A new key, and the lines that let a keys file know it.

    Raises:
        ConfigError: the name has characters other than letters, digits, ``_``, ``.`` and ``-``.
    """
    _check_name(name)
    key = f"dk_{secrets.token_urlsafe(32)}"
    return key, f'["{name}"]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """The key a request was sent with: ``Authorization: Bearer ...``, or ``X-Api-Key`` or ``Api-Key`` instead."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or headers.get("api-key") or None


def _from_variable(name: str) -> Key:
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"the environment variable {name} is not set", field="--api-key-env", seen=name)
    if len(value) < MIN_KEY_LENGTH:
        raise ConfigError(
            f"the key in {name} has {len(value)} characters and needs at least {MIN_KEY_LENGTH}",
            field="--api-key-env",
            limit=MIN_KEY_LENGTH,
            seen=len(value),
        )
    return Key(name, hashlib.sha256(value.encode()).digest())


def _from_file(path: Path) -> list[Key]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}", field="--api-keys-file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", field="--api-keys-file") from None
    if not tables:
        raise ConfigError(f"{path} holds no key", field="--api-keys-file")
    return [_from_table(name, table, path) for name, table in tables.items()]


def _from_table(name: str, table: Any, path: Path) -> Key:
    _check_name(name)
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} must be a table with sha256", field="--api-keys-file")
    for field in table:
        if field not in _FIELDS:
            raise ConfigError(f"{path}: {name} has an unknown entry {field!r}", field="--api-keys-file", seen=field)
    digest = table.get("sha256")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise ConfigError(f"{path}: {name}.sha256 must be 64 hexadecimal digits", field="--api-keys-file")
    rate, concurrent = (_bound(table.get(field), f"{path}: {name}.{field}") for field in _FIELDS[1:])
    return Key(name, bytes.fromhex(digest), rate, concurrent)


def _bound(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where} must be a whole number of at least 1", field="--api-keys-file", seen=value)
    return value


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"a key's name has 1 to 64 letters, digits, _, . or -, not {name!r}", field="--api-keys-file", seen=name
        )
