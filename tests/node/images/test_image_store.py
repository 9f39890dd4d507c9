from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from tests.node.images.recipes import Shop, SlowRecipe, TinyRecipe

from aenv.models.errors import (
    CapabilityError,
    ConflictError,
    HostSetupError,
    NotFoundError,
    TemplateBuildError,
    TemplateNotReadyError,
)
from aenv.models.templates import TemplateStatus
from aenv.node.images import ImageStore
from aenv.node.images.records import CorruptImageError


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, TinyRecipe())


@pytest.fixture
def slow(tmp_path: Path) -> Shop:
    return Shop(tmp_path, SlowRecipe())


async def build(shop: Shop, store: ImageStore) -> None:
    """Build a slow recipe's image by the way of an instant one with the same digest."""
    quick = Shop(shop.root, TinyRecipe(shop.recipe.revision))
    assert (await quick.store().ensure("tiny", wait=10)).status is TemplateStatus.READY
    assert (await store.progress("tiny")).status is TemplateStatus.READY


def damage(shop: Shop) -> None:
    layer = shop.image()
    layer.chmod(0o644)
    layer.write_bytes(layer.read_bytes()[:-1])


async def test_an_unknown_template_is_not_found(shop: Shop) -> None:
    store = shop.store()
    for call in (store.open, store.progress, store.ensure, store.delete, store.verify):
        with pytest.raises(NotFoundError, match="nonsense"):
            await call("nonsense")


async def test_a_slow_template_that_is_absent_says_how_to_build_it(slow: Shop) -> None:
    store = slow.store()

    assert await store.list() == []
    assert (await store.progress("tiny")).status is TemplateStatus.ABSENT
    with pytest.raises(TemplateNotReadyError, match="aenv template build tiny") as raised:
        await store.open("tiny")
    assert raised.value.retry_after


async def test_an_instant_template_is_there_after_the_start(shop: Shop) -> None:
    store = shop.store()
    await store.start()

    assert [info.name for info in await store.list()] == ["tiny"]


async def test_all_who_open_share_one_mount(shop: Shop) -> None:
    store = shop.store()
    first, second = await asyncio.gather(store.open("tiny"), store.open("tiny"))

    assert first == second
    assert list(shop.host.mounts.mounted) == [*first.rootfs.lowers]
    assert shop.recipe.builds == 1


async def test_each_server_mounts_for_itself_and_builds_nothing_anew(shop: Shop) -> None:
    one, two = shop.store("one"), shop.store("two")

    first, second = await one.open("tiny"), await two.open("tiny")
    assert first.rootfs.lowers != second.rootfs.lowers
    assert shop.recipe.builds == 1

    await one.close()
    assert list(shop.host.mounts.mounted) == [*second.rootfs.lowers]


async def test_many_who_ask_at_once_get_one_build(shop: Shop) -> None:
    store = shop.store()

    answers = await asyncio.gather(*(store.ensure("tiny", wait=10) for _ in range(20)))

    assert {answer.status for answer in answers} == {TemplateStatus.READY}
    assert shop.recipe.builds == 1


async def test_another_server_joins_the_build_and_sees_how_far_it_is(shop: Shop) -> None:
    one, two = shop.store("one"), shop.store("two")
    shop.recipe.gate.clear()
    await one.ensure("tiny", wait=0)
    async with asyncio.timeout(10):
        while (seen := await two.progress("tiny")).step != "half way":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (seen.status, seen.fraction) == (TemplateStatus.BUILDING, 0.5)
    waiting = asyncio.create_task(two.ensure("tiny", wait=10))
    await asyncio.sleep(0)

    shop.recipe.gate.set()

    assert (await waiting).status is TemplateStatus.READY
    assert shop.recipe.builds == 1


async def test_waiting_ends_in_time_while_the_build_goes_on(shop: Shop) -> None:
    store = shop.store()
    shop.recipe.gate.clear()

    progress = await store.ensure("tiny", wait=0.05)

    assert progress.status is TemplateStatus.BUILDING
    with pytest.raises(ConflictError, match="being built"):
        await store.delete("tiny")
    shop.recipe.gate.set()
    assert (await store.ensure("tiny", wait=10)).status is TemplateStatus.READY


