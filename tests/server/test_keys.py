"""Keys: hashed at rest, named, reloaded, and who gets in."""

import hashlib
from pathlib import Path

import pytest
from tests.server.serving import BODY, running

from dicast.errors import ConfigError
from dicast.server.keys import KeyStore, bearer_token, new_key
from dicast.server.settings import ModelSpec, Settings

SECRET = "a-secret-of-many-characters"


def keys_file(folder: Path, *names: str, more: str = "") -> tuple[Path, dict[str, str]]:
    made = {name: new_key(name) for name in names}
    path = folder / "keys.toml"
    path.write_text("".join(lines + more for _, lines in made.values()))
    return path, {name: key for name, (key, _) in made.items()}


class TestStore:
    def test_finds_keys_by_their_hash_only(self, tmp_path: Path) -> None:
        path, keys = keys_file(tmp_path, "alice", "bob")
        store = KeyStore(file=path)
        assert store.required
        assert store.names == ("alice", "bob")
        for name, key in keys.items():
            found = store.find(key)
            assert found is not None
            assert found.name == name
            assert key not in path.read_text()
        assert store.find("nothing") is None
        assert store.find("") is None
        assert store.find("\ud800") is None

    def test_takes_keys_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONE", f"  {SECRET}\n")
        found = KeyStore(["ONE"]).find(SECRET)
        assert found is not None
        assert found.name == "ONE"
        for value, words in (("", "is not set"), ("short", "at least 16")):
            monkeypatch.setenv("ONE", value)
            with pytest.raises(ConfigError, match=words):
                KeyStore(["ONE"])

    def test_reload_takes_new_keys_and_keeps_the_old_ones_after_a_mistake(self, tmp_path: Path) -> None:
        path, keys = keys_file(tmp_path, "alice")
        store = KeyStore(file=path)
        _, newer = keys_file(tmp_path, "bob")
        store.reload()
        assert store.names == ("bob",)
        assert store.find(keys["alice"]) is None
        path.write_text("nonsense")
        with pytest.raises(ConfigError):
            store.reload()
        assert store.find(newer["bob"]) is not None

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "holds no key"),
            ("x = 1", "must be a table"),
            ("[a]\nsha256 = 'short'", "64 hexadecimal"),
            (f"[a]\nsha256 = '{'0' * 64}'\nrate = 1", "unknown entry 'rate'"),
            (f"[a]\nsha256 = '{'0' * 64}'\nconcurrent = 0", "at least 1"),
            (f"['a b']\nsha256 = '{'0' * 64}'", "letters, digits"),
            ("[a", "not valid TOML"),
        ],
    )
    def test_mistakes_in_the_file_are_named(self, tmp_path: Path, text: str, words: str) -> None:
        path = tmp_path / "keys.toml"
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            KeyStore(file=path)
        with pytest.raises(ConfigError, match="cannot read"):
            KeyStore(file=tmp_path / "missing")

    def test_new_keys_are_long_and_different(self) -> None:
        (one, lines), (two, _) = new_key("a"), new_key("a")
        assert one != two
        assert len(one) > 40
        assert hashlib.sha256(one.encode()).hexdigest() in lines
        with pytest.raises(ConfigError):
            new_key("a\nb")

    @pytest.mark.parametrize(
        ("headers", "token"),
        [
            ({"authorization": "Bearer k"}, "k"),
            ({"authorization": "bearer  k "}, "k"),
            ({"authorization": "Basic k"}, None),
            ({"authorization": "Bearer "}, None),
            ({"x-api-key": "k"}, "k"),
            ({"api-key": "k"}, "k"),
            ({}, None),
        ],
    )
    def test_where_a_request_carries_its_key(self, headers: dict[str, str], token: str | None) -> None:
        assert bearer_token(headers) == token


class TestAccess:
    def test_with_keys_only_their_holders_get_in(self, tmp_path: Path) -> None:
        path, keys = keys_file(tmp_path, "alice")
        with running(Settings(api_keys_file=path)) as alive:
            good = {"authorization": f"Bearer {keys['alice']}"}
            assert alive.post(BODY, headers=good).status_code == 200
            assert alive.post(BODY, headers={"x-api-key": keys["alice"]}).status_code == 200
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {keys['alice']}"}):
                response = alive.post(BODY, headers=headers)
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                shown = response.json()
                assert shown["detail"]["error_type"] == shown["error"]["type"] == "authentication_error"
            assert alive.client.get("/v1/models").status_code == 401
            assert alive.client.get("/metrics").status_code == 401
            for path_ in ("/health", "/ready", "/openapi.json", "/"):
                assert alive.client.get(path_).status_code in (200, 503)

    def test_a_missing_key_can_be_a_403_as_on_the_hosted_api(self, tmp_path: Path) -> None:
        path, _ = keys_file(tmp_path, "alice")
        with running(Settings(api_keys_file=path, missing_key_status=403, public_metrics=True)) as alive:
            assert alive.post(BODY).status_code == 403
            assert alive.post(BODY, headers={"authorization": "Bearer wrong"}).status_code == 401
            assert alive.client.get("/metrics").status_code == 200

    def test_without_keys_any_header_is_accepted(self) -> None:
        with running() as alive:
            assert alive.post(BODY, headers={"authorization": "Bearer anything"}).status_code == 200

    def test_a_key_can_have_limits_of_its_own(self, tmp_path: Path) -> None:
        path, keys = keys_file(tmp_path, "slow", more="requests_per_minute = 10\n")
        with running(Settings(api_keys_file=path)) as alive:
            headers = {"authorization": f"Bearer {keys['slow']}"}
            assert [alive.post(BODY, headers=headers).status_code for _ in range(2)] == [200, 429]
            refused = alive.post(BODY, headers=headers)
            assert 0 < int(refused.headers["retry-after-ms"]) <= 6000
            assert 1 <= int(refused.headers["retry-after"]) <= 6
            assert refused.json()["detail"]["error_type"] == "rate_limit_error"


class TestSettings:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
    def test_a_public_address_needs_keys(self, host: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no API key is set"):
            Settings(host=host).check()
        assert Settings(host=host, insecure=True).check()
        assert Settings(host=host, api_keys_file=tmp_path).check()

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
    def test_loopback_needs_none(self, host: str) -> None:
        assert Settings(host=host).check()

    @pytest.mark.parametrize(
        ("changes", "option"),
        [
            ({"port": 70_000}, "--port"),
            ({"digits": 1}, "--digits"),
            ({"confidence": "margin"}, "--confidence"),
            ({"missing_key_status": 404}, "--missing-key-status"),
            ({"log_level": "loud"}, "--log-level"),
            ({"models": ()}, "--model"),
            ({"models": (ModelSpec("a", "x"), ModelSpec("a", "y"))}, "--model"),
            ({"deadline_ms": 0}, "--deadline-ms"),
        ],
    )
    def test_wrong_values_name_the_option(self, changes: dict[str, object], option: str) -> None:
        with pytest.raises(ConfigError) as caught:
            Settings(**changes).check()  # type: ignore[arg-type]
        assert caught.value.field == option

    def test_models_are_given_by_path_or_name_and_path(self) -> None:
        assert ModelSpec.parse("big=some/folder") == ModelSpec("big", "some/folder")
        assert ModelSpec.parse("some/folder") == ModelSpec("", "some/folder")
        for text in ("", "=x", "x="):
            with pytest.raises(ConfigError):
                ModelSpec.parse(text)
