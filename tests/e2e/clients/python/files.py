"""/files and filesystem.Filesystem through ``sandbox.files``; signed URLs; metadata."""

import asyncio
import io
import time
import urllib.error
import urllib.request

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    Sandbox,
    SandboxException,
)
from scenarios import raises, scenario

BLOB = bytes(range(256)) * 4096


@scenario
def text_is_written_and_read_back(sandbox: Sandbox):
    info = sandbox.files.write("notes/über.txt", "zażółć 🦊\n")
    assert (info.name, info.path) == ("über.txt", "/home/user/notes/über.txt")
    assert sandbox.files.read("notes/über.txt") == "zażółć 🦊\n"
    assert sandbox.files.read("~/notes/über.txt") == "zażółć 🦊\n"
    owner = sandbox.commands.run("stat -c %U:%G notes notes/über.txt").stdout.split()
    assert owner == ["user:user", "user:user"]


@scenario
def an_empty_file_is_a_file(sandbox: Sandbox):
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""
    assert sandbox.files.get_info("empty").size == 0


@scenario
def bytes_pass_unharmed_in_every_way(sandbox: Sandbox):
    for octet, gzip in ((False, False), (True, False), (True, True)):
        sandbox.files.write("blob", BLOB, gzip=gzip, use_octet_stream=octet)
        assert bytes(sandbox.files.read("blob", format="bytes")) == BLOB
        assert bytes(sandbox.files.read("blob", format="bytes", gzip=True)) == BLOB
    sandbox.files.write("blob2", io.BytesIO(BLOB))
    assert b"".join(sandbox.files.read("blob2", format="stream")) == BLOB


@scenario
def a_big_file_goes_up_and_down(sandbox: Sandbox):
    big = BLOB * 64
    sandbox.files.write("big", big)
    assert bytes(sandbox.files.read("big", format="bytes")) == big
    sandbox.files.remove("big")


@scenario
def several_files_at_once(sandbox: Sandbox):
    written = sandbox.files.write_files(
        [{"path": f"many/{number}", "data": str(number)} for number in range(10)]
    )
    assert [info.path for info in written] == [f"/home/user/many/{n}" for n in range(10)]
    assert sandbox.files.read("many/7") == "7"
    assert sandbox.files.write_files([]) == []


@scenario
def files_without_a_size_are_readable(sandbox: Sandbox):
    assert "MemTotal" in sandbox.files.read("/proc/meminfo", user="root")


@scenario
def other_users_files(sandbox: Sandbox):
    sandbox.files.write("/root/secret", "s", user="root")
    assert sandbox.files.read("/root/secret", user="root") == "s"
    raises(AuthenticationException, lambda: sandbox.files.write("/x", "x", user="nobody-here"))


@scenario
def what_is_not_there_is_not_found(sandbox: Sandbox):
    raises(NotFoundException, lambda: sandbox.files.read("nope"))
    raises(NotFoundException, lambda: sandbox.files.get_info("nope"))
    raises(NotFoundException, lambda: sandbox.files.list("nope"))
    raises(NotFoundException, lambda: sandbox.files.rename("nope", "other"))
    assert sandbox.files.exists("nope") is False
    sandbox.files.remove("nope")


@scenario
def wrong_kinds_are_invalid(sandbox: Sandbox):
    sandbox.files.write("plain", "x")
    sandbox.files.make_dir("folder")
    raises(SandboxException, lambda: sandbox.files.read("folder"))
    raises(InvalidArgumentException, lambda: sandbox.files.list("plain"))
    raises(InvalidArgumentException, lambda: sandbox.files.make_dir("plain"))
    raises(SandboxException, lambda: sandbox.files.write("folder", "x"))
    raises(SandboxException, lambda: sandbox.files.write("plain/below", "x"))


@scenario
def folders_are_made_listed_and_removed(sandbox: Sandbox):
    assert sandbox.files.make_dir("tree/a/b") is True
    assert sandbox.files.make_dir("tree/a/b") is False
    sandbox.files.write("tree/file", "12345")
    sandbox.files.write("tree/a/b/deep", "x")
    flat = {entry.name: entry for entry in sandbox.files.list("tree")}
    assert set(flat) == {"a", "file"}
    assert (flat["a"].type, flat["file"].type) == (FileType.DIR, FileType.FILE)
    assert flat["file"].size == 5
    deep = {entry.path for entry in sandbox.files.list("tree", depth=3)}
    assert "/home/user/tree/a/b/deep" in deep
    sandbox.files.remove("tree")
    assert sandbox.files.exists("tree") is False