async def test_a_failed_build_tells_why_and_the_next_tries_again(shop: Shop) -> None:
    store = shop.store()
    shop.recipe.error = TemplateBuildError("the mirror is down")

    failed = await store.ensure("tiny", wait=10)
    assert (failed.status, failed.error) == (TemplateStatus.ERROR, "the mirror is down")
    with pytest.raises(TemplateBuildError, match="the mirror is down"):
        await store.open("tiny")

    shop.recipe.error = None
    shop.recipe.gate.clear()
    again = await store.ensure("tiny", wait=0)
    assert (again.status, again.error) == (TemplateStatus.BUILDING, None)
    shop.recipe.gate.set()
    assert (await store.ensure("tiny", wait=10)).status is TemplateStatus.READY


async def test_a_full_disk_fails_the_build_and_leaves_nothing(shop: Shop) -> None:
    shop.recipe.error = OSError(errno.ENOSPC, "No space left on device")

    failed = await shop.store().ensure("tiny", wait=10)

    assert failed.error is not None
    assert "No space left" in failed.error
    assert [p for p in (shop.root / "cache/images").iterdir() if p.is_dir()] == []


async def test_a_build_that_cannot_even_start_tells_why(
    slow: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    failed = await slow.store().ensure("tiny", wait=10)

    assert failed.status is TemplateStatus.ERROR
    assert "needs root" in str(failed.error)


async def test_a_template_that_this_host_cannot_have_does_not_stop_the_server(shop: Shop) -> None:
    shop.recipe.error = HostSetupError("this host has no /usr/bin")
    store = shop.store()

    await store.start()

    assert await store.list() == []
    assert (await store.progress("tiny")).error == "this host has no /usr/bin"


async def test_a_new_recipe_makes_a_new_image_and_the_old_mount_goes(shop: Shop) -> None:
    old = await shop.store().open("tiny")
    shop.recipe = TinyRecipe(revision="2")
    store = shop.store()

    new = await store.open("tiny")
    await store.reap()

    assert new.info.digest != old.info.digest
    assert list(shop.host.mounts.mounted) == [*new.rootfs.lowers]


async def test_a_restarted_server_takes_over_its_mounts(shop: Shop) -> None:
    before = await shop.store().open("tiny")

    restarted = shop.store()
    await restarted.start()

    assert await restarted.open("tiny") == before
    assert len(shop.host.mounts.mounted) == 1


async def test_a_damaged_image_is_noticed_and_built_anew(shop: Shop) -> None:
    store = shop.store()
    await store.ensure("tiny", wait=10)
    damage(shop)

    with pytest.raises(TemplateNotReadyError, match="damaged"):
        await store.open("tiny")

    await store.ensure("tiny", wait=10)
    assert (await store.open("tiny")).info.name == "tiny"
    assert shop.recipe.builds == 2


async def test_verify_finds_what_the_cheap_check_does_not(shop: Shop) -> None:
    store = shop.store()
    await store.ensure("tiny", wait=10)
    await store.verify("tiny")
    layer = shop.image()
    layer.chmod(0o644)
    layer.write_bytes(layer.read_bytes()[:-1] + b"X")

    with pytest.raises(CorruptImageError):
        await store.verify("tiny")

    assert (await store.progress("tiny")).status is TemplateStatus.ABSENT


async def test_a_kernel_that_cannot_mount_is_not_the_images_fault(shop: Shop) -> None:
    store = shop.store()
    await store.ensure("tiny", wait=10)
    shop.host.mounts.error = OSError(errno.ENODEV, "unknown file system")

    with pytest.raises(HostSetupError, match="unknown file system"):
        await store.open("tiny")

    assert (await store.progress("tiny")).status is TemplateStatus.READY


async def test_without_root_a_disk_image_is_refused_with_the_reason(shop: Shop) -> None:
    with pytest.raises(CapabilityError, match="root"):
        await shop.store(root=False).open("tiny")


async def test_a_deleted_template_is_gone_and_can_be_built_again(slow: Shop) -> None:
    store = slow.store()
    with pytest.raises(NotFoundError):
        await store.delete("tiny")
    await build(slow, store)
    await store.open("tiny")

    await store.delete("tiny")

    assert slow.host.mounts.mounted == {}
    assert await store.list() == []
    await build(slow, store)
