"""What programs in a sandbox are told of restores, by an agent that the test plays."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import ssl
import struct
import sys
import tempfile
import types
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.guest import Restore, restores
from aenv.guest.reseeding import reseed
from aenv.guest.restores import _Listener

FORK = {"mode": "fork", "sandboxId": "child", "lifeId": "life", "away": 2.5}


class Agent:
    """The agent's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path))
        self.server.listen()
        self.server.settimeout(10)

    def accept(self) -> socket.socket:
        connection, _ = self.server.accept()
        connection.settimeout(10)
        return connection

    def accept_from(self, pid: int) -> socket.socket:
        """The connection of one process; listeners of earlier tests may come back here, too."""
        while True:
            connection = self.accept()
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", credentials)[0] == pid:
                return connection


def tell(connection: socket.socket, line: object = FORK) -> str:
    """What the process answers."""
    connection.sendall(json.dumps(line).encode() + b"\n")
    with connection.makefile() as answers:
        return answers.readline()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s")
        monkeypatch.setattr(restores, "SOCKET", str(path))
        agent = Agent(path)
        yield agent
        agent.server.close()


@pytest.fixture
def listener(agent: Agent) -> _Listener:
    listener = _Listener()
    listener.start()
    listener.start()
    return listener


def test_callbacks_run_in_order_and_are_told_everything(agent: Agent, listener: _Listener) -> None:
    told: list[object] = []
    listener.callbacks += [told.append, lambda restore: told.append(restore.mode)]
    connection = agent.accept()

    assert tell(connection) == "done\n"
    assert told == [Restore("fork", "child", "life", 2.5), "fork"]
    assert tell(connection, {**FORK, "mode": "resume", "more": 1}) == "done\n"
    assert told[3] == "resume"


def test_one_that_raises_is_named_and_the_others_run(agent: Agent, listener: _Listener) -> None:
    told: list[object] = []

    def broken(restore: Restore) -> None:
        raise ValueError("two\nlines")

    listener.callbacks += [broken, told.append]

    answer = tell(agent.accept())
    assert answer.endswith("broken: ValueError('two\\nlines')\n")
    assert len(told) == 1


def test_nonsense_is_answered_and_changes_nothing(agent: Agent, listener: _Listener) -> None:
    connection, told = agent.accept(), []
    listener.callbacks.append(told.append)

    for nonsense in (7, [], {}, {**FORK, "away": "long"}):
        assert tell(connection, nonsense).startswith("not understood: ")
    assert told == []


def test_a_fork_reseeds_and_a_resume_does_not(agent: Agent, listener: _Listener) -> None:
    connection = agent.accept()
    random.seed(1)
    seeded = random.getstate()

    tell(connection, {**FORK, "mode": "resume"})
    assert random.getstate() == seeded
    tell(connection)
    assert random.getstate() != seeded


def test_who_was_let_go_comes_back(
    agent: Agent, listener: _Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restores, "_RECONNECT", 0.01)
    agent.accept().close()
    assert tell(agent.accept()) == "done\n"


def test_a_forked_process_registers_itself(agent: Agent, listener: _Listener) -> None:
    parent = agent.accept()
    ours, childs = multiprocessing.Pipe()

    if not (pid := os.fork()):
        listener.callbacks.append(lambda restore: childs.send(os.getpid()))
        listener.start_again()
        childs.poll(10)
        os._exit(0)

    try:
        assert tell(agent.accept_from(pid)) == "done\n"
        assert ours.poll(10)
        assert ours.recv() == pid
        assert tell(parent) == "done\n"
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_outside_of_a_sandbox_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restores, "SOCKET", "/nowhere/restore.sock")
    listener = _Listener()

    listener.start()

    assert listener._connection is None


def test_everything_that_is_loaded_is_reseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_random = types.ModuleType("numpy.random")
    seeded: list[str] = []
    monkeypatch.setattr(numpy_random, "seed", lambda: seeded.append("numpy"), raising=False)
    monkeypatch.setitem(sys.modules, "numpy.random", numpy_random)
    monkeypatch.setattr(ssl, "RAND_add", lambda data, entropy: seeded.append(f"ssl {len(data)}"))
    names, node = tempfile._get_candidate_names(), uuid.getnode()

    assert reseed() == []

    assert seeded == ["numpy", "ssl 64"]
    assert tempfile._get_candidate_names() is not names
    assert uuid._node is None
    assert uuid.getnode() == node, "asked again, the machine is the same one"


def test_what_cannot_be_reseeded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy.random", types.ModuleType("half-loaded"))
    (failure,) = reseed()
    assert failure.startswith("cannot reseed numpy.random: AttributeError")
