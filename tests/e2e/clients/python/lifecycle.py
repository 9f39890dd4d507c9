"""Control routes: create, info, list, connect, timeouts, kill; and what is refused."""

import asyncio
import datetime
import os
import threading
import time
import uuid

import httpx
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from scenarios import SDK, raises, scenario, until


def _listed(query: SandboxQuery, **options) -> list[str]:
    pages = Sandbox.list(query=query, **options)
    found = []
    while pages.has_next:
        found += [info.sandbox_id for info in pages.next_items()]
    return found


@scenario
def info_tells_what_was_asked_for():
    metadata = {"purpose": "e2e", "odd key & more": "a=b&c d%/ü"}
    before = datetime.datetime.now(datetime.UTC)
    with Sandbox.create(timeout=120, metadata=metadata, envs={"COLOUR": "red"}) as sandbox:
        info = sandbox.get_info()
        assert info.sandbox_id == sandbox.sandbox_id
        assert info.metadata == metadata
        assert info.state == SandboxState.RUNNING
        assert abs((info.end_at - info.started_at).total_seconds() - 120) < 2
        assert abs((info.started_at - before).total_seconds()) < 30
        assert info.cpu_count >= 1
        assert info.memory_mb >= 128
        assert sandbox.commands.run("echo $COLOUR").stdout == "red\n"
        assert sandbox.commands.run("echo $COLOUR", envs={"COLOUR": "blue"}).stdout == "blue\n"
        assert sandbox.is_running() is True


@scenario
def metadata_filters_and_pages_are_stable():
    mark = uuid.uuid4().hex
    boxes = [
        Sandbox.create(timeout=120, metadata={"mark": mark, "odd key": f"v&={n}"}) for n in range(3)
    ]
    try:
        ids = [sandbox.sandbox_id for sandbox in boxes]
        assert _listed(SandboxQuery(metadata={"mark": mark})) == ids[::-1]
        assert _listed(SandboxQuery(metadata={"mark": mark}), limit=1) == ids[::-1]
        assert _listed(SandboxQuery(metadata={"mark": mark, "odd key": "v&=1"})) == [ids[1]]
        assert _listed(SandboxQuery(metadata={"mark": mark}), order="asc") == ids
        assert _listed(SandboxQuery(metadata={"mark": "other"})) == []
        paused = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])
        assert _listed(paused) == []
    finally:
        for sandbox in boxes:
            sandbox.kill()
    assert _listed(SandboxQuery(metadata={"mark": mark})) == []


@scenario
def connect_extends_and_never_shortens():
    sandbox = Sandbox.create(timeout=60)
    try:
        sandbox.files.write("kept", "x")
        again = Sandbox.connect(sandbox.sandbox_id, timeout=600)
        assert again.files.read("kept") == "x"
        assert (again.get_info().end_at - again.get_info().started_at).total_seconds() > 500
        Sandbox.connect(sandbox.sandbox_id, timeout=10)
        assert (again.get_info().end_at - again.get_info().started_at).total_seconds() > 500
    finally:
        sandbox.kill()
    raises(NotFoundException, lambda: Sandbox.connect(sandbox.sandbox_id))


@scenario
def set_timeout_shortens_and_expiry_kills():
    sandbox = Sandbox.create(timeout=600)
    sandbox.set_timeout(2)
    started = time.monotonic()
    until(lambda: not sandbox.is_running(), timeout=10)
    assert 1 < time.monotonic() - started < 5
    raises(NotFoundException, sandbox.get_info)
    raises(SandboxException, lambda: sandbox.commands.run("true"))
    assert sandbox.kill() is False


@scenario
def a_timeout_of_zero_is_now():
    sandbox = Sandbox.create(timeout=600)
    sandbox.set_timeout(0)
    until(lambda: not sandbox.is_running(), timeout=5)


@scenario
def kill_says_whether_there_was_something_to_kill():
    sandbox = Sandbox.create(timeout=60)
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert Sandbox.kill(sandbox.sandbox_id) is False
    assert sandbox.is_running() is False
    raises(NotFoundException, lambda: sandbox.set_timeout(60))
    raises((TimeoutException, SandboxException), lambda: sandbox.files.read("x"))


@scenario
def a_kill_aborts_the_streams_of_the_sandbox():
    sandbox = Sandbox.create(timeout=60)
    handle = sandbox.commands.run("sleep 60", background=True)
    threading.Timer(0.5, sandbox.kill).start()
    started = time.monotonic()
    error = raises(SandboxException, handle.wait)
    assert time.monotonic() - started < 10
    if SDK >= (2, 63):  # older ones only say that the connection broke
        assert "kill" in str(error).lower() or "not found" in str(error).lower(), error


@scenario
def unknown_things_are_not_found():
    raises(SandboxException, lambda: Sandbox.create("no-such-template"))
    raises(NotFoundException, lambda: Sandbox.connect("i" + "0" * 19))
    assert Sandbox.kill("i" + "0" * 19) is False
    raises(NotFoundException, lambda: Sandbox.set_timeout("i" + "0" * 19, 60))


@scenario
def a_wrong_key_is_refused():
    raises(AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
    raises(AuthenticationException, lambda: Sandbox.list(api_key="e2b_" + "0" * 40).next_items())


@scenario
def the_same_idempotency_key_is_the_same_sandbox():
    if SDK < (2, 63):
        return
    key = str(uuid.uuid4())
    first = Sandbox.create(timeout=120, idempotency_key=key)
    try:
        second = Sandbox.create(timeout=120, idempotency_key=key)
        assert first.sandbox_id == second.sandbox_id
        error = raises(
            SandboxException,
            lambda: Sandbox.create(timeout=121, metadata={"a": "b"}, idempotency_key=key),
        )
        assert "idempotency" in str(error).lower()
    finally:
        first.kill()


@scenario
def metrics_are_there_at_once():
    with Sandbox.create(timeout=60) as sandbox:
        samples = sandbox.get_metrics()
        assert len(samples) >= 1
        first = samples[0]
        assert first.cpu_count >= 1
        assert 0 < first.mem_used <= first.mem_total
        assert 0 <= first.disk_used < first.disk_total
        assert 0 <= first.cpu_used_pct <= 100.5


@scenario
def access_tokens_are_needed_and_do_not_open_others():
    first, second = Sandbox.create(timeout=60), Sandbox.create(timeout=60)
    url = os.environ["E2B_SANDBOX_URL"]

    def list_processes(sandbox_id: str, token: str) -> int:
        headers = {
            "E2b-Sandbox-Id": sandbox_id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": token,
            "Content-Type": "application/json",
        }
        return httpx.post(url + "/process.Process/List", headers=headers, content="{}").status_code

    try:
        token = first._envd_access_token
        other = second._envd_access_token
        assert token
        assert other
        assert token != other
        assert list_processes(first.sandbox_id, token) == 200
        assert list_processes(first.sandbox_id, other) == 401
        assert list_processes(first.sandbox_id, "") == 401
    finally:
        first.kill()
        second.kill()


@scenario
async def many_creates_at_once():
    found = await asyncio.gather(
        *(AsyncSandbox.create(timeout=120) for _ in range(8)), return_exceptions=True
    )
    boxes = [one for one in found if isinstance(one, AsyncSandbox)]
    try:
        assert len(boxes) == 8, found
        said = await asyncio.gather(
            *(one.commands.run("echo $E2B_SANDBOX_ID", timeout=60) for one in boxes)
        )
        assert [one.stdout.strip() for one in said] == [one.sandbox_id for one in boxes]
    finally:
        killed = await asyncio.gather(*(one.kill() for one in boxes))
        assert all(killed)
