"""What running processes meet when their sandbox was copied or came back: the network, the clocks,
files, PIDs; and that a resume, unlike a fork, changes nobody's identity.
"""

from __future__ import annotations

import asyncio
import socket
import time

from tests.conformance.lineage import Guest, ask, boot, fork, keep, resume, start_program, two_forks
from tests.conformance.subjects import Subject
from tests.conformance.test_fork_safety import REGISTERED, both, forking

__all__ = ["forking"]

PORT = 8000
SERVER = f"""
import socket, threading
server, held = socket.create_server(("0.0.0.0", {PORT})), []
def serve():
    while True:
        connection, _ = server.accept()
        connection.settimeout(10)
        connection.sendall(socket.gethostname().encode())
        held.append(connection)
threading.Thread(target=serve, daemon=True).start()
def answer():
    try:
        return "received " + held[0].recv(9).decode()
    except OSError as error:
        return type(error).__name__
"""
FLOOD = """
i=0; while :; do i=$((i+1)); echo $i > /tmp/count; head -c 100000 /dev/zero; done
"""
INSIDE = """
import os, socket
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname(), 10)
far, _ = server.accept()
left, right = socket.socketpair()
reading, writing = os.pipe()
for end in (near, far, left, right): end.settimeout(10)
def over(send, receive):
    try:
        send(b"over")
        return receive(9).decode()
    except OSError as error:
        return type(error).__name__
def answer():
    return {
        "unix": over(left.sendall, right.recv),
        "pipe": over(lambda data: os.write(writing, data), lambda size: os.read(reading, size)),
        "tcp": over(near.sendall, far.recv),
    }
"""
IDENTITY = """
hostname; cat /etc/machine-id /etc/ssh/ssh_host_rsa_key /proc/sys/kernel/random/boot_id
"""


async def test_the_network_address_is_the_childs_own(forking: Subject) -> None:
    guest = await boot(forking)

    one, two = await two_forks(forking, guest)

    for child in (one, two):
        address = child.machine.address(PORT).host
        assert address in await child.run("cat /proc/net/fib_trie || hostname -I")
        assert f"{address} {child.id}" in await child.run("cat /etc/hosts")
    assert one.machine.address(PORT) != two.machine.address(PORT)


