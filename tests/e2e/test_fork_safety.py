"""Forks through the API: each child is told apart from its source, down to programs in `base`."""

from __future__ import annotations

import json

from tests.e2e.wire import Box, Wire

PROGRAM = """
import aenv, json, os, random, time
told = []
aenv.on_restore(lambda restore: told.append([restore.mode, restore.sandbox_id]))
random.seed(1)
while True:
    state = random.getstate()[1][:4]
    with open("/tmp/said.new", "w") as said:
        json.dump({"told": told, "random": state, "key": os.environ["KEY"]}, said)
    os.rename("/tmp/said.new", "/tmp/said")
    time.sleep(0.05)
"""
IDENTITY = """
echo "$E2B_SANDBOX_ID $(hostname) $(cat /etc/machine-id /proc/sys/kernel/random/boot_id | xargs)"
echo "[$KEY] $PLAIN"
"""


def start(wire: Wire) -> Box:
    box = wire.create(envVars={"KEY": "s3cret", "PLAIN": "1"}, secretEnvVars=["KEY"])
    wire.run(box, f"cat > /tmp/program.py <<'END'\n{PROGRAM}\nEND")
    wire.run(box, "setsid python3 /tmp/program.py > /tmp/errors 2>&1 &")
    said = wire.run(box, "until cat /tmp/said; do sleep 0.05; done 2>/dev/null; cat /tmp/errors")
    assert json.loads(said.stdout)["told"] == []
    return box


def fork(wire: Wire, box: Box, **fields: object) -> list[Box]:
    reply = wire.http.post(f"/sandboxes/{box.id}/fork", json=fields)
    assert reply.status_code == 201, reply.text
    found = [one["sandbox"] for one in reply.json()]
    return [Box(one["sandboxID"], one["envdAccessToken"]) for one in found]


def program(wire: Wire, box: Box) -> dict[str, object]:
    """What the running program says next."""
    said = wire.run(box, "rm /tmp/said; until cat /tmp/said; do sleep 0.05; done 2>/dev/null")
    return dict(json.loads(said.stdout))


def test_children_have_identities_randomness_and_secrets_of_their_own(wire: Wire):
    box = start(wire)

    one, two = fork(wire, box, count=2)

    identities = [wire.run(each, IDENTITY).stdout.split() for each in (box, one, two)]
    assert len({word for identity in identities for word in identity[2:4]}) == 6
    assert [identity[:2] for identity in identities] == [[each.id] * 2 for each in (box, one, two)]
    assert [identity[4:] for identity in identities] == [
        ["[s3cret]", "1"],
        ["[]", "1"],
        ["[]", "1"],
    ]
    said = [program(wire, each) for each in (box, one, two)]
    assert [each["told"] for each in said] == [[], [["fork", one.id]], [["fork", two.id]]]
    assert len({str(each["random"]) for each in said}) == 3
    assert {each["key"] for each in said} == {"s3cret"}, "what runs inherits the memory it is in"
    assert wire.rpc(Box(one.id, box.token), "/process.Process/List", b"{}").status_code == 401
    for each in (box, one, two):
        wire.delete(each)


def test_a_fork_that_asks_is_given_the_secrets(wire: Wire):
    box = start(wire)

    (child,) = fork(wire, box, secrets=True)

    assert wire.run(child, "echo $KEY").stdout == "s3cret\n"
    (grandchild,) = fork(wire, child)
    assert wire.run(grandchild, "echo [$KEY]").stdout == "[]\n"
    for each in (box, child, grandchild):
        wire.delete(each)


def test_a_paused_and_resumed_sandbox_is_the_same(wire: Wire):
    box = start(wire)
    before = wire.run(box, IDENTITY).stdout
    state = program(wire, box)["random"]

    assert wire.http.post(f"/sandboxes/{box.id}/pause").status_code == 204
    assert wire.http.post(f"/sandboxes/{box.id}/connect", json={"timeout": 60}).status_code == 201

    assert wire.run(box, IDENTITY).stdout == before
    said = program(wire, box)
    assert said["told"] == [["resume", box.id]]
    assert said["random"] == state, "nobody is reseeded"
    wire.delete(box)
