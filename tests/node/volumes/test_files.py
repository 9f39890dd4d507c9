"""Work on the files of a volume, whose guest has left whatever it liked there."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aenv.models.errors import AenvError, ConflictError, InvalidRequestError, NotFoundError
from aenv.models.volumes import EntryType, Ownership
from aenv.node.host import confined
from aenv.node.volumes.files import LocalContent
from aenv.node.volumes.store import VolumeFolder

NOBODY = Ownership()
SECRET = "the host's"


class Volume:
    """A volume and, beside it, a file of the host that nobody may reach through it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.staging = folder / "content", folder / "staging"
        for one in (self.root, self.staging):
            one.mkdir()
        self.secret = folder / "secret"
        self.secret.write_text(SECRET)
        self.files = LocalContent(VolumeFolder(self.root, self.staging))

    async def put(self, path: str, content: bytes, owner: Ownership = NOBODY) -> None:
        await self.files.write(path, pieces(content), owner)

    async def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        file = await self.files.open(path)
        wanted = file.chunks(start, file.size if end is None else end)
        return b"".join([chunk async for chunk in wanted])


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for one in content:
        yield one


@pytest.fixture(params=["openat2", "by names"])
def volume(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Volume:
    """With the kernel's resolution, and as on a kernel that has none."""
    if request.param == "by names":

        def missing(*arguments: object) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(confined, "_openat2", missing)
    return Volume(tmp_path)


async def test_what_is_put_can_be_read_listed_changed_and_removed(volume: Volume) -> None:
    await volume.put("/a/b.txt", b"hello world")
    await volume.files.make_folder("/a/c", Ownership(mode=0o700), parents=False)

    assert await volume.get("a//b.txt") == b"hello world"
    assert await volume.get("/a/b.txt", 6, 11) == b"world"
    found = await volume.files.walk("/", depth=2)
    assert [(one.path, one.type, one.name) for one in found] == [
        ("/a", EntryType.DIRECTORY, "a"),
        ("/a/b.txt", EntryType.FILE, "b.txt"),
        ("/a/c", EntryType.DIRECTORY, "c"),
    ]
    assert [one.path for one in await volume.files.walk("/")] == ["/a"]
    changed = await volume.files.change("/a/b.txt", Ownership(mode=0o600))
    assert (changed.mode, changed.size) == (0o600, 11)
    assert (await volume.files.look("/a/c")).mode == 0o700
    assert (await volume.files.look("/")).path == "/"
    await volume.files.remove("/a")
    with pytest.raises(NotFoundError):
        await volume.files.look("/a/b.txt")
    assert list(volume.staging.iterdir()) == []


async def test_a_replaced_file_keeps_its_owner_and_mode(volume: Volume) -> None:
    await volume.put("/f", b"1", Ownership(mode=0o640))
    before = (volume.root / "f").stat()
    await volume.put("/f", b"two")
    after = (volume.root / "f").stat()
    assert (after.st_mode, after.st_uid, after.st_size) == (before.st_mode, before.st_uid, 3)
    assert after.st_ino != before.st_ino


async def test_an_upload_that_breaks_off_changes_nothing(volume: Volume) -> None:
    await volume.put("/f", b"as before")

    async def breaking() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError

    with pytest.raises(AenvError):
        await volume.files.write("/f", breaking(), NOBODY)
    assert await volume.get("/f") == b"as before"
    assert list(volume.staging.iterdir()) == []


@pytest.mark.parametrize(
    "target", ["../secret", "../../secret", "{secret}", "/proc/self/root{secret}"]
)
async def test_links_lead_nowhere_but_into_the_volume(volume: Volume, target: str) -> None:
    (volume.root / "link").symlink_to(target.format(secret=volume.secret))

    with pytest.raises(AenvError):
        await volume.get("/link")
    with pytest.raises(InvalidRequestError):
        await volume.files.change("/link", Ownership(mode=0o777))
    shown = await volume.files.look("/link")
    assert shown.type is EntryType.SYMLINK
    await volume.put("/link", b"mine")
    assert not (volume.root / "link").is_symlink()
    assert await volume.get("/link") == b"mine"
    assert volume.secret.read_text() == SECRET


@pytest.mark.parametrize("target", ["..", "/", "{outside}"])
async def test_folders_that_are_links_lead_nowhere_either(volume: Volume, target: str) -> None:
    (volume.root / "out").symlink_to(target.format(outside=volume.secret.parent))

    for path in ("/out/secret", "/out/../../secret", "/../secret", "out/out/secret"):
        with pytest.raises(AenvError):
            await volume.get(path)
        with pytest.raises(AenvError):
            await volume.files.remove(path)
    for path in ("/out/new", "/out/x/new", "/../new"):
        try:
            await volume.put(path, b"x")
        except AenvError:
            continue
    assert sorted(one.name for one in volume.secret.parent.iterdir()) == [
        "content",
        "secret",
        "staging",
    ]
    assert volume.secret.read_text() == SECRET


async def test_removing_a_link_leaves_what_it_names(volume: Volume) -> None:
    (volume.root / "kept").mkdir()
    (volume.root / "kept/file").write_text("x")
    (volume.root / "out").symlink_to(volume.secret.parent)
    (volume.root / "in").symlink_to("kept")
    for name in ("out", "in"):
        await volume.files.remove(name)
    assert (volume.root / "kept/file").read_text() == "x"
    assert volume.secret.read_text() == SECRET


async def test_only_regular_files_are_opened(volume: Volume) -> None:
    os.mkfifo(volume.root / "fifo")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(volume.root / "socket"))
    if os.geteuid() == 0:
        os.mknod(volume.root / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    for entry in await volume.files.walk("/"):
        assert entry.type is EntryType.UNKNOWN
        with pytest.raises(InvalidRequestError):
            await volume.get(entry.path)
    (volume.root / "folder").mkdir()
    with pytest.raises(ConflictError):
        await volume.get("/folder")


async def test_files_and_folders_do_not_take_each_others_place(volume: Volume) -> None:
    await volume.put("/file", b"x")
    (volume.root / "folder").mkdir()
    with pytest.raises(ConflictError):
        await volume.put("/folder", b"x")
    with pytest.raises(InvalidRequestError):
        await volume.put("/file/inner", b"x")
    with pytest.raises(ConflictError):
        await volume.files.make_folder("/file", NOBODY, parents=True)
    with pytest.raises(ConflictError):
        await volume.files.make_folder("/folder", NOBODY, parents=False)
    assert (await volume.files.make_folder("/folder", NOBODY, parents=True)).name == "folder"
    with pytest.raises(InvalidRequestError):
        await volume.files.walk("/file")
    with pytest.raises(NotFoundError):
        await volume.files.make_folder("/a/b", NOBODY, parents=False)


@pytest.mark.parametrize("path", ["/", "", ".", "a/..", "a\0b", "\ud800"])
async def test_the_whole_volume_and_odd_paths_are_refused(volume: Volume, path: str) -> None:
    with pytest.raises(InvalidRequestError):
        await volume.files.remove(path)
    with pytest.raises(InvalidRequestError):
        await volume.put(path, b"x")
    assert list(volume.staging.iterdir()) == []


async def test_names_that_are_no_text_are_shown(volume: Volume) -> None:
    os.mkdir(os.fsencode(volume.root) + b"/\xff")
    (volume.root / "new\nline").touch()
    assert [one.name for one in await volume.files.walk("/")] == ["new\nline", "\ufffd"]


async def test_a_tree_deeper_than_any_path_is_listed_and_removed(volume: Volume) -> None:
    handle = os.open(volume.root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deeper", dir_fd=handle)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    assert len(await volume.files.walk("/", depth=64)) == 64
    with pytest.raises(InvalidRequestError):
        await volume.files.walk("/", depth=65)
    await volume.files.remove("/deeper")
    assert await volume.files.walk("/") == []


async def test_a_digest_is_of_all_that_a_program_sees(volume: Volume) -> None:
    seen = [await volume.files.digest()]
    await volume.put("/a/f", b"1")
    seen.append(await volume.files.digest())
    await volume.put("/a/f", b"2")
    seen.append(await volume.files.digest())
    await volume.files.change("/a/f", Ownership(mode=0o600))
    seen.append(await volume.files.digest())
    (volume.root / "link").symlink_to("a")
    seen.append(await volume.files.digest())
    assert len(set(seen)) == len(seen)
    (volume.root / "link").unlink()
    await volume.put("/a/f", b"2")
    os.utime(volume.root / "a/f", (1, 1))
    assert await volume.files.digest() == seen[3]
