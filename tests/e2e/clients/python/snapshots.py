"""Pause, resume, snapshots and forks; a counter shows whether memory survived."""

import concurrent.futures
import http.client
import os
import time
import uuid
from urllib.parse import urlsplit

import httpx
from e2b import Sandbox, SandboxException, SandboxQuery, SandboxState
from scenarios import SDK, raises, scenario, until

NEW = SDK >= (2, 63)
FILESYSTEM = {"mode": "filesystem"} if NEW else {"keep_memory": False}
COUNTER = (
    "i=0; while true; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; "
    "sleep 0.05; done"
)


def _count(sandbox: Sandbox) -> int:
    return int(sandbox.files.read("/tmp/count"))


def _counting(**options) -> tuple[Sandbox, int]:
    """A sandbox with a counter in the memory of a process, and the process."""
    sandbox = Sandbox.create(timeout=options.pop("timeout", 120), **options)
    handle = sandbox.commands.run(COUNTER, background=True, timeout=0)
    until(lambda: sandbox.files.exists("/tmp/count") and _count(sandbox) > 3)
    return sandbox, handle.pid


def _pids(sandbox: Sandbox) -> list[int]:
    return [process.pid for process in sandbox.commands.list()]


def _boot_id(sandbox: Sandbox) -> str:
    return sandbox.commands.run("cat /proc/sys/kernel/random/boot_id").stdout


def _goes_on(sandbox: Sandbox, before: int) -> None:
    """The counter counts on from where it was."""
    seen = _count(sandbox)
    assert seen >= before
    until(lambda: _count(sandbox) > seen)


def _pause(sandbox: Sandbox) -> bool:
    return sandbox.pause()


def _state(sandbox_id: str) -> SandboxState:
    return Sandbox.get_info(sandbox_id).state


@scenario
def a_pause_keeps_processes_and_connect_resumes_them():
    sandbox, pid = _counting()
    try:
        boot = _boot_id(sandbox)
        before = _count(sandbox)
        assert _pause(sandbox) is not False
        assert _state(sandbox.sandbox_id) == SandboxState.PAUSED
        assert _pause(sandbox) in (False, None)
        assert sandbox.is_running() is False
        found = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
        assert sandbox.sandbox_id in [info.sandbox_id for info in found]

        again = Sandbox.connect(sandbox.sandbox_id, timeout=120)

        assert _state(sandbox.sandbox_id) == SandboxState.RUNNING
        assert pid in _pids(again)
        _goes_on(again, before)
        assert _boot_id(again) == boot
        assert sandbox.is_running() is True
    finally:
        sandbox.kill()


@scenario
def ten_pauses_with_changes_in_between_lose_nothing():
    sandbox, pid = _counting(timeout=300)
    try:
        for number in range(10):
            before = _count(sandbox)
            sandbox.files.write(f"/home/user/f{number}", f"{number}" * 1000)
            _pause(sandbox)
            sandbox.connect(timeout=300)
            _goes_on(sandbox, before)
        for number in range(10):
            assert sandbox.files.read(f"/home/user/f{number}") == f"{number}" * 1000
        assert pid in _pids(sandbox)
    finally:
        sandbox.kill()


@scenario
def a_paused_sandbox_can_be_killed():
    sandbox = Sandbox.create(timeout=120)
    _pause(sandbox)
    assert Sandbox.kill(sandbox.sandbox_id) is True
    assert Sandbox.kill(sandbox.sandbox_id) is False
    raises(SandboxException, lambda: Sandbox.connect(sandbox.sandbox_id))


@scenario
def a_stream_is_cut_by_a_pause_and_its_command_goes_on():
    sandbox, pid = _counting()
    try:
        handle = sandbox.commands.run(
            "for i in $(seq 600); do echo $i; sleep 0.1; done", background=True, timeout=0
        )
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(handle.wait)
            time.sleep(0.5)
            _pause(sandbox)
            assert waiting.exception(timeout=20) is not None
        sandbox.connect(timeout=120)
        assert {pid, handle.pid} <= set(_pids(sandbox))
    finally:
        sandbox.kill()


@scenario
def without_memory_it_boots_again_with_its_files():
    sandbox, _ = _counting()
    try:
        boot = _boot_id(sandbox)
        sandbox.files.write("/home/user/kept", "yes")
        assert sandbox.pause(**FILESYSTEM) is True
        sandbox.connect(timeout=120)
        assert sandbox.files.read("/home/user/kept") == "yes"
        assert _pids(sandbox) == []
        assert _boot_id(sandbox) != boot
    finally:
        sandbox.kill()


@scenario
def it_reboots_from_its_disk_when_asked():
    if not NEW:  # older clients cannot ask for it
        return
    sandbox, _ = _counting(envs={"COLOUR": "red"})
    try:
        sandbox.files.write("/home/user/kept", "yes")
        sandbox.pause()
        sandbox.connect(timeout=120, on_resume="reboot")
        assert sandbox.files.read("/home/user/kept") == "yes"
        assert _pids(sandbox) == []
        assert sandbox.commands.run("echo $COLOUR").stdout == "red\n"
    finally:
        sandbox.kill()


