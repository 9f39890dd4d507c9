"""A web server at a public-looking address: in a network namespace, behind a veth pair.

It is entered by ``nsenter``, not by ``ip netns exec``, which would give the server copies of all
mounts of the host: disks of other tests could not be let go while it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

_NETWORK = "203.0.113"  # TEST-NET-3, RFC 5737


@contextmanager
def public_web() -> Iterator[str]:
    """Its URL, from the host as from sandboxes."""
    slot = os.getpid() % 60 * 4
    host, guest = f"{_NETWORK}.{slot + 1}", f"{_NETWORK}.{slot + 2}"
    name = f"e2eweb{slot}"
    if not subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True).stdout:
        _remove(name)  # of a run that was killed
    try:
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("addr", "add", f"{host}/30", "dev", name)
        _ip("link", "set", name, "up")
        _ip("-n", name, "addr", "add", f"{guest}/30", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        enter = ["nsenter", f"--net=/run/netns/{name}"]
        server = subprocess.Popen(
            [*enter, sys.executable, "-m", "http.server", "8000"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        try:
            _wait(f"http://{guest}:8000")
            yield f"http://{guest}:8000"
        finally:
            server.kill()
            server.wait()
    finally:
        _remove(name)


def _remove(name: str) -> None:
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _wait(url: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            httpx.head(url, timeout=1)
            return
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