async def test_open_connections_end_and_listeners_go_on_in_each_child(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(guest, SERVER)
    connection = await _connect(guest)
    assert await _said(connection) == guest.id

    one, two = await two_forks(forking, guest)

    for child in (one, two):
        assert await ask(child) in ("received ", "ConnectionResetError"), "it is told, not hung"
        with await _connect(child) as anew:
            assert await _said(anew) == child.id
    connection.close()


async def test_a_process_that_waits_for_its_client_goes_on_without_it(forking: Subject) -> None:
    guest = await boot(forking)
    count = "cat /tmp/count 2>/dev/null || true"
    async with guest.attached(FLOOD, tag="flood", limit=600):
        await guest.eventually(count)
        stopped = await _standing(guest, count)
        kept = await keep(forking, guest)
        child = await fork(forking, kept)

        await child.eventually(f"test $(cat /tmp/count) -gt {stopped + 10} && echo more || true")
        await guest.machine.thaw()
        assert int(await guest.run(count)) == stopped, "the source's client is still there"


async def test_connections_inside_the_sandbox(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(guest, INSIDE)

    one, two = await two_forks(forking, guest)

    for child in (one, two):
        assert await ask(child) == {"unix": "over", "pipe": "over", "tcp": "over"}


async def test_both_clocks_jump_by_the_time_away_and_due_timers_fire(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(
        guest,
        "import threading, time; fired = []\n"
        "threading.Timer(1, lambda: fired.append(time.monotonic())).start()\n"
        "begun = time.time(), time.monotonic()\n"
        "def answer():\n"
        "    now = time.time(), time.monotonic()\n"
        "    while not fired: time.sleep(0.01)\n"
        "    return [*now, now[0] - begun[0], now[1] - begun[1], time.monotonic() - now[1]]\n",
    )
    kept = await keep(forking, guest)
    await asyncio.sleep(max(0, kept.taken + 2 - time.time()))  # the subject is time itself

    before = time.time()
    child = await fork(forking, kept)
    wall, _, wall_passed, monotonic_passed, timer = await ask(child)

    assert before - 0.1 < wall < time.time() + 0.1
    assert abs(wall_passed - monotonic_passed) < 0.1
    assert monotonic_passed > 2
    assert timer < 0.5, "it had fired, or did at once"


async def test_a_commands_time_limit_does_not_run_while_the_sandbox_is_away(
    forking: Subject,
) -> None:
    guest = await boot(forking)
    pid = await guest.start("sleep 1000", tag="limited", limit=5)
    kept = await keep(forking, guest)
    await asyncio.sleep(max(0, kept.taken + 6 - time.time()))  # the subject is time itself

    child = await fork(forking, kept)

    (running,) = (await child.call("List", {}))["processes"]
    assert (running["pid"], running["tag"]) == (pid, "limited"), "pids and tags stay"
    ended = f"kill -0 {pid} 2>/dev/null || echo ended"
    assert await child.eventually(ended) == "ended", "but the limit holds"


async def test_files_are_copies_from_the_fork_on(forking: Subject) -> None:
    guest = await boot(forking)
    await guest.write("/tmp/file", "both")
    await start_program(
        guest,
        "import os, socket, tempfile\n"
        "unlinked = tempfile.TemporaryFile('w+'); unlinked.write('both '); unlinked.flush()\n"
        "opened = open('/tmp/opened', 'w+'); opened.write('both '); opened.flush()\n"
        "def answer():\n"
        "    for file in (unlinked, opened): file.write(socket.gethostname()); file.seek(0)\n"
        "    return [unlinked.read(), opened.read()]\n",
    )

    one, two = await two_forks(forking, guest)

    await one.run("echo one >> /tmp/file")
    assert await both(one, two, "cat /tmp/file") == ("both\none", "both")
    for child in (one, two):
        assert await ask(child) == [f"both {child.id}"] * 2


async def test_pids_stay_and_new_ones_are_new(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(guest, "import os\ndef answer(): return [os.getpid(), os.getppid()]")
    pid = int(await guest.run("pgrep -f program.py | head -n 1"))

    one, two = await two_forks(forking, guest)

    assert await ask(one) == await ask(two) == [pid, 1]
    assert min(map(int, await both(one, two, "echo $$"))) > pid


async def test_time_based_ids_differ_by_their_time_and_name_the_same_machine(
    forking: Subject,
) -> None:
    guest = await boot(forking)
    await start_program(
        guest,
        "import uuid; uuid.uuid1()\n"
        "def answer(): made = uuid.uuid1(); return [str(made), made.node, made.clock_seq]",
    )

    one, two = await two_forks(forking, guest)

    first, second = await asyncio.gather(ask(one), ask(two))
    assert first[0] != second[0]
    assert first[1:] == second[1:], "a process keeps its node id and clock sequence in memory"


async def test_a_resume_is_the_same_sandbox(forking: Subject) -> None:
    guest = await boot(forking, env_vars={"KEY": "s3cret"}, secret_env=("KEY",))
    await guest.write("/etc/ssh/ssh_host_rsa_key", "its own")
    await guest.write("/etc/aenv/restore.d/note", "#!/bin/sh\necho $AENV_RESTORE >/note", "755")
    await start_program(
        guest,
        REGISTERED + "import os, random; before = random.getstate(), os.getpid(); modes = []\n"
        "aenv.on_restore(lambda restore: modes.append(restore.mode))\n"
        "def answer(): return [before == (random.getstate(), os.getpid()), modes]",
    )
    await guest.agent.run("echo said before", user="root", timeout=10)
    identity = await guest.run(IDENTITY)

    again = await resume(forking, await keep(forking, guest), guest)

    assert await again.run(IDENTITY) == identity
    assert await again.envs() == {"KEY": "s3cret"}, "with the token it had"
    assert await again.run("cat /note") == "resume"
    assert await ask(again) == [True, ["resume"]], "nobody is reseeded"
    lines = (await again.agent.logs(after=0, limit=10, wait=0)).lines
    assert [line.message for line in lines] == ["said before"]


async def test_a_copy_that_boots_from_the_disk_has_an_identity_of_its_own(forking: Subject) -> None:
    guest = await boot(forking)
    await guest.write("/etc/ssh/ssh_host_rsa_key", "shared")
    await guest.write("/etc/aenv/restore.d/note", "#!/bin/sh\necho $AENV_RESTORE >/note", "755")
    identity = (await guest.run(IDENTITY)).split()
    kept = await keep(forking, guest)

    child = await fork(forking, kept, memory=False)

    assert not set(identity) & set((await child.run(IDENTITY)).split())
    assert await child.run("cat /note") == "fork"


async def test_a_resume_from_the_disk_is_the_same_machine_newly_booted(forking: Subject) -> None:
    guest = await boot(forking)
    await guest.write("/etc/ssh/ssh_host_rsa_key", "its own")
    identity = (await guest.run(IDENTITY)).split("\n")

    again = await resume(forking, await keep(forking, guest), guest, memory=False)

    after = (await again.run(IDENTITY)).split("\n")
    assert after[:-1] == identity[:-1]
    assert after[-1] != identity[-1], "the boot id"


async def _standing(guest: Guest, script: str) -> int:
    """What the script says once it says the same three times in a row."""
    said: list[str] = []
    async with asyncio.timeout(30):
        while len(said) < 3 or len(set(said[-3:])) > 1:
            said.append(await guest.run(script))
            await asyncio.sleep(0.2)
    return int(said[-1])


async def _connect(guest: Guest) -> socket.socket:
    address = guest.machine.address(PORT)
    connection = socket.socket()
    connection.settimeout(10)
    await asyncio.to_thread(connection.connect, (address.host, address.port))
    return connection


async def _said(connection: socket.socket) -> str:
    return (await asyncio.to_thread(connection.recv, 100)).decode()
