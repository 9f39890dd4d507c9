"""Volumes in real sandboxes: what they see, what time travel does to them, what a crash leaves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.servers import LiveServer
from tests.e2e.test_crashes import until
from tests.e2e.wire import Box, Wire

import aenv
from aenv.models.errors import ConflictError

MakeServer = Callable[..., LiveServer]
LOOP = (
    "exec 5>>/data/log 6>/data/gone; rm /data/gone; "
    "i=0; while true; do i=$((i+1)); echo $i >&5; sleep 0.1; done"
)


class Volume:
    """A volume with the client of who has its token."""

    def __init__(self, server: LiveServer, name: str, **fields: object) -> None:
        self.name = name
        self.wire = Wire(server)
        made = self.wire.http.post("/volumes", json={"name": name, **fields})
        assert made.status_code == 201, made.text
        self.id = made.json()["volumeID"]
        self.content = httpx.Client(
            base_url=f"{server.url}/volumecontent/{self.id}/",
            headers={"Authorization": f"Bearer {made.json()['token']}"},
            timeout=60,
        )

    def mount(self, path: str = "/data") -> list[dict[str, str]]:
        return [{"name": self.name, "path": path}]

    def put(self, path: str, content: bytes | str) -> int:
        return self.content.put("file", params={"path": path}, content=content).status_code

    def get(self, path: str) -> str:
        reply = self.content.get("file", params={"path": path})
        return reply.text if reply.status_code == 200 else str(reply.status_code)

    def holders(self) -> list[str]:
        found: list[str] = self.wire.http.get(f"/volumes/{self.id}").json()["sandboxIDs"]
        return found

    def seal(self) -> httpx.Response:
        return self.wire.http.post(f"/aenv/volumes/{self.id}/seal")


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory, base_template: None) -> Iterator[LiveServer]:
    """A server that keeps nothing in memory that is paused."""
    server = LiveServer(tmp_path_factory.mktemp("volumes"), {"AENV_HOT_MEMORY_MB": "0"})
    server.start()
    yield server
    server.discard()


def stored(server: LiveServer) -> list[str]:
    """What is kept of volumes: of named ones, and copies of sandboxes and snapshots."""
    pool = server.folder / "data" / "pool"
    kept = [*(pool / ".volumes").glob("*"), *(pool / ".images").glob("*+*")]
    return sorted(one.name for one in kept)


def refusal(server: LiveServer, *words: str) -> str:
    """What a command says that fails."""
    done = server._run(*words, timeout=60, check=False)
    assert done.returncode == 1
    return done.stderr


def lines(wire: Wire, box: Box, path: str = "/data/log") -> int:
    return int(wire.run(box, f"wc -l < {path}").stdout)


def fork(wire: Wire, box: Box) -> Box:
    reply = wire.http.post(f"/sandboxes/{box.id}/fork", json={"count": 1, "timeout": 300})
    assert reply.status_code == 201, reply.text
    (one,) = reply.json()
    return Box(one["sandbox"]["sandboxID"], one["sandbox"]["envdAccessToken"])


def test_files_pass_between_sandboxes_and_clients(cold: LiveServer):
    wire, volume = Wire(cold), Volume(cold, "pass")
    assert volume.put("/in/x", "from outside") == 201
    box = wire.create(volumeMounts=volume.mount("/mnt/deep/er"))
    seen = wire.run(
        box, "cd /mnt/deep/er; cat in/x; echo more >> in/x; echo mine > new; stat -c %U new"
    )
    assert (seen.stdout, seen.stderr) == ("from outsideuser\n", "")
    assert volume.get("/in/x") == "from outsidemore\n"
    assert volume.put("/new", "yours") == 201
    assert wire.run(box, "cat /mnt/deep/er/new").stdout == "yours"
    second = wire.http.post(
        "/v2/sandboxes", json={"templateID": "base", "volumeMounts": volume.mount()}
    )
    assert (second.status_code, box.id in second.json()["message"]) == (409, True)
    wire.delete(box)
    other = wire.create(volumeMounts=volume.mount())
    assert wire.run(other, "cat /data/new").stdout == "yours"
    wire.delete(other)
    assert wire.http.delete(f"/volumes/{volume.id}").status_code == 204


def test_a_warm_resume_goes_on_writing_where_it_was(cold: LiveServer):
    wire, volume = Wire(cold), Volume(cold, "warm")
    box = wire.create(volumeMounts=volume.mount())
    wire.run(box, f"nohup bash -c '{LOOP}' >/dev/null 2>&1 & sleep 0.5")
    until(lambda: lines(wire, box) > 2)
    assert wire.http.post(f"/sandboxes/{box.id}/pause").status_code == 204
    assert volume.holders() == [box.id]
    before = len(volume.get("/log").splitlines())
    assert volume.put("/meanwhile", "while it was paused") == 201
    reply = wire.http.post(f"/sandboxes/{box.id}/connect", json={"timeout": 300})
    assert reply.status_code in (200, 201), reply.text
    assert wire.detail(box).json()["restored"] == "warm"
    until(lambda: lines(wire, box) > before + 2)
    assert volume.get("/log").split()[: before + 1] == [str(n + 1) for n in range(before + 1)]
    assert wire.run(box, "cat /data/meanwhile").stdout == "while it was paused"
    wire.delete(box)


def test_a_fork_has_the_volume_of_that_moment_for_itself(cold: LiveServer):
    wire, volume = Wire(cold), Volume(cold, "forked")
    box = wire.create(volumeMounts=volume.mount())
    wire.run(box, f"nohup bash -c '{LOOP}' >/dev/null 2>&1 & echo both > /data/f; sleep 0.5")
    child = fork(wire, box)
    at = lines(wire, child)
    until(lambda: lines(wire, child) > at + 2)
    numbers = wire.run(child, "cat /data/log").stdout.split()
    assert numbers == [str(n + 1) for n in range(len(numbers))]
    wire.run(child, "echo child > /data/f")
    wire.run(box, "echo source > /data/only-source")
    assert wire.run(child, "cat /data/f; ls /data/only-source").stdout == "child\n"
    assert volume.get("/f") == "both\n"
    assert wire.detail(child).json()["volumeMounts"][0]["ownCopy"] is True
    assert volume.holders() == [box.id]

    assert wire.http.post(f"/sandboxes/{child.id}/pause").status_code == 204
    wire.http.post(f"/sandboxes/{child.id}/connect", json={"timeout": 300})
    assert wire.run(child, "cat /data/f").stdout == "child\n"
    assert f"{child.id}+{volume.id}" in stored(cold)
    wire.delete(child)
    until(lambda: f"{child.id}+{volume.id}" not in stored(cold))
    wire.delete(box)
    until(lambda: not [one for one in stored(cold) if one.endswith(f"+{volume.id}")])


def test_a_snapshot_starts_with_its_volume_after_everything_else_is_gone(cold: LiveServer):
    wire, volume, more = Wire(cold), Volume(cold, "kept"), Volume(cold, "more")
    box = wire.create(volumeMounts=volume.mount())
    wire.run(box, "echo then > /data/f; sleep 1000 & echo $! > /data/pid")
    kept = wire.http.post(f"/sandboxes/{box.id}/snapshots", json={}).json()["snapshotID"]
    wire.run(box, "echo now > /data/f")
    wire.delete(box)
    assert wire.http.delete(f"/volumes/{volume.id}").status_code == 204

    again = wire.create(templateID=kept, volumeMounts=more.mount("/more"))
    assert wire.detail(again).json().get("restored") == "warm"
    seen = wire.run(again, "cat /data/f; echo x > /more/x; kill -0 $(cat /data/pid) && echo lives")
    assert seen.stdout == "then\nlives\n"
    assert more.get("/x") == "x\n"
    wire.delete(again)
    assert wire.http.delete(f"/templates/{kept}").status_code == 204
    until(lambda: not [one for one in stored(cold) if volume.id in one])


def test_a_rollback_takes_the_contents_back_and_leaves_the_named_volume(cold: LiveServer):
    volume = Volume(cold, "rolled")
    named = {"url": cold.url, "api_key": cold.api_key}
    with aenv.Sandbox(volumes={"/data": "rolled"}, **named) as sandbox:
        sandbox.exec("echo then > /data/f")
        kept = sandbox.snapshot()
        sandbox.exec("echo now > /data/f")
        sandbox.rollback(kept)
        assert sandbox.exec("cat /data/f").stdout == "then\n"
        assert volume.get("/f") == "now\n"
        until(lambda: volume.holders() == [])
    aenv.Snapshot.delete(kept.id, **named)
    until(lambda: [one for one in stored(cold) if volume.id in one] == [volume.id])


def test_a_full_volume_is_told_inside_and_outside(cold: LiveServer):
    wire, volume = Wire(cold), Volume(cold, "small", sizeMB=24)
    box = wire.create(volumeMounts=volume.mount())
    said = wire.run(box, "dd if=/dev/urandom of=/data/big bs=1M count=64; sync; ls /data")
    assert "quota exceeded" in said.stderr.lower() or "no space" in said.stderr.lower()
    assert volume.put("/more", b"x" * (16 << 20)) == 507
    assert wire.run(box, "echo lives > /tmp/f; cat /tmp/f").stdout == "lives\n"
    assert volume.content.delete("path", params={"path": "/big"}).status_code == 204
    assert wire.run(box, "cat /data/big").exit_code == 1  # the guest lets go of what is gone
    until(lambda: volume.put("/more", b"x" * (8 << 20)) == 201, timeout=60)
    wire.delete(box)


def test_a_sealed_volume_is_shared_and_nobody_writes(cold: LiveServer):
    wire, volume = Wire(cold), Volume(cold, "sealed")
    volume.put("/f", "data")
    sealed = volume.seal()
    assert sealed.status_code == 200, sealed.text
    digest = sealed.json()["digest"]
    mounts = [{"name": f"sealed@{digest}", "path": "/data"}]
    boxes = [wire.create(volumeMounts=mounts) for _ in range(2)]
    for box in boxes:
        said = wire.run(box, "cat /data/f; echo x > /data/f || sudo touch /data/g", user="user")
        assert (said.stdout, said.exit_code) == ("data", 1)
        assert "read-only" in said.stderr.lower()
    child = fork(wire, boxes[0])
    assert wire.run(child, "cat /data/f").stdout == "data"
    assert volume.put("/g", "x") == 409
    assert volume.holders() == sorted(one.id for one in (*boxes, child))
    wrong = [{"name": "sealed@sha256:" + "0" * 64, "path": "/data"}]
    reply = wire.http.post("/v2/sandboxes", json={"templateID": "base", "volumeMounts": wrong})
    assert reply.status_code == 409
    for box in (*boxes, child):
        wire.delete(box)


def test_what_a_guest_leaves_leads_nowhere(cold: LiveServer):
    wire, volume = Wire(cold), Volume(cold, "hostile")
    box = wire.create(volumeMounts=volume.mount())
    secret = Path("/etc/hostname").read_text()
    wire.run(
        box,
        "cd /data; ln -s /etc e; ln -s /etc/hostname h; ln -s ../../../../etc/hostname r;"
        "mkfifo p; ln -s /proc/1/root x; ln -s /proc/self/fd/0 fd",
    )
    for path in ("/h", "/r", "/e/hostname", "/x/etc/hostname", "/../../etc/hostname", "/p", "/fd"):
        assert volume.get(path) in ("400", "404"), path
        assert secret.strip() not in volume.get(path)
    for path in ("/e/new", "/x/tmp/new"):
        volume.put(path, "x")
    assert not Path("/etc/new").exists()
    assert not Path("/tmp/new").exists()
    wire.delete(box)


def test_the_command_and_the_sdk_do_the_same(cold: LiveServer, tmp_path: Path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_text("content")
    cold.aenv("volume", "create", "mine", "--size", "100")
    assert "already" in refusal(cold, "volume", "create", "mine")
    cold.aenv("volume", "cp", str(source), "mine:/in/")
    cold.aenv("volume", "cp", "mine:/in/source", str(copy))
    assert copy.read_text() == "content"
    box = cold.aenv("start", "-d", "-v", "mine:/data").strip()
    assert cold.aenv("exec", "-n", box, "cat", "/data/in/source") == "content"
    assert box in cold.aenv("volume", "ls")
    assert box in refusal(cold, "volume", "rm", "mine")
    assert box in refusal(cold, "volume", "seal", "mine")
    cold.aenv("rm", "-y", box)

    volume = aenv.Volume.open("mine", url=cold.url, api_key=cold.api_key)
    assert volume.read("/in/source") == b"content"
    volume.write("/more", b"1")
    assert [one.path for one in volume.files(depth=2)] == ["/in", "/more", "/in/source"]
    named = cold.aenv("volume", "seal", "mine").strip()
    assert named == f"mine@{volume.info().digest}"
    mounts = {"/data": named}
    with aenv.Sandbox(volumes=mounts, url=cold.url, api_key=cold.api_key) as sandbox:
        assert sandbox.exec("cat /data/more").stdout == "1"
        with pytest.raises(ConflictError):
            volume.write("/more", b"2")
    volume.delete()
    volume.close()
    assert "mine" not in cold.aenv("volume", "ls", "-q")


def test_a_server_killed_at_any_moment_leaves_the_volume_usable(make_server: MakeServer):
    server = make_server()
    server.start()
    volume = Volume(server, "crash")
    volume.put("/f", "kept")
    for pause in (0.02, 0.15, 0.4):
        creating = threading.Thread(target=_try_to_create, args=(server, volume))
        creating.start()
        creating.join(pause)
        server.stop(signal.SIGKILL)
        creating.join()
        server.start()
        wire = Wire(server)
        for sandbox in wire.ids():
            wire.http.delete(f"/sandboxes/{sandbox}")
        until(lambda: volume.holders() == [], timeout=60)
    box = Wire(server).create(volumeMounts=volume.mount())
    assert Wire(server).run(box, "cat /data/f").stdout == "kept"
    server.kill()
    server.start()
    assert volume.holders() == [box.id]
    assert Wire(server).run(box, "echo more >> /data/f; cat /data/f").stdout == "keptmore\n"
    child = fork(Wire(server), box)
    server.kill()
    server.start()
    assert stored(server) == sorted([volume.id, f"{child.id}+{volume.id}"])
    Wire(server).delete(child)
    Wire(server).delete(box)
    until(lambda: stored(server) == [volume.id], timeout=60)


def _try_to_create(server: LiveServer, volume: Volume) -> None:
    body = {"templateID": "base", "volumeMounts": volume.mount()}
    try:
        Wire(server).http.post("/v2/sandboxes", json=body)
    except httpx.TransportError:
        return
