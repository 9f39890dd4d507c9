"""From a name to an image on the shelf: shared layers, moved tags, what is freed and when."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from tests.fakes.layers import archive, entry, folder, image, write_layout, write_saved
from tests.fakes.registry import Registry, serve
from tests.node.images.recipes import MountingHost

from aenv.models.errors import ConflictError, NotFoundError, TemplateBuildError
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.models.templates import TemplateProgress, TemplateStatus
from aenv.node.host import Host
from aenv.node.images import ImageStore, builtin
from aenv.node.images.oci import fetches
from aenv.node.images.oci.conversions import read_folders
from aenv.node.images.records import CorruptImageError, Shelf
from aenv.node.images.worker import command, environment

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"),
]

BASE = archive(folder("etc", mode=0o750, uid=9), entry("etc/profile", b"PATH=/bin\n"))
TOOL = archive(entry("etc/tool", b"1"))
LONG = 60.0


@dataclass
class Depot:
    """One host: its cache, a store with mounts that are only remembered, and a registry."""

    root: Path
    registry: Registry
    host: MountingHost = field(default_factory=MountingHost)

    @property
    def folders(self) -> Folders:
        names = ("data", "cache", "config", "run")
        return Folders(**{name: self.root / name for name in names})

    @property
    def shelf(self) -> Shelf:
        return Shelf(self.folders.cache / "images")

    def store(self) -> ImageStore:
        return ImageStore(Settings(folders=self.folders), cast("Host", self.host), names=())

    def push(self, name: str, *tars: bytes, **config: Any) -> str:
        return self.registry.push(name, image(*tars, config=config))

    def layers(self) -> set[str]:
        return {path.parent.name for path in self.shelf.layers.root.glob("*/layer.erofs")}

    def fetched(self, tar: bytes) -> int:
        """How often its blob was asked for."""
        blob = image(tar).layers[0]
        return len(self.registry.asked(blob))


@pytest.fixture
def depot(tmp_path: Path) -> Iterator[Depot]:
    with serve() as registry:
        yield Depot(tmp_path, registry)


async def pulled(store: ImageStore, name: str, **more: Any) -> TemplateProgress:
    now = await store.ensure(name, wait=LONG, **more)
    assert now.status is TemplateStatus.READY, now
    return now


async def test_an_image_is_there_with_what_it_says_of_itself(depot: Depot) -> None:
    name = depot.push(
        "a:1",
        BASE,
        TOOL,
        Env=["PATH=/opt/bin:/bin", "EMPTY=", "nonsense"],
        User="app:grp",
        WorkingDir="/srv/app",
        Entrypoint=["/run.sh"],
        Cmd=["a", "b"],
        ExposedPorts={"8080/tcp": {}},
    )
    store = depot.store()
    await pulled(store, name)

    [info] = await store.list()
    opened = await store.open(name)

    assert info.name == name
    assert info.digest == depot.registry.tags["a:1"].digest.removeprefix("sha256:")
    assert (info.default_user, info.workdir) == ("app:grp", "/srv/app")
    assert info.env == {"PATH": "/opt/bin:/bin", "EMPTY": ""}
    assert info.image is not None
    assert (info.image.entrypoint, info.image.cmd) == (("/run.sh",), ("a", "b"))
    assert info.image.ports == ("8080/tcp",)
    assert info.size_bytes == sum(p.stat().st_size for p in depot.shelf.root.rglob("layer.erofs"))
    assert len(opened.rootfs.lowers) == 3  # two layers and the image's own top
    assert [depot.host.mounts.mounted[one] for one in opened.rootfs.lowers]
    await store.close()
    assert not depot.host.mounts.mounted


async def test_layers_are_fetched_once_and_shared(depot: Depot) -> None:
    first = depot.push("a:1", BASE, TOOL)
    second = depot.push("b:1", BASE, archive(entry("other", b"2")))
    store = depot.store()
    await pulled(store, first)
    before = depot.layers()
    await pulled(store, second)

    assert depot.fetched(BASE) == 1
    assert len(depot.layers() - before) <= 2


async def test_two_servers_that_want_one_image_fetch_it_once(depot: Depot) -> None:
    name = depot.push("a:1", BASE, TOOL)
    stores = [depot.store(), depot.store()]

    await asyncio.gather(*(pulled(store, name) for store in stores for _ in range(3)))

    assert depot.fetched(BASE) == depot.fetched(TOOL) == 1


async def test_two_images_with_one_layer_fetch_it_once(depot: Depot) -> None:
    names = [depot.push(f"{n}:1", BASE, archive(entry(n, b"x"))) for n in ("a", "b", "c")]
    store = depot.store()

    await asyncio.gather(*(pulled(store, name) for name in names))

    assert depot.fetched(BASE) == 1


async def test_a_moved_tag_means_the_old_image_until_it_is_pulled(depot: Depot) -> None:
    name = depot.push("a:1", BASE)
    store = depot.store()
    await pulled(store, name)
    [old] = await store.list()
    depot.push("a:1", BASE, TOOL)

    await pulled(store, name)
    assert await store.list() == [old]

    await pulled(store, name, anew=True)
    [new] = await store.list()
    assert new.digest != old.digest
    assert await store.open_exact(name, old.digest) is None


async def test_an_image_that_is_needed_outlives_its_tag(depot: Depot, tmp_path: Path) -> None:
    name = depot.push("a:1", TOOL)
    store = depot.store()
    await pulled(store, name)
    [old] = await store.list()
    holder = tmp_path / "sandbox"
    holder.touch()
    await store.pin(name, old.digest, holder)
    depot.push("a:1", BASE)

    await pulled(store, name, anew=True)

    kept = await store.open_exact(name, old.digest)
    assert kept is not None
    assert kept.info == old
    holder.unlink()
    await pulled(store, name, anew=True)
    assert await store.open_exact(name, old.digest) is None
    assert len(depot.layers()) == 1


async def test_deleting_frees_the_layers_nobody_else_has(depot: Depot, tmp_path: Path) -> None:
    first = depot.push("a:1", BASE, TOOL)
    second = depot.push("b:1", BASE)
    store = depot.store()
    await pulled(store, first)
    await pulled(store, second)
    await store.open(first)
    holder = tmp_path / "sandbox"
    holder.touch()
    [_, info] = sorted(await store.list(), key=lambda one: one.name)
    await store.pin(second, info.digest, holder)

    await store.delete(first)

    assert [one.name for one in await store.list()] == [second]
    assert len(depot.layers()) == 1
    assert {one.parent.name for one in depot.host.mounts.mounted.values()} == depot.layers()
    with pytest.raises(ConflictError, match="needed by 1"):
        await store.delete(second)
    holder.unlink()
    await store.delete(second)
    assert depot.layers() == set()
    assert not depot.host.mounts.mounted
    with pytest.raises(NotFoundError):
        await store.delete(second)


async def test_an_image_of_two_names_is_held_by_the_last(depot: Depot, tmp_path: Path) -> None:
    names = [depot.push(tag, BASE, TOOL) for tag in ("a:1", "b:1")]
    store = depot.store()
    for name in names:
        await pulled(store, name)
    holder = tmp_path / "sandbox"
    holder.touch()
    [digest] = {one.digest for one in await store.list()}
    await store.pin(names[0], digest, holder)

    await store.delete(names[0])

    kept = await store.open_exact(names[0], digest)
    assert kept is not None
    assert kept.info.name == names[1]
    with pytest.raises(ConflictError, match="needed by 1"):
        await store.delete(names[1])


@pytest.mark.parametrize("name", ["base", "base:latest", "host:1", "library/base"])
async def test_files_are_not_called_as_a_template_of_ours(
    depot: Depot, tmp_path: Path, name: str
) -> None:
    layout = write_layout(tmp_path / "layout", {"one": image(BASE)})
    with pytest.raises(ConflictError, match="template of ours"):
        await depot.store().ensure(name, source=f"oci:{layout}:one")


async def test_a_failed_pull_says_why_and_leaves_the_image_that_is_there(depot: Depot) -> None:
    name = depot.push("a:1", BASE)
    store = depot.store()
    await pulled(store, name)
    depot.push("a:1", archive(entry("../x", b"")))

    now = await store.ensure(name, wait=LONG, anew=True)

    assert now.status is TemplateStatus.ERROR
    assert "leads out of the image" in (now.error or "")
    assert (await store.open(name)).info.name == name
    depot.push("a:1", TOOL)
    await pulled(store, name, anew=True)


async def test_an_image_that_no_registry_has(depot: Depot) -> None:
    store = depot.store()
    name = f"{depot.registry.host}/nope:1"

    assert (await store.ensure(name, wait=LONG)).status is TemplateStatus.ERROR
    with pytest.raises(TemplateBuildError, match="the registry has no"):
        await store.open(name)
    assert await store.list() == []


async def test_a_killed_pull_goes_on_with_what_it_had(depot: Depot) -> None:
    content = os.urandom(8 << 20)
    big = archive(entry("big", content))
    name = depot.push("a:1", BASE, big)
    depot.registry.faults.cut = [4 << 20, 0, 0, 0, 0, 0, 0, 0]
    blobs = depot.shelf.root / "blobs"
    worker = await asyncio.create_subprocess_exec(
        *command(builtin.recipe(name, depot.folders)),
        stdin=subprocess.PIPE,
        env=environment(depot.folders),
        start_new_session=True,
    )
    while not any(path.stat().st_size > 1 << 20 for path in blobs.glob("*")):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    os.killpg(worker.pid, signal.SIGKILL)
    await worker.wait()
    depot.registry.faults.cut.clear()
    blob = image(big).layers[0]
    before = len(depot.registry.asked(blob))

    store = depot.store()
    await store.start()
    await pulled(store, name)

    later = depot.registry.asked(blob)[before:]
    assert [headers.get("range", "")[:6] for headers in later] == ["bytes="]
    assert not list(blobs.iterdir())
    assert not list(depot.shelf.root.glob(".oci-*-*"))


async def test_a_damaged_layer_is_made_anew(depot: Depot) -> None:
    name = depot.push("a:1", BASE)
    store = depot.store()
    await pulled(store, name)
    [layer] = depot.shelf.layers.root.glob("*/layer.erofs")
    layer.chmod(0o644)
    layer.write_bytes(layer.read_bytes()[:-1] + b"!")

    other = depot.push("b:1", BASE, TOOL)
    await pulled(store, other)

    with pytest.raises(CorruptImageError):
        await store.verify(name)

    await pulled(store, name)
    await store.verify(name)
    await store.verify(other)


async def test_a_layer_twice_in_an_image(depot: Depot) -> None:
    name = depot.push("a:1", BASE, TOOL, BASE)
    store = depot.store()
    await pulled(store, name)

    assert len(set((await store.open(name)).rootfs.lowers)) == len(
        (await store.open(name)).rootfs.lowers
    )


async def test_a_long_chain_is_merged_below(depot: Depot) -> None:
    name = depot.push("a:1", *(archive(entry(f"f{n}", b"x")) for n in range(80)))
    store = depot.store()
    await pulled(store, name)

    assert len((await store.open(name)).rootfs.lowers) == fetches.MOST_LAYERS


async def test_progress_tells_of_every_layer(depot: Depot) -> None:
    name = depot.push("a:1", BASE, archive(entry("big", os.urandom(2 << 20))))
    seen: list[Any] = []
    recipe = builtin.recipe(name, depot.folders)
    work = depot.root / "work"
    work.mkdir()

    await asyncio.to_thread(recipe.build, work, lambda f, s, parts=(): seen.append((f, s, parts)))

    fractions = [fraction for fraction, _, _ in seen]
    assert fractions == sorted(fractions)
    last = seen[-2][2]
    assert [part.state for part in last] == ["done", "done"]
    assert all(part.done == part.total for part in last)
    assert any(part.state == "fetching" for _, _, parts in seen for part in parts)


async def test_a_layout_folder_and_a_saved_archive(depot: Depot, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", {"one": image(BASE), "two": image(BASE, TOOL)})
    saved = write_saved(tmp_path / "saved.tar", [TOOL, BASE, TOOL], "x/y:2", {"User": "ann"})
    store = depot.store()

    await pulled(store, "local/two:1", source=f"oci:{layout}:two")
    await pulled(store, "x/y:2", source=f"docker-archive:{saved}")

    found = {info.name: info for info in await store.list()}
    assert set(found) == {"local/two:1", "x/y:2"}
    assert found["x/y:2"].default_user == "ann"
    assert found["local/two:1"].digest == image(BASE, TOOL).digest.removeprefix("sha256:")
    assert saved.exists()
    assert (layout / "blobs/sha256").is_dir()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("oci:{}/layout", "several images"),
        ("oci:{}/layout:three", "no such image"),
        ("oci:{}/absent", "there is no"),
        ("docker-archive:{}/absent", "no such file"),
        ("docker-archive:{}/noise", "no archive of docker save"),
        ("docker-archive:/dev/zero", "lacks the file"),
        ("oci:{}/spoilt", "other bytes"),
    ],
)
async def test_files_that_hold_no_such_image(
    depot: Depot, tmp_path: Path, source: str, said: str
) -> None:
    write_layout(tmp_path / "layout", {"one": image(BASE), "two": image(TOOL)})
    spoilt = write_layout(tmp_path / "spoilt", {"one": image(BASE)})
    blob = image(BASE).layers[0].removeprefix("sha256:")
    (spoilt / "blobs/sha256" / blob).write_bytes(b"other")
    (tmp_path / "noise").write_bytes(os.urandom(4096))

    now = await depot.store().ensure("local/x:1", wait=LONG, source=source.format(tmp_path))

    assert now.status is TemplateStatus.ERROR
    assert said in (now.error or "")


async def test_an_implied_folder_keeps_its_owner(depot: Depot) -> None:
    name = depot.push("a:1", BASE, TOOL)
    store = depot.store()
    await pulled(store, name)

    record = depot.shelf.find(builtin.recipe(name, depot.folders))
    assert record is not None
    top = read_folders(depot.shelf.layers.folders(record.layers[0]))
    assert (top[b"etc"].mode, top[b"etc"].uid, top[b"etc"].implied) == (0o750, 9, False)