@scenario
def entries_tell_mode_owner_and_time(sandbox: Sandbox):
    sandbox.files.write("entry", "x")
    sandbox.commands.run("chmod 640 entry")
    info = sandbox.files.get_info("entry")
    assert (info.mode, info.permissions) == (0o640, "-rw-r-----")
    assert (info.owner, info.group) == ("user", "user")
    assert abs(info.modified_time.timestamp() - time.time()) < 60
    assert sandbox.files.get_info("/home/user").permissions.startswith("d")


@scenario
def links_are_followed_and_told(sandbox: Sandbox):
    sandbox.files.write("target", "x")
    sandbox.commands.run("ln -sf target link; ln -sf nowhere dangling")
    info = sandbox.files.get_info("link")
    assert info.symlink_target == "/home/user/target"
    assert sandbox.files.read("link") == "x"
    assert sandbox.files.exists("dangling") in (True, False)
    assert "link" in {entry.name for entry in sandbox.files.list(".")}


@scenario
def rename_moves_and_makes_parents(sandbox: Sandbox):
    sandbox.files.write("from", "x")
    assert sandbox.files.rename("from", "new/place/to").path == "/home/user/new/place/to"
    assert sandbox.files.read("new/place/to") == "x"
    assert sandbox.files.exists("from") is False


@scenario
def metadata_is_kept_and_replaced(sandbox: Sandbox):
    sandbox.files.write("meta", "x", metadata={"author": "me", "kind": "ü"[:0] or "note"})
    assert sandbox.files.get_info("meta").metadata == {"author": "me", "kind": "note"}
    sandbox.files.write("meta", "y", metadata={"author": "you"})
    assert sandbox.files.get_info("meta").metadata == {"author": "you"}
    sandbox.files.write("meta", "z")
    assert not sandbox.files.get_info("meta").metadata
    listed = {entry.name: entry for entry in sandbox.files.list(".")}
    assert not listed["meta"].metadata


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as reply:
        return reply.read()


@scenario
def signed_urls_read_and_write(sandbox: Sandbox):
    sandbox.files.write("signed file", "content")
    url = sandbox.download_url("signed file", use_signature_expiration=60)
    assert _get(url) == b"content"
    assert _get(sandbox.download_url("signed file")) == b"content"
    boundary = "xxboundaryxx"
    body = (
        f"--{boundary}\r\n"
        'Content-Disposition: form-data; name="file"; filename="up"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
        f"uploaded\r\n--{boundary}--\r\n"
    ).encode()
    request = urllib.request.Request(
        sandbox.upload_url("up", use_signature_expiration=60),
        data=body,
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        assert reply.status == 200
    assert sandbox.files.read("up") == "uploaded"


@scenario
def bad_signatures_are_refused(sandbox: Sandbox):
    url = sandbox.download_url("signed file", use_signature_expiration=60)
    spoilt = url.replace("signature=v1_", "signature=v1_x")
    error = raises(urllib.error.HTTPError, lambda: _get(spoilt))
    assert error.code in (401, 403)
    expired = sandbox.download_url("signed file", use_signature_expiration=-10)
    error = raises(urllib.error.HTTPError, lambda: _get(expired))
    assert error.code == 401
    assert b"expired" in error.read()


@scenario
def a_full_disk_is_507_and_leaves_no_partial_file():
    with Sandbox.create(timeout=120) as sandbox:
        sandbox.commands.run("head -c 400M /dev/zero > fill")
        raises(NotEnoughSpaceException, lambda: sandbox.files.write("big", BLOB * 256))
        assert sandbox.files.exists("big") is False
        sandbox.files.remove("fill")
        sandbox.files.write("small", "fits")


@scenario
def paths_do_not_escape_the_sandbox(sandbox: Sandbox):
    inside = sandbox.commands.run("cat /etc/hostname").stdout
    assert sandbox.files.read("../../../../../../etc/hostname") == inside
    assert inside.strip() == sandbox.sandbox_id or inside


@scenario
async def async_files(sandbox: AsyncSandbox):
    await asyncio.gather(
        *(sandbox.files.write(f"async/{n}", BLOB, use_octet_stream=bool(n % 2)) for n in range(8))
    )
    back = await asyncio.gather(
        *(sandbox.files.read(f"async/{n}", format="bytes") for n in range(8))
    )
    assert all(bytes(found) == BLOB for found in back)
    stream = await sandbox.files.read("async/0", format="stream")
    assert b"".join([chunk async for chunk in stream]) == BLOB
    assert len(await sandbox.files.list("async")) == 8
