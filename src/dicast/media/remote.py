"""Fetching remote media safely, for those who allow it. Off by default; knows no formats.

A fetch could be turned against the network of the server that makes it, so: only hosts that the operator names; every
address that the name resolves to must be public; the connection goes to one of the very addresses that were checked (a
second look-up could answer differently); each redirect is a new address with the same checks; no proxies, no user names
in URLs, no other ports than the scheme's own unless named; bounded bytes and time.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from dicast.errors import MediaError
from dicast.media.limits import MediaLimits, refuse

_PORTS = {"http": 80, "https": 443}
_CHUNK = 64 * 1024
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class RemotePolicy:
    """Which hosts media may be fetched from.

    Attributes:
        hosts: exact names (``cdn.example.org``), names with a port (``cdn.example.org:8443``) or all names below a
            domain (``*.example.org``). Nothing else is reached; the empty tuple refuses every URL.
        allow_private: also permit addresses that are not public (loopback, 10.x, link-local ...). For tests and for
            closed networks whose operator knows what listens there.
    """

    hosts: tuple[str, ...] = ()
    allow_private: bool = False

    def allows(self, host: str, port: int, scheme: str) -> bool:
        """Whether a host (lower case, no trailing dot) and port are on the list."""
        plain = port == _PORTS[scheme]
        for pattern in self.hosts:
            wanted, _, wanted_port = pattern.lower().partition(":")
            if not (wanted_port == str(port) if wanted_port else plain):
                continue
            if wanted == host or (wanted.startswith("*.") and host.endswith(wanted[1:])):
                return True
        return False


def fetch(url: str, *, name: str, limit: int, limits: MediaLimits, policy: RemotePolicy | None) -> bytes:
    """Body of an http(s) URL.

    Args:
        url: where to fetch from.
        name: the asset's name in errors.
        limit: most bytes of the body.
        limits: time and redirects.
        policy: allowed hosts; None refuses every URL.

    Raises:
        MediaError: not allowed, not reachable, not answered with 200, too large or too slow.
    """
    deadline = time.monotonic() + limits.fetch_seconds
    for _ in range(limits.redirects + 1):
        target = _check(url, name, policy)
        status, location, body = _get(target, name, limit, deadline, policy)
        if status == 200:
            return body
        if status not in (301, 302, 303, 307, 308) or not location:
            refuse(name, f"{target.hostname} answered with status {status} instead of 200", limit=200, seen=status)
        try:
            url = urljoin(url, location)
        except ValueError:
            refuse(name, f"{target.hostname} redirects to something that is not a URL")
    refuse(name, f"more than {limits.redirects} redirects", limit=limits.redirects)


def is_public(address: str) -> bool:
    """Whether an IP address is on the public internet, also when an IPv4 address is wrapped in an IPv6 one."""
    ip = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def _check(url: str, name: str, policy: RemotePolicy | None) -> SplitResult:
    if policy is None or not policy.hosts:
        refuse(name, "remote URLs are refused here; send the bytes as a base64 data URL")
    try:
        target = urlsplit(url)
        port = target.port
    except ValueError as error:
        refuse(name, f"is not a valid URL: {error}")
    if target.scheme not in _PORTS or not target.hostname:
        refuse(name, f"only http and https URLs can be fetched, not {target.scheme or 'a relative one'}")
    if target.username is not None or target.password is not None:
        refuse(name, "a URL with a user name or password is refused")
    host = target.hostname.rstrip(".")
    if not policy.allows(host, port or _PORTS[target.scheme], target.scheme):
        refuse(name, f"the host {host} is not on the list of allowed media hosts", seen=host)
    return target


def _addresses(host: str, port: int, name: str, policy: RemotePolicy | None) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        refuse(name, f"the host {host} cannot be resolved", seen=host)
    addresses = [str(entry[4][0]) for entry in found]
    private = [address for address in addresses if not is_public(address)]
    if private and not (policy and policy.allow_private):
        refuse(name, f"the host {host} resolves to an address that is not public", seen=host)
    return addresses


def _get(
    target: SplitResult, name: str, limit: int, deadline: float, policy: RemotePolicy | None
) -> tuple[int, str | None, bytes]:
    """One request without following redirects: status, location, body (of status 200 only)."""
    host = str(target.hostname).rstrip(".")
    port = target.port or _PORTS[target.scheme]
    connection = _connect(host, port, target.scheme, _addresses(host, port, name, policy), name, deadline)
    # A peer can send a byte now and then and never break a socket timeout; the timer ends the whole request.
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), _shut, [connection.sock])
    timer.daemon = True
    timer.start()
    try:
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        connection.request("GET", path, headers={"Accept": "image/*, video/*", "Accept-Encoding": "identity"})
        with connection.getresponse() as response:
            if response.status != 200:
                return response.status, response.getheader("Location"), b""
            body = _read(response, name, limit)
        if time.monotonic() >= deadline:  # cut off by the timer, which looks like a body's end
            raise TimeoutError
        return 200, None, body
    except MediaError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() >= deadline:
            refuse(name, f"{host} took longer than the time limit of a fetch")
        refuse(name, f"{host} did not answer as expected: {type(error).__name__}")
    finally:
        timer.cancel()
        connection.close()


def _read(response: http.client.HTTPResponse, name: str, limit: int) -> bytes:
    declared = response.getheader("Content-Length")
    expected = int(declared) if declared is not None else None
    if expected is not None and expected > limit:
        refuse(name, f"{expected} bytes are more than the limit of {limit}", limit=limit, seen=expected)
    body = bytearray()
    while chunk := response.read(_CHUNK):
        body += chunk
        if len(body) > limit:
            refuse(name, f"more than the limit of {limit} bytes", limit=limit, seen=len(body))
    if expected is not None and len(body) < expected:
        raise http.client.IncompleteRead(b"", expected - len(body))
    return bytes(body)


def _connect(
    host: str, port: int, scheme: str, addresses: list[str], name: str, deadline: float
) -> http.client.HTTPConnection:
    """A connection to the first checked address that answers; the name is used for the Host header and TLS only."""
    problem: Exception | None = None
    for address in addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            sock = socket.create_connection((address, port), timeout=left)
            if scheme == "https":
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        except OSError as error:
            problem = error
            continue
        connection = http.client.HTTPConnection(host, port, timeout=left)
        connection.sock = sock
        connection.auto_open = 0  # a second connection would look the name up again
        return connection
    refuse(name, f"{host} cannot be reached: {type(problem).__name__ if problem else 'out of time'}")


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # already closed by the request itself
