"""Where the host's names come from, read again whenever ``resolv.conf`` changes."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path

RESOLV_CONF = Path("/etc/resolv.conf")
_FALLBACK = ("127.0.0.1",)  # resolv.conf(5): without a nameserver line, the local one


class Resolvers:
    """``fixed`` (setting ``egress.dns_upstreams``) replaces what the host uses."""

    def __init__(self, fixed: tuple[str, ...] = (), file: Path = RESOLV_CONF) -> None:
        self._fixed = fixed
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._servers: tuple[str, ...] = _FALLBACK

    def current(self) -> tuple[str, ...]:
        if self._fixed:
            return self._fixed
        try:
            status = os.stat(self._file)
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen != self._seen:
                self._servers = parse(self._file.read_text(errors="replace"))
                self._seen = seen
        except OSError:
            pass  # being replaced: what was known goes on
        return self._servers


def parse(text: str) -> tuple[str, ...]:
    """The ``nameserver`` lines of a resolv.conf; IPv6 may carry a scope (``fe80::1%eth0``)."""
    servers = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver" and _is_address(words[1]):
            servers.append(words[1])
    return tuple(servers) or _FALLBACK


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
