"""The supervisor: what it runs, what it remembers, and what it survives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.fakes.waiting import until, until_equal

from aenv.models.errors import EngineError, HostSetupError
from aenv.node.supervisor.client import Ending, SupervisorClient, SupervisorLostError

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aenv-s-", ignore_cleanup_errors=True) as name:
        yield Path(name, "run")


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[SupervisorClient]:
    client = SupervisorClient(folder)
    await client.start()
    yield client
    for record in await client.records():
        if record.ending is None:
            await client.signal(record.key, signal.SIGKILL)
            await client.wait(record.key)
    await client.retire()
    await client.close()
    await until(lambda: not (folder / "supervisor.sock").exists())


async def spawn(client: SupervisorClient, folder: Path, script: str, key: str = "k") -> int:
    console = folder / f"console-{key}"
    record = await client.spawn(key, ["sh", "-c", script], env=ENV, console=console)
    return record.pid


async def test_a_run_returns_code_and_outputs(client: SupervisorClient) -> None:
    result = await client.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=5)

    assert (result.code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert not result.ok
    assert not result.timed_out


async def test_bytes_that_are_no_text_pass_unharmed(client: SupervisorClient) -> None:
    result = await client.run(["printf", r"\000\377\303"], timeout=5)

    assert result.stdout == b"\x00\xff\xc3"


async def test_a_program_that_is_not_there_is_an_error(client: SupervisorClient) -> None:
    with pytest.raises(EngineError, match="/no/such"):
        await client.run(["/no/such"], timeout=5)


async def test_a_run_beyond_its_timeout_is_killed_with_its_group(client: SupervisorClient) -> None:
    result = await client.run(["sh", "-c", "sleep 300 & echo $!; wait"], timeout=0.2)

    assert result.timed_out
    assert result.signal == signal.SIGKILL
    await until(lambda: not psutil.pid_exists(int(result.stdout)))


async def test_only_the_end_of_long_output_is_kept(client: SupervisorClient) -> None:
    script = "head -c 5000000 /dev/zero; echo end"
    result = await client.run(["sh", "-c", script], timeout=10, capture=1000)

    assert result.truncated
    assert len(result.stdout) == 1000
    assert result.stdout.endswith(b"end\n")


async def test_a_run_ends_although_what_it_started_holds_its_pipes(
    client: SupervisorClient,
) -> None:
    result = await client.run(["sh", "-c", "sleep 300 & echo $!"], timeout=5)

    os.kill(int(result.stdout), signal.SIGKILL)
    assert result.ok


async def test_many_runs_at_once_keep_their_answers_apart(client: SupervisorClient) -> None:
    runs = [client.run(["sh", "-c", f"echo {n}; exit {n}"], timeout=10) for n in range(40)]

    results = await asyncio.gather(*runs)

    assert [(r.code, r.stdout) for r in results] == [(n, b"%d\n" % n) for n in range(40)]


async def test_the_end_of_a_spawned_process_is_told_with_its_last_words(
    client: SupervisorClient, folder: Path
) -> None:
    await spawn(client, folder, "echo last words; exit 9")

    assert await client.wait("k") == Ending(code=9)
    assert await client.wait("k") == Ending(code=9)
    assert await client.output("k") == b"last words\n"


async def test_a_signal_is_sent_to_a_running_process_only(
    client: SupervisorClient, folder: Path
) -> None:
    await spawn(client, folder, "exec sleep 300")

    assert await client.signal("k", signal.SIGTERM)
    assert await client.wait("k") == Ending(signal=signal.SIGTERM)
    assert not await client.signal("k", signal.SIGTERM)
    assert not await client.signal("unknown", signal.SIGTERM)


async def test_a_key_is_free_again_once_its_process_ended(
    client: SupervisorClient, folder: Path
) -> None:
    await spawn(client, folder, "exec sleep 300")
    with pytest.raises(EngineError, match="taken"):
        await spawn(client, folder, "true")
    with pytest.raises(EngineError, match="still runs"):
        await client.forget("k")
    await client.signal("k", signal.SIGKILL)
    await client.wait("k")

    await client.forget("k")

    assert await client.status("k") is None
    assert not (folder / "console-k").exists()
    await spawn(client, folder, "exit 4")
    assert await client.wait("k") == Ending(code=4)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a child subreaper")
async def test_the_status_of_a_daemon_that_a_run_left_behind_is_known(
    client: SupervisorClient,
) -> None:
    result = await client.run(["sh", "-c", "setsid sleep 300 >/dev/null & echo $!"], timeout=5)

    record = await client.watch("orphan", int(result.stdout))
    assert record.ending is None
    await client.signal("orphan", signal.SIGUSR1)

    assert await client.wait("orphan") == Ending(signal=signal.SIGUSR1)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a child subreaper")
async def test_the_status_of_a_daemon_that_died_before_it_was_watched_is_known(
    client: SupervisorClient,
) -> None:
    script = "setsid sh -c 'exit 6' >/dev/null & echo $!"
    result = await client.run(["sh", "-c", script], timeout=5)
    pid = int(result.stdout)
    await until(lambda: not psutil.pid_exists(pid))

    assert (await client.watch("orphan", pid)).ending == Ending(code=6)


async def test_exits_while_no_client_was_there_are_known_to_the_next(
    client: SupervisorClient, folder: Path
) -> None:
    pid = await spawn(client, folder, "exec sleep 300")
    await client.close()
    os.kill(pid, signal.SIGTERM)

    next_client = SupervisorClient(folder)
    await next_client.start()
    assert await next_client.wait("k") == Ending(signal=signal.SIGTERM)
    await next_client.close()
    await client.start()


async def test_a_killed_supervisor_is_replaced_and_its_processes_go_on(
    client: SupervisorClient, folder: Path
) -> None:
    pid = await spawn(client, folder, "trap '' HUP; while :; do echo tick; sleep 0.05; done")
    waiting = asyncio.create_task(client.wait("k"))
    first = client.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: client.pid != first)

    record = await client.status("k")
    assert record is not None
    assert (record.pid, record.ending) == (pid, None)

    async def has_read_on() -> bool:
        return b"tick" in await client.output("k")

    await until_equal(has_read_on, True)
    os.kill(pid, signal.SIGKILL)

    assert await waiting == Ending(), "not its child: the status cannot be known, and that is said"


async def test_a_request_that_the_supervisor_took_to_its_grave_fails(
    client: SupervisorClient,
) -> None:
    run = asyncio.create_task(client.run(["sleep", "300"], timeout=400))
    await client.run(["true"], timeout=5)  # answered after the first one has begun
    assert client.pid is not None
    [sleeper] = psutil.Process(client.pid).children()

    os.kill(client.pid, signal.SIGKILL)

    with pytest.raises(SupervisorLostError):
        await run
    sleeper.kill()


async def test_a_reboot_in_between_ends_every_record(folder: Path) -> None:
    await asyncio.to_thread(folder.mkdir)
    lines = [
        {"boot": "another boot"},
        {"key": "old", "pid": os.getpid(), "start": 1, "console": None, "ending": None},
    ]
    torn = '{"key": "torn", "pi'
    (folder / "supervisor.journal").write_text("\n".join([*map(json.dumps, lines), torn]))
    client = SupervisorClient(folder, idle=1)
    await client.start()

    record = await client.status("old")

    assert record is not None
    assert record.ending == Ending()
    assert await client.status("torn") is None
    await client.shutdown()


async def test_the_journal_stays_short(client: SupervisorClient, folder: Path) -> None:
    result = await client.run(["sh", "-c", "setsid true & echo $!"], timeout=5)
    await until(lambda: not psutil.pid_exists(int(result.stdout)))
    for _ in range(1100):
        await client.watch("again", int(result.stdout))
        await client.forget("again")
    await spawn(client, folder, "exit 3")
    await client.wait("k")

    lines = (await asyncio.to_thread((folder / "supervisor.journal").read_text)).splitlines()
    assert len(lines) < 2000
    assert "boot" in json.loads(lines[0])
    assert json.loads(lines[-1])["ending"] == {"code": 3, "signal": None}


async def test_two_clients_share_one_supervisor(client: SupervisorClient, folder: Path) -> None:
    other = SupervisorClient(folder)
    await asyncio.gather(other.start())

    assert other.pid == client.pid
    await spawn(other, folder, "exit 1")
    assert await client.wait("k") == Ending(code=1)
    await other.close()


async def test_clients_that_start_at_once_start_one_supervisor(folder: Path) -> None:
    clients = [SupervisorClient(folder, idle=1) for _ in range(6)]

    await asyncio.gather(*(client.start() for client in clients))

    assert len({client.pid for client in clients}) == 1
    for client in clients:
        await client.close()
    await until(lambda: not (folder / "supervisor.sock").exists())


async def test_it_ends_by_itself_when_idle_but_not_while_something_runs(folder: Path) -> None:
    client = SupervisorClient(folder, idle=0.2)
    await client.start()
    pid = await spawn(client, folder, "exec sleep 300")
    supervisor = psutil.Process(client.pid)
    await client.close()

    with pytest.raises(TimeoutError):
        await until(lambda: not supervisor.is_running(), timeout=1.5)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(supervisor.pid), timeout=15)


async def test_its_socket_and_files_are_private_and_it_is_small(
    client: SupervisorClient, folder: Path
) -> None:
    mode = stat.S_IMODE((folder / "supervisor.sock").stat().st_mode)
    assert mode & 0o077 == 0
    assert stat.S_IMODE((folder / "supervisor.journal").stat().st_mode) == 0o600
    assert psutil.Process(client.pid).memory_info().rss < 14 << 20


async def test_secrets_of_the_servers_environment_do_not_reach_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AENV_API_KEY", "e2b_secret")
    client = SupervisorClient(folder, idle=1)
    await client.start()

    assert "AENV_API_KEY" not in psutil.Process(client.pid).environ()
    assert b"e2b_secret" not in (await client.run(["env"], timeout=5)).stdout
    await client.shutdown()


@pytest.mark.parametrize(
    "line", [b"not json\n", b"[]\n", b'{"id": 1}\n', b'{"id": 1, "op": "run"}\n', b"x" * (2 << 20)]
)
async def test_a_hostile_client_harms_nobody_else(
    client: SupervisorClient, folder: Path, line: bytes
) -> None:
    _, writer = await asyncio.open_unix_connection(str(folder / "supervisor.sock"))
    writer.write(line)
    with suppress(ConnectionError):  # it may hang up on us
        await writer.drain()
    writer.close()

    assert (await client.run(["true"], timeout=5)).ok


async def test_a_console_that_is_flooded_costs_little_and_blocks_only_its_writer(
    client: SupervisorClient, folder: Path
) -> None:
    await spawn(client, folder, "exec cat /dev/zero")
    supervisor = psutil.Process(client.pid)
    before = sum(supervisor.cpu_times()[:2])

    await asyncio.sleep(1)

    assert sum(supervisor.cpu_times()[:2]) - before < 0.5
    assert (await client.run(["true"], timeout=5)).ok
    assert supervisor.memory_info().rss < 20 << 20


async def test_a_run_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    client = SupervisorClient(tmp_path / "file" / "run")

    with pytest.raises(HostSetupError, match="Not a directory"):
        await client.start()
    await client.close()


async def test_it_lives_in_a_session_of_its_own(client: SupervisorClient) -> None:
    assert client.pid is not None
    assert os.getsid(client.pid) != os.getsid(0)
    assert psutil.Process(client.pid).ppid() != os.getpid()
