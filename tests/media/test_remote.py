"""Fetching: only allowed hosts, only public addresses, only the address that was checked. All servers are local."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.media.samples import encoded, gradient

from dicast.errors import MediaError
from dicast.media import MediaLimits, RemotePolicy, decode_image
from dicast.media.remote import fetch, is_public

PICTURE = encoded(gradient())
LIMITS = MediaLimits(fetch_seconds=2.0)


class Site(BaseHTTPRequestHandler):
    """Answers by path; `hits` tells which paths were asked for."""

    hits: list[str]
    sends: dict[str, Callable[[Site], None]]

    def do_GET(self) -> None:
        self.hits.append(self.path)
        self.sends[self.path](self)

    def log_message(self, *_: Any) -> None:
        return

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def site() -> Iterator[type[Site]]:
    kind = type("OneSite", (Site,), {"hits": [], "sends": {"/a.png": lambda s: s.answer(200, PICTURE)}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    kind.port = server.server_port  # type: ignore[attr-defined]
    try:
        yield kind
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(site: Any, path: str, *, hosts: tuple[str, ...] | None = None, private: bool = True, **options: Any) -> bytes:
    hosts = (f"localhost:{site.port}",) if hosts is None else hosts
    policy = RemotePolicy(hosts, allow_private=private)
    url = path if "://" in path else f"http://localhost:{site.port}{path}"
    settings = {"name": "images.0", "limit": 10_000, "limits": LIMITS} | options
    return fetch(url, policy=policy, **settings)


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(MediaError) as caught:
        get(*arguments, **options)
    assert caught.value.field == "images.0"
    return str(caught.value)


def test_an_allowed_host(site: Any) -> None:
    assert get(site, "/a.png") == PICTURE
    policy = RemotePolicy((f"localhost:{site.port}",), allow_private=True)
    assert decode_image(f"http://localhost:{site.port}/a.png", remote=policy).size == (48, 32)


def test_a_host_that_is_not_on_the_list(site: Any) -> None:
    assert "not on the list" in refused(site, "/a.png", hosts=("example.org",))
    assert "not on the list" in refused(site, "/a.png", hosts=("localhost",))  # the port is another one
    assert "refused here" in refused(site, "/a.png", hosts=())
    assert site.hits == []


def test_private_addresses_are_refused_even_for_an_allowed_host(site: Any) -> None:
    assert "not public" in refused(site, "/a.png", private=False)
    assert site.hits == []


def test_patterns() -> None:
    policy = RemotePolicy(("*.example.org", "cdn.test:8443"))
    assert policy.allows("a.example.org", 443, "https")
    assert not policy.allows("example.org", 443, "https")
    assert not policy.allows("badexample.org", 443, "https")
    assert not policy.allows("a.example.org", 8443, "https")
    assert policy.allows("cdn.test", 8443, "https")
    assert not policy.allows("cdn.test", 443, "https")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


def test_one_private_address_among_public_ones_is_enough(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(2, 1, 6, "", ("93.184.216.34", site.port)), (2, 1, 6, "", ("127.0.0.1", site.port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: answers)
    assert "not public" in refused(site, "/a.png", private=False)


def test_the_name_is_looked_up_once_and_the_checked_address_is_used(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the first answer is public, a second one would be private."""
    asked: list[str] = []
    connected: list[Any] = []

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        address = "93.184.216.34" if len(asked) == 1 else "127.0.0.1"
        return [(2, 1, 6, "", (address, site.port))]

    def connect(address: Any, timeout: float) -> socket.socket:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    assert "cannot be reached" in refused(site, "/a.png", private=False)
    assert connected == [("93.184.216.34", site.port)]


def test_redirects_are_followed_and_counted(site: Any) -> None:
    site.sends |= {
        "/1": lambda s: s.answer(302, Location="/a.png"),
        "/loop": lambda s: s.answer(301, Location="/loop"),
        "/nowhere": lambda s: s.answer(302),
    }
    assert get(site, "/1") == PICTURE
    assert "more than 3 redirects" in refused(site, "/loop")
    assert "status 302" in refused(site, "/nowhere")


@pytest.mark.parametrize("target", ["http://example.org/", "file:///etc/hostname", "http://u:p@localhost/", "http://["])
def test_redirect_targets_are_checked_like_the_first_address(site: Any, target: str) -> None:
    site.sends["/r"] = lambda s: s.answer(302, Location=target)
    refused(site, "/r")


def test_a_redirect_to_a_private_address(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site.sends["/r"] = lambda s: s.answer(302, Location=f"http://internal.example.org:{site.port}/a.png")
    real = socket.getaddrinfo

    def resolve(host: str, *arguments: Any, **options: Any) -> Any:
        # The first host passes as public here; the connection itself goes to the loopback server.
        if host == "cdn.example.org":
            return [(2, 1, 6, "", ("93.184.216.34", site.port))]
        return real("127.0.0.1", *arguments, **options)

    connect = socket.create_connection
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", lambda _, timeout: connect(("127.0.0.1", site.port), timeout))
    hosts = (f"*.example.org:{site.port}",)
    said = refused(site, f"http://cdn.example.org:{site.port}/r", hosts=hosts, private=False)
    assert "internal.example.org resolves to an address that is not public" in said
    assert site.hits == ["/r"]


def test_other_answers(site: Any) -> None:
    def short(s: Site) -> None:
        s.send_response(200)
        s.send_header("Content-Length", "1000")
        s.end_headers()
        s.wfile.write(b"abc")
        s.close_connection = True

    def endless(s: Site) -> None:
        s.send_response(200)
        s.end_headers()
        for _ in range(50):
            s.wfile.write(bytes(1000))
        s.close_connection = True

    site.sends |= {
        "/404": lambda s: s.answer(404, b"no"),
        "/large": lambda s: s.answer(200, bytes(20_000)),
        "/endless": endless,
        "/short": short,
        "/empty": lambda s: s.answer(200, b""),
    }
    assert "status 404" in refused(site, "/404")
    assert "20000 bytes are more than the limit of 10000" in refused(site, "/large")
    assert "limit of 10000 bytes" in refused(site, "/endless")
    assert "did not answer as expected" in refused(site, "/short")
    assert get(site, "/empty") == b""  # refused by whoever reads the bytes


@pytest.mark.parametrize("announced", [True, False])
def test_a_peer_that_trickles_is_cut_off(site: Any, announced: bool) -> None:
    released = threading.Event()

    def trickle(s: Site) -> None:
        s.send_response(200)
        if announced:
            s.send_header("Content-Length", "1000")
        s.end_headers()
        for _ in range(200):
            if released.is_set():
                break
            try:
                s.wfile.write(b"x")
            except OSError:
                break
            time.sleep(0.02)
        s.close_connection = True

    site.sends["/slow"] = trickle
    said = refused(site, "/slow", limits=MediaLimits(fetch_seconds=0.3))
    released.set()
    assert "longer than the time limit" in said


@pytest.mark.parametrize("url", ["http://user@localhost/", "http:///a", "http://localhost:99999/", "http://[::1/"])
def test_urls_that_are_refused(site: Any, url: str) -> None:
    refused(site, url)
