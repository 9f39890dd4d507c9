"""Volumes: made, found, mounted; their files from inside and outside; sync and async."""

import io
import time
import uuid

from e2b import AsyncSandbox, AsyncVolume, NotFoundException, Sandbox, Volume
from scenarios import raises, scenario, until

BLOB = bytes(range(256)) * 40_000


def _new() -> Volume:
    return Volume.create(f"v-{uuid.uuid4().hex[:12]}")


@scenario
def volumes_are_made_found_and_destroyed():
    volume = _new()
    assert volume.token
    info = Volume.get_info(volume.volume_id)
    assert (info.volume_id, info.name, info.token) == (volume.volume_id, volume.name, volume.token)
    assert volume.name in [one.name for one in Volume.list()]
    again = Volume.connect(volume.volume_id)
    volume.write_file("/f", "text")
    assert again.read_file("/f") == "text"
    raises(Exception, lambda: Volume.create(volume.name))
    assert Volume.destroy(volume.volume_id) is True
    assert Volume.destroy(volume.volume_id) is False
    raises(NotFoundException, lambda: Volume.get_info(volume.volume_id))


@scenario
def files_pass_unharmed_in_every_way():
    volume = _new()
    for data in (BLOB, io.BytesIO(BLOB)):
        info = volume.write_file("/deep/blob", data, mode=0o640)
        assert (info.name, info.path, info.size, info.mode) == (
            "blob",
            "/deep/blob",
            len(BLOB),
            0o640,
        )
        assert bytes(volume.read_file("/deep/blob", format="bytes")) == BLOB
        assert b"".join(volume.read_file("/deep/blob", format="stream")) == BLOB
    volume.write_file("/ü 🦊.txt", "zażółć")
    assert volume.read_file("/ü 🦊.txt") == "zażółć"
    assert volume.exists("/ü 🦊.txt")
    assert not volume.exists("/none")
    raises(NotFoundException, lambda: volume.read_file("/none"))
    raises(NotFoundException, lambda: volume.list("/none"))
    Volume.destroy(volume.volume_id)


@scenario
def folders_are_made_listed_changed_and_removed():
    volume = _new()
    raises(NotFoundException, lambda: volume.make_dir("/a/b"))
    made = volume.make_dir("/a/b", uid=1234, gid=4321, mode=0o750, force=True)
    assert (made.type.value, made.uid, made.gid, made.mode) == ("directory", 1234, 4321, 0o750)
    volume.write_file("/a/b/c", "x")
    assert [one.path for one in volume.list("/")] == ["/a"]
    assert [one.path for one in volume.list("/", depth=3)] == ["/a", "/a/b", "/a/b/c"]
    changed = volume.update_metadata("/a/b/c", uid=0, mode=0o600)
    assert (changed.uid, changed.mode) == (0, 0o600)
    volume.remove("/a")
    assert volume.list("/") == []
    Volume.destroy(volume.volume_id)


@scenario
def a_sandbox_has_what_it_was_created_with():
    volume = _new()
    volume.write_file("/in", "from outside")
    sandbox = Sandbox.create(timeout=120, volume_mounts={"/mnt/data": volume})
    assert sandbox.commands.run("cat /mnt/data/in").stdout == "from outside"
    sandbox.files.write("/mnt/data/out", "from inside")
    assert volume.read_file("/out") == "from inside"
    error = raises(Exception, lambda: Sandbox.create(volume_mounts={"/d": volume.name}))
    assert sandbox.sandbox_id in str(error)
    error = raises(Exception, lambda: Volume.destroy(volume.volume_id))
    assert sandbox.sandbox_id in str(error)
    sandbox.pause()
    raises(Exception, lambda: Sandbox.create(volume_mounts={"/d": volume.name}))
    sandbox.connect()
    assert sandbox.commands.run("cat /mnt/data/out").stdout == "from inside"
    sandbox.kill()
    other = Sandbox.create(timeout=120, volume_mounts={"/d": volume.name})
    assert other.files.read("/d/out") == "from inside"
    other.kill()
    assert until(lambda: Volume.destroy(volume.volume_id))


@scenario
async def the_async_client_does_the_same():
    volume = await AsyncVolume.create(f"v-{time.time_ns()}")
    await volume.write_file("/f", BLOB)
    stream = await volume.read_file("/f", format="stream")
    assert b"".join([chunk async for chunk in stream]) == BLOB
    sandbox = await AsyncSandbox.create(timeout=120, volume_mounts={"/data": volume})
    done = await sandbox.commands.run("wc -c < /data/f")
    assert int(done.stdout) == len(BLOB)
    await sandbox.kill()
    assert await AsyncVolume.destroy(volume.volume_id)
