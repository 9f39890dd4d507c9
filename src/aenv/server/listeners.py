"""The sockets a server listens on; bound before anything else, so a taken port costs nothing. And
how many connections it can hold.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import socket

from aenv.models.errors import HostSetupError

_MANY_FILES = 1 << 16
_OWN_FILES = 128
_FEWEST = 32


def connection_limit() -> int:
    """Raise our limit of open files as far as we may; the connections that it allows.

    One to a guest takes two files, and what is left keeps the catalog, the supervisor and the
    agents reachable however many clients come.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    files = _MANY_FILES if soft == resource.RLIM_INFINITY else soft
    return max(_FEWEST, (files - _OWN_FILES) // 2)


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes a free one. HostSetupError says what is in the way."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise HostSetupError(f"cannot listen on host {host!r}: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.set_inheritable(False)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise HostSetupError(_reason(host, port, error)) from error
    return sock


def url_of(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on ``host``."""
    if host in ("", "0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; stop what listens there or choose another --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs root; choose a --port above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror}"
