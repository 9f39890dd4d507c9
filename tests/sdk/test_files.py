"""Files and trees through the SDK, on a real agent."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
from pathlib import Path

import pytest
from tests.fakes.waiting import until_equal

from aenv import AsyncSandbox
from aenv.models.errors import AenvError, DiskFullError, InvalidRequestError, NotFoundError

MIB = 1 << 20


async def test_text_comes_back_as_written(sandbox: AsyncSandbox) -> None:
    path = await sandbox.files.write("deep/er/hello.txt", "grüße\n")
    assert path.endswith("/deep/er/hello.txt")
    assert await sandbox.files.read(path) == "grüße\n"


async def test_bytes_and_streams_of_any_size(sandbox: AsyncSandbox) -> None:
    data = os.urandom(5 * MIB)
    await sandbox.files.write("big", io.BytesIO(data))
    assert await sandbox.files.read_bytes("big") == data
    sizes = [len(piece) async for piece in sandbox.files.stream("big")]
    assert sum(sizes) == len(data)
    assert max(sizes) <= MIB


async def test_listing_and_stat_tell_what_is_there(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("mkdir -p d/sub; printf abc > d/f; chmod 640 d/f; ln -s f d/link")
    entries = {entry.name: entry for entry in await sandbox.files.list("d")}
    assert set(entries) == {"f", "link", "sub"}
    assert (entries["f"].size, entries["f"].mode, entries["f"].type) == (3, 0o640, "file")
    assert entries["sub"].is_dir
    assert (entries["link"].symlink_target or "").endswith("/d/f")
    assert (await sandbox.files.stat("d/f")).permissions == "-rw-r-----"


async def test_moving_making_removing(sandbox: AsyncSandbox) -> None:
    files = sandbox.files
    assert await files.make_dir("a/b")
    assert not await files.make_dir("a/b")
    await files.write("a/b/x", "1")
    assert (await files.move("a/b/x", "c/y")).path.endswith("/c/y")
    assert await files.exists("c/y")
    assert not await files.exists("a/b/x")
    await files.remove("c")
    await files.remove("c")
    assert not await files.exists("c")


async def test_what_is_missing_is_named(sandbox: AsyncSandbox) -> None:
    with pytest.raises(NotFoundError, match="gone"):
        await sandbox.files.read("gone")
    with pytest.raises(NotFoundError):
        await sandbox.files.list("gone")
    with pytest.raises(InvalidRequestError):
        await sandbox.files.read(".")


async def test_a_watch_sees_everything_after_it_returned(sandbox: AsyncSandbox) -> None:
    await sandbox.files.make_dir("w")
    async with await sandbox.files.watch("w") as watch:
        await sandbox.files.write("w/new", "1")
        seen = []
        async for event in watch:
            seen.append((event.name, event.type))
            if event.type == "write":
                break
    assert seen[0] == ("new", "create")
    with pytest.raises(NotFoundError):
        await sandbox.files.watch("nowhere")


def make_tree(root: Path) -> None:
    (root / "bin").mkdir(parents=True)
    (root / "bin/tool").write_text("#!/bin/sh\necho tool\n")
    (root / "bin/tool").chmod(0o755)
    (root / "data.bin").write_bytes(os.urandom(3 * MIB))
    (root / "empty").mkdir()
    (root / "link").symlink_to("bin/tool")
    (root / "grüße.txt").write_text("x")
    os.utime(root / "data.bin", (1_000_000_000, 1_000_000_000))
    os.utime(root / "empty", (1_100_000_000, 1_100_000_000))


def facts(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            stat = path.stat()
            content = path.read_bytes() if path.is_file() else None
            found[name] = (stat.st_mode & 0o777, int(stat.st_mtime), content)
    return found


async def test_a_tree_goes_there_and_back_unchanged(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    copied: list[str] = []
    await sandbox.files.upload(
        tmp_path / "tree", "there", progress=lambda path, count: copied.append(path)
    )
    assert "there/bin/tool" in copied
    assert (await sandbox.exec("there/link")).stdout == "tool\n"
    skipped = await sandbox.files.download("there", tmp_path / "back")
    assert skipped == []
    assert facts(tmp_path / "back") == facts(tmp_path / "tree")


async def test_into_a_folder_that_exists_under_its_own_name(
    sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    (tmp_path / "one").write_text("1")
    await sandbox.files.make_dir("dir")
    await sandbox.files.upload(tmp_path / "one", "dir")
    await sandbox.files.upload(tmp_path / "one", "dir/two")
    assert {e.name for e in await sandbox.files.list("dir")} == {"one", "two"}
    (tmp_path / "got").mkdir()
    await sandbox.files.download("dir", tmp_path / "got")
    await sandbox.files.download("dir/two", tmp_path / "renamed")
    assert (tmp_path / "got/dir/one").read_text() == "1"
    assert (tmp_path / "renamed").read_text() == "1"


@pytest.mark.parametrize("tar", [("/bin/sh", "-c", "exit 127", "tar"), ("/no/shell", "-c", "tar")])
async def test_a_tree_without_tar_in_the_guest(
    sandbox: AsyncSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tar: tuple[str, ...]
) -> None:
    monkeypatch.setattr("aenv.sdk.trees._TAR", tar)
    make_tree(tmp_path / "tree")
    await sandbox.files.upload(tmp_path / "tree", "there")
    assert (await sandbox.exec("cat there/link")).stdout == "#!/bin/sh\necho tool\n"
    await sandbox.exec("rm there/link; ln -s /etc/passwd there/link")
    skipped = await sandbox.files.download("there", tmp_path / "back")
    assert len(skipped) == 1
    assert (tmp_path / "back/data.bin").read_bytes() == (tmp_path / "tree/data.bin").read_bytes()


async def test_a_failed_copy_says_why_and_ends(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        await sandbox.files.upload(tmp_path / "absent", "x")
    with pytest.raises(NotFoundError):
        await sandbox.files.download("absent", tmp_path)
    (tmp_path / "f").write_bytes(b"x" * 5 * MIB)
    await sandbox.exec("mkdir locked")
    with pytest.raises(AenvError, match="tar"):
        await sandbox.files.upload(tmp_path / "f", "/proc/sys/f")


async def test_progress_counts_the_bytes_as_they_go(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(3 * MIB + 1))
    told: list[int] = []
    await sandbox.files.upload(tmp_path / "f", "f", progress=lambda _, count: told.append(count))
    assert sum(told) == 3 * MIB + 1
    assert max(told) <= MIB


@pytest.mark.parametrize(
    "words", ["Cannot write: No space left on device", "Wrote only 512 of 262144 bytes"]
)
async def test_a_full_disk_is_told_whatever_was_still_to_come_and_no_part_stays(
    sandbox: AsyncSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    full = f"head -c 100000 > $1; echo 'tar: part: {words}' >&2; exit 2"
    monkeypatch.setattr("aenv.sdk.trees._TAR", ("/bin/sh", "-c", full, "tar"))
    with (tmp_path / "part").open("wb") as file:
        file.truncate(100 * MIB)
    with pytest.raises(DiskFullError, match="disk is full"):
        await sandbox.files.upload(tmp_path / "part", "part")
    assert await sandbox.files.list(".") == []


async def test_a_tar_that_is_killed_ends_the_copy(
    sandbox: AsyncSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.sdk.trees._TAR", ("/bin/sh", "-c", "sleep 600 # $@", "tar"))
    with (tmp_path / "f").open("wb") as file:
        file.truncate(100 * MIB)
    copying = asyncio.create_task(sandbox.files.upload(tmp_path / "f", "f"))
    async with asyncio.timeout(30):
        while not (found := await sandbox.processes()):  # noqa: ASYNC110  starting has no event
            await asyncio.sleep(0.01)
    await (await sandbox.process(found[0].pid)).kill()
    with pytest.raises(AenvError, match="tar ended with status 137"):
        await copying


@pytest.mark.parametrize("tar", ["real", "missing"])
async def test_a_copy_that_is_interrupted_leaves_the_file_that_was_there(
    sandbox: AsyncSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tar: str
) -> None:
    if tar == "missing":
        monkeypatch.setattr("aenv.sdk.trees._TAR", ("/no/shell",))
    here = tmp_path / "f"
    here.write_bytes(b"old")
    await sandbox.files.upload(here, "f")
    with here.open("wb") as file:
        file.truncate(1000 * MIB)

    task = asyncio.create_task(sandbox.files.upload(here, "f"))
    await until_equal(lambda: _has_interim(sandbox), True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until_equal(lambda: _names(sandbox), ["f"])
    assert await sandbox.files.read("f") == "old"


async def test_a_download_that_is_interrupted_leaves_the_file_that_was_there(
    sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    await sandbox.exec("truncate -s 1000M f")
    place = tmp_path / "place"
    place.mkdir()
    (place / "f").write_text("old")
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    def tell(path: str, count: int) -> None:
        loop.call_soon_threadsafe(begun.set)

    task = asyncio.create_task(sandbox.files.download("f", place, progress=tell))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [path.name for path in place.iterdir()] == ["f"]
    assert (place / "f").read_text() == "old"


async def test_missing_folders_are_made_there_and_not_here(
    sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("1")
    await sandbox.files.upload(tmp_path / "f", "new/deep/g")
    await sandbox.files.upload(tmp_path / "f", "other/deep/")
    found = (await sandbox.exec("find . -type f | sort")).stdout.split()
    assert found == ["./new/deep/g", "./other/deep/f"]
    with pytest.raises(NotFoundError, match="no folder"):
        await sandbox.files.download("new/deep/g", tmp_path / "new/g")
    assert not (tmp_path / "new").exists()


async def test_an_error_in_our_own_progress_ends_the_copy(
    sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    make_tree(tmp_path / "tree")

    def stumble(path: str, count: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sandbox.files.upload(tmp_path / "tree", "there", progress=stumble)
    await sandbox.files.upload(tmp_path / "tree", "whole")
    with pytest.raises(ZeroDivisionError):
        await sandbox.files.download("whole", tmp_path / "back", progress=stumble)
    await until_equal(sandbox.processes, [])


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
async def test_links_that_point_outside_are_left_out(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    await sandbox.exec("mkdir -p t/in; ln -s /etc/passwd t/abs; ln -s ../../x t/up; echo 1 > t/f")
    skipped = await sandbox.files.download("t", tmp_path / "t")
    assert len(skipped) == 2
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["f", "in"]


async def _names(sandbox: AsyncSandbox) -> list[str]:
    return [entry.name for entry in await sandbox.files.list(".")]


async def _has_interim(sandbox: AsyncSandbox) -> bool:
    return any(name.startswith(".aenv-") for name in await _names(sandbox))