@scenario
def at_its_timeout_it_pauses_and_traffic_resumes_it():
    sandbox, pid = _counting(lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        lifecycle = sandbox.get_info().lifecycle
        assert lifecycle == {"on_timeout": "pause", "auto_resume": True}
        before = _count(sandbox)
        sandbox.set_timeout(1)
        until(lambda: _state(sandbox.sandbox_id) == SandboxState.PAUSED)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            counts = list(pool.map(lambda _: _count(sandbox), range(8)))
        assert min(counts) >= before
        assert _state(sandbox.sandbox_id) == SandboxState.RUNNING
        assert pid in _pids(sandbox)
    finally:
        sandbox.kill()


@scenario
def at_its_timeout_it_pauses_and_traffic_is_refused():
    sandbox = Sandbox.create(timeout=120, lifecycle={"on_timeout": "pause"})
    try:
        sandbox.set_timeout(0)
        until(lambda: _state(sandbox.sandbox_id) == SandboxState.PAUSED)
        assert sandbox.is_running() is False
        headers = {"x-agentenv-sandbox-id": sandbox.sandbox_id, "x-agentenv-target-port": "49983"}
        assert httpx.get(os.environ["E2B_API_URL"] + "/health", headers=headers).status_code == 410
        assert _state(sandbox.sandbox_id) == SandboxState.PAUSED
        Sandbox.connect(sandbox.sandbox_id)
        assert sandbox.is_running() is True
    finally:
        sandbox.kill()


@scenario
def a_snapshot_leaves_its_source_running_and_starts_others():
    name = f"mine-{uuid.uuid4().hex[:8]}"
    sandbox, pid = _counting()
    child = None
    try:
        before = _count(sandbox)
        kept = sandbox.create_snapshot(name=name)
        assert kept.snapshot_id.endswith(f"/{name}:default")
        assert kept.names == [kept.snapshot_id]
        _goes_on(sandbox, before)
        listed = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id).next_items()
        assert [one.snapshot_id for one in listed] == [kept.snapshot_id]

        child = Sandbox.create(kept.snapshot_id, timeout=120)

        assert child.sandbox_id != sandbox.sandbox_id
        assert pid in _pids(child)
        _goes_on(child, before)
        child.files.write("/home/user/mine", "x")
        assert not sandbox.files.exists("/home/user/mine")
        again = sandbox.create_snapshot(name=name)
        assert again.snapshot_id == kept.snapshot_id
        assert Sandbox.delete_snapshot(kept.snapshot_id) is True
        assert Sandbox.delete_snapshot(kept.snapshot_id) is False
        raises(SandboxException, lambda: Sandbox.create(kept.snapshot_id))
        _goes_on(child, before)
    finally:
        sandbox.kill()
        if child is not None:
            child.kill()


@scenario
def an_unnamed_snapshot_outlives_its_source():
    sandbox, pid = _counting()
    kept = sandbox.create_snapshot()
    assert kept.names == []
    sandbox.kill()
    with Sandbox.create(kept.snapshot_id, timeout=120) as child:
        assert pid in _pids(child)
    assert Sandbox.delete_snapshot(kept.snapshot_id) is True


@scenario
def forks_go_on_from_one_moment_and_apart():
    sandbox, pid = _counting()
    forks = []
    try:
        before = _count(sandbox)
        forks = sandbox.fork(count=3, timeout=120)
        assert not [fork for fork in forks if isinstance(fork, Exception)], forks
        assert len({fork.sandbox_id for fork in [sandbox, *forks]}) == 4
        boots = {_boot_id(fork) for fork in [sandbox, *forks]}
        assert len(boots) == 4
        for number, fork in enumerate(forks):
            assert pid in _pids(fork)
            _goes_on(fork, before)
            fork.files.write("/home/user/who", str(number))
        assert [fork.files.read("/home/user/who") for fork in forks] == ["0", "1", "2"]
        assert not sandbox.files.exists("/home/user/who")
        _goes_on(sandbox, before)
    finally:
        for one in [sandbox, *forks]:
            if isinstance(one, Sandbox):
                one.kill()


@scenario
def no_request_is_lost_or_slow_while_snapshots_are_taken():
    """None waits the second that a lost SYN would cost, on kept connections and on new ones."""
    sandbox = Sandbox.create(timeout=120)
    kept = []
    server = urlsplit(os.environ["E2B_SANDBOX_URL"]).netloc
    sandbox.commands.run("python3 -m http.server 8000", background=True, timeout=0)

    def ask(port: int) -> tuple[int, float]:
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
        began = time.monotonic()
        connection = http.client.HTTPConnection(server, timeout=20)
        connection.request("GET", "/health" if port == 49983 else "/", headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status, time.monotonic() - began

    def keep_asking(port: int) -> list[tuple[int, float]]:
        found = []
        while time.monotonic() < end:
            found.append(ask(port))
            time.sleep(0.005)
        return found

    try:
        until(lambda: ask(8000)[0] == 200)
        end = time.monotonic() + 5
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(keep_asking, port) for port in (49983, 49983, 8000, 8000)]
            while time.monotonic() < end - 1.5:
                kept.append(sandbox.create_snapshot())
                time.sleep(0.3)
            outcomes = [outcome for one in asking for outcome in one.result()]
        assert len(kept) >= 2
        assert {status for status, _ in outcomes} == {200, 204}
        slowest = max(seconds for _, seconds in outcomes)
        assert slowest < 1.0, (slowest, len(outcomes), len(kept))
    finally:
        sandbox.kill()
        for one in kept:
            Sandbox.delete_snapshot(one.snapshot_id)
