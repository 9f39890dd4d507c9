"""What children of one snapshot must not share, one test per hazard of ``docs/snapshots.md``.

Where nothing outside a process can help it, a test shows that too.
"""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.conformance.lineage import Guest, ask, boot, fork, keep, start_program, two_forks
from tests.conformance.subjects import Subject

REGISTERED = 'import sys; sys.path.append("/.aenv/python"); import aenv\n'
RANDOMNESS = """
import random, ssl, tempfile
own, told = random.Random(), []
random.random(), own.random(), ssl.RAND_bytes(1), next(tempfile._get_candidate_names())
def answer():
    return {
        "random": random.random(), "ssl": ssl.RAND_bytes(8).hex(), "own": own.random(),
        "tempfile": next(tempfile._get_candidate_names()), "told": told, "hash": hash("text"),
    }
"""


@pytest.fixture
def forking(subject: Subject) -> Subject:
    if not subject.engine.capabilities.live_fork:
        pytest.skip(f"{subject.name} forks nothing")
    return subject


async def both(one: Guest, two: Guest, script: str) -> tuple[str, str]:
    first, second = await asyncio.gather(one.run(script), two.run(script))
    return first, second


async def test_kernel_randomness_differs(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(
        guest,
        "import os, uuid; device = open('/dev/urandom', 'rb', buffering=0); device.read(1)\n"
        "def answer(): return [os.urandom(8).hex(), device.read(8).hex(), str(uuid.uuid4())]",
    )

    one, two = await two_forks(forking, guest)

    first, second = await asyncio.gather(ask(one), ask(two))
    assert len({*first, *second}) == 6


async def test_randomness_in_a_processs_memory_repeats_if_it_did_not_ask(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(guest, RANDOMNESS)

    one, two = await two_forks(forking, guest)

    assert await ask(one) == await ask(two)


async def test_a_registered_process_is_reseeded_before_the_fork_is_ready(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(guest, REGISTERED + RANDOMNESS + "aenv.on_restore(told.append)\n" + _PLAIN)

    one, two = await two_forks(forking, guest)

    first, second = await asyncio.gather(ask(one), ask(two))
    assert [first["told"], second["told"]] == [[["fork", one.id]], [["fork", two.id]]]
    for name in ("random", "ssl", "tempfile"):
        assert first[name] != second[name], name
    assert first["own"] == second["own"], "a generator of its own is the program's own to reseed"
    assert first["hash"] == second["hash"], "hash seeds and memory layout are made when it starts"
    assert one.failures == two.failures == ()


async def test_a_callback_reseeds_what_is_the_programs_own(forking: Subject) -> None:
    guest = await boot(forking)
    program = REGISTERED + RANDOMNESS + "aenv.on_restore(lambda restore: own.seed())\n"
    await start_program(guest, program)

    one, two = await two_forks(forking, guest)

    assert (await ask(one))["own"] != (await ask(two))["own"]


async def test_a_process_forked_by_a_registered_one_is_registered_too(forking: Subject) -> None:
    guest = await boot(forking)
    lives_in_child = "import os\nif os.fork(): os.wait(); os._exit(0)\n"
    await start_program(guest, REGISTERED + lives_in_child + RANDOMNESS)

    one, two = await two_forks(forking, guest)

    assert (await ask(one))["random"] != (await ask(two))["random"]


async def test_a_callback_that_fails_is_reported_and_fails_nothing(forking: Subject) -> None:
    guest = await boot(forking)
    failing = "def broken(restore): 1 / 0\naenv.on_restore(broken)\n"
    await start_program(guest, REGISTERED + RANDOMNESS + failing)

    one, two = await two_forks(forking, guest)

    assert (await ask(one))["random"] != (await ask(two))["random"]
    assert "broken: ZeroDivisionError" in one.failures[0]


async def test_the_images_hooks_run_in_the_child(forking: Subject) -> None:
    guest = await boot(forking)
    hook = '#!/bin/sh\necho "$AENV_RESTORE $AENV_SANDBOX_ID" > /root/hooked'
    await guest.write("/etc/aenv/restore.d/10-note", hook, "755")
    await guest.write("/etc/aenv/restore.d/20-fails", "#!/bin/sh\nexit 9", "755")

    one, two = await two_forks(forking, guest)

    assert await both(one, two, "cat /root/hooked") == (f"fork {one.id}", f"fork {two.id}")
    assert one.failures == ("restore hook /etc/aenv/restore.d/20-fails: exit status 9",)
    errors = await one.agent.logs(after=0, limit=10, wait=0)
    assert [line.message for line in errors.lines] == list(one.failures)


async def test_boot_id_differs(forking: Subject) -> None:
    guest = await boot(forking)
    script = "cat /proc/sys/kernel/random/boot_id"
    before = await guest.run(script)

    one, two = await two_forks(forking, guest)

    assert len({before, *await both(one, two, script)}) == 3


async def test_the_host_name_is_the_childs_own(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(guest, "import socket\ndef answer(): return socket.gethostname()")
    script = "hostname; cat /etc/hostname; grep -o 'i.\\{19\\}$' /etc/hosts"

    one, two = await two_forks(forking, guest)

    assert await both(one, two, script) == ("\n".join([one.id] * 3), "\n".join([two.id] * 3))
    assert await ask(one) == one.id, "a running process that asks again"


async def test_the_machine_id_differs(forking: Subject) -> None:
    guest = await boot(forking)
    await guest.write("/var/lib/dbus/machine-id", "0" * 32)
    before = await guest.run("cat /etc/machine-id")

    one, two = await two_forks(forking, guest)

    first, second = await both(one, two, "cat /etc/machine-id /var/lib/dbus/machine-id")
    assert len({before, *first.split(), *second.split()}) == 3
    assert all(uuid.UUID(found).hex == found for found in {*first.split(), *second.split()})


async def test_new_processes_and_the_environment_name_the_child(forking: Subject) -> None:
    guest = await boot(forking)
    await start_program(guest, "import os\ndef answer(): return os.environ['E2B_SANDBOX_ID']")

    kept = await keep(forking, guest)
    child = await fork(forking, kept, env_vars={"A": "1"})

    said = await child.agent.run("echo $E2B_SANDBOX_ID $A", user="root", timeout=10)
    assert said.output == f"{child.id} 1\n"
    assert await child.envs() == {"A": "1"}
    assert await ask(child) == guest.id, "a running process keeps the environment it started with"


async def test_the_parents_tokens_open_nothing_in_the_child(forking: Subject) -> None:
    guest = await boot(forking)

    kept = await keep(forking, guest)
    child = await fork(forking, kept)
    sibling = await fork(forking, kept)

    for token in (guest.token, sibling.token):
        assert await child.status("/envs", {"X-Access-Token": token}) == 401
    for secret in (guest.secret, sibling.secret):
        assert await child.status("/aenv/health", {"X-Aenv-Host-Secret": secret}) == 404
    assert await child.status("/aenv/health", {"X-Aenv-Host-Secret": child.secret}) == 200
    await guest.machine.thaw()
    assert await guest.status("/envs", {"X-Access-Token": guest.token}) == 200


async def test_secrets_are_not_handed_on_unless_asked(forking: Subject) -> None:
    guest = await boot(forking, env_vars={"KEY": "s3cret", "A": "1"}, secret_env=("KEY",))
    await start_program(guest, "import os\ndef answer(): return os.environ.get('KEY')")

    kept = await keep(forking, guest)
    child = await fork(forking, kept)
    asked = await fork(forking, kept, env_vars={"KEY": "again"}, secret_env=("KEY",))

    assert await child.envs() == {"A": "1"}
    said = await child.agent.run("echo [$KEY]", user="root", timeout=10)
    assert said.output == "[]\n"
    assert await asked.envs() == {"KEY": "again"}
    assert await ask(child) == "s3cret", "the memory of running processes is inherited by nature"


async def test_what_the_parent_said_is_not_in_the_childs_log(forking: Subject) -> None:
    guest = await boot(forking)
    await guest.agent.run("echo the parents business", user="root", timeout=10)

    one, two = await two_forks(forking, guest)

    assert (await one.agent.logs(after=0, limit=10, wait=0)).lines == ()
    await two.agent.run("echo mine", user="root", timeout=10)
    lines = (await two.agent.logs(after=0, limit=10, wait=5)).lines
    assert [(line.seq, line.message) for line in lines] == [(1, "mine")]


async def test_ssh_host_keys_are_made_anew(forking: Subject) -> None:
    guest, key = await boot(forking), "/etc/ssh/ssh_host_ed25519_key"
    await guest.run(f"mkdir -p /etc/ssh && ssh-keygen -q -t ed25519 -N '' -f {key}")
    script = f"cat {key}.pub"
    before = await guest.run(script)

    one, two = await two_forks(forking, guest)

    assert len({before, *await both(one, two, script)}) == 3
    assert one.failures == ()


async def test_without_ssh_keygen_the_shared_keys_go_and_it_says_so(forking: Subject) -> None:
    guest = await boot(forking, env_vars={"PATH": "/nowhere"})
    await guest.write("/etc/ssh/ssh_host_rsa_key", "shared")

    one, two = await two_forks(forking, guest)

    assert await both(one, two, "ls /etc/ssh") == ("", "")
    assert "the SSH host keys were removed and there are no new ones" in one.failures[0]


_PLAIN = """
all_of_it = answer
def answer():
    return {**all_of_it(), "told": [[event.mode, event.sandbox_id] for event in told]}
"""
