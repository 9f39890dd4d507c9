"""Fetching from a registry that asks for tokens, is busy, breaks off, or lies."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.layers import MACHINE, OCI_INDEX, Image, archive, descriptor, entry, image, index
from tests.fakes.registry import Registry, serve

from aenv.models.errors import AenvError, InvalidRequestError, NotFoundError
from aenv.models.references import ImageReference
from aenv.models.settings import RegistrySettings
from aenv.node.images.oci import hosts
from aenv.node.images.oci.authorization import LoginError
from aenv.node.images.oci.credentials import Credentials
from aenv.node.images.oci.manifests import BadImageError, Described, Descriptor
from aenv.node.images.oci.registries import Patience, RegistryError, RegistrySource
from aenv.node.images.oci.sources import configuration, describe

QUICK = Patience(connect=5, read=1, attempts=3, first_pause=0.01, longest_pause=0.05)
LAYER = archive(entry("file", bytes(range(256)) * 4000))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serve() as found:
        yield found


@asynccontextmanager
async def opened(name: str, login: Credentials | None = None) -> AsyncIterator[RegistrySource]:
    reference = ImageReference.parse(name)
    source = RegistrySource(reference, reference.registry, login, insecure=True, patience=QUICK)
    try:
        yield source
    finally:
        await source.close()


async def described(name: str, login: Credentials | None = None) -> Described:
    async with opened(name, login) as source:
        found = await describe(source)
        await configuration(source, found)
        return found


async def fetched(name: str, scratch: Path) -> bytes:
    """The first layer's blob."""
    async with opened(name) as source:
        layer = (await describe(source)).manifest.layers[0]
        return (await source.blob(layer, scratch, lambda _: None)).read_bytes()


async def test_an_image_by_tag_and_by_digest(registry: Registry) -> None:
    made = image(LAYER)
    name = registry.push("team/tool:1", made)

    assert (await described(name)).digest == made.digest.removeprefix("sha256:")
    assert await described(f"{registry.host}/team/tool@{made.digest}") == await described(name)


async def test_the_index_entry_for_this_machine(registry: Registry) -> None:
    own, other = image(LAYER), image(LAYER, architecture="s390x")
    name = registry.push("a:1", index(s390x=other, **{MACHINE: own}))

    assert (await described(name)).digest == own.digest.removeprefix("sha256:")


async def test_an_index_without_this_machine_says_what_there_is(registry: Registry) -> None:
    name = registry.push("a:1", index(s390x=image(LAYER, architecture="s390x")))

    with pytest.raises(BadImageError, match="linux/s390x"):
        await described(name)


async def test_tokens_are_asked_for_anonymously_and_with_a_login(registry: Registry) -> None:
    name = registry.push("a:1", image(LAYER))
    registry.tokens = True
    assert await described(name)

    registry.login = ("ann", "secret")
    with pytest.raises(LoginError, match="refuses"):
        await described(name)
    assert await described(name, Credentials("ann", "secret"))
    assert "secret" not in repr(Credentials("ann", "secret"))


async def test_a_token_that_ran_out_is_renewed(registry: Registry) -> None:
    name = registry.push("a:1", image(LAYER))
    registry.tokens = True
    async with opened(name) as source:
        found = await describe(source)
        registry.token = "another"
        assert await configuration(source, found)


async def test_a_registry_with_basic_login(registry: Registry) -> None:
    name = registry.push("a:1", image(LAYER))
    registry.basic, registry.login = True, ("ann", "secret")

    assert await described(name, Credentials("ann", "secret"))
    with pytest.raises(RegistryError, match="HTTP 401"):
        await described(name)


async def test_a_busy_registry_is_asked_again(registry: Registry) -> None:
    name = registry.push("a:1", image(LAYER))
    registry.faults.statuses = [(429, {"Retry-After": "0"}), (503, {})]

    assert await described(name)


async def test_a_registry_that_stays_busy(registry: Registry) -> None:
    name = registry.push("a:1", image(LAYER))
    registry.faults.statuses = [(500, {})] * 10

    said = f"{registry.host} failed 3 times in a row: HTTP 500"
    with pytest.raises(RegistryError, match=said):
        await described(name)


async def test_a_missing_image(registry: Registry) -> None:
    with pytest.raises(NotFoundError, match="nope:1"):
        await described(f"{registry.host}/nope:1")


async def test_a_registry_that_is_not_there() -> None:
    with pytest.raises(RegistryError, match="in a row"):
        await described("127.0.0.1:1/a:1")


async def test_a_broken_transfer_goes_on_where_it_stopped(
    registry: Registry, tmp_path: Path
) -> None:
    made = image(LAYER, compression="none")
    name = registry.push("a:1", made)
    registry.faults.cut = [1000, 500_000, 10]

    assert await fetched(name, tmp_path / "blob") == made.blobs[made.layers[0]]
    ranges = [headers.get("range") for headers in registry.asked(made.layers[0])]
    assert ranges == [None, "bytes=1000-", "bytes=501000-", "bytes=501010-"]


async def test_a_part_that_an_earlier_process_left_is_used(
    registry: Registry, tmp_path: Path
) -> None:
    made = image(LAYER, compression="none")
    name = registry.push("a:1", made)
    blob = made.blobs[made.layers[0]]
    (tmp_path / "blob").write_bytes(blob[:700_000])

    assert await fetched(name, tmp_path / "blob") == blob
    assert [h.get("range") for h in registry.asked(made.layers[0])] == ["bytes=700000-"]


async def test_a_registry_without_ranges_begins_anew(registry: Registry, tmp_path: Path) -> None:
    made = image(LAYER, compression="none")
    name = registry.push("a:1", made)
    registry.faults.ignore_ranges = True
    registry.faults.cut = [4000]

    assert await fetched(name, tmp_path / "blob") == made.blobs[made.layers[0]]


@pytest.mark.parametrize("left", [b"x" * 5000, b"x" * 5_000_000])
async def test_a_spoilt_part_is_fetched_again(
    registry: Registry, tmp_path: Path, left: bytes
) -> None:
    made = image(LAYER, compression="none")
    name = registry.push("a:1", made)
    (tmp_path / "blob").write_bytes(left)

    assert await fetched(name, tmp_path / "blob") == made.blobs[made.layers[0]]


async def test_a_stalled_transfer_is_given_up_and_continued(
    registry: Registry, tmp_path: Path
) -> None:
    made = image(LAYER, compression="none")
    name = registry.push("a:1", made)
    registry.faults.stall = over = threading.Event()
    try:
        assert await fetched(name, tmp_path / "blob") == made.blobs[made.layers[0]]
    finally:
        over.set()


@pytest.mark.parametrize("change", [lambda blob: blob[:-1] + b"!", lambda blob: blob + b"more"])
async def test_other_bytes_than_the_digest_names(
    registry: Registry, tmp_path: Path, change: Any
) -> None:
    made = image(LAYER)
    name = registry.push("a:1", made)
    registry.blobs[made.layers[0]] = change(registry.blobs[made.layers[0]])

    with pytest.raises(BadImageError, match="delivers"):
        await fetched(name, tmp_path / "blob")


async def test_another_manifest_than_the_digest_names(registry: Registry) -> None:
    made, other = image(LAYER), image(LAYER, config={"User": "evil"})
    registry.push("a:1", made)
    registry.blobs[made.digest] = other.manifest

    with pytest.raises(BadImageError, match="other bytes"):
        await described(f"{registry.host}/a@{made.digest}")


async def test_another_host_is_not_told_the_token(registry: Registry, tmp_path: Path) -> None:
    made = image(LAYER)
    registry.tokens = True
    with serve(Registry(blobs=made.blobs)) as storage:
        name = registry.push("a:1", made)
        registry.faults.redirect = f"http://localhost:{storage.port}"

        await fetched(name, tmp_path / "blob")

        assert all("authorization" not in headers for _, headers in storage.requests)
        assert storage.asked(made.layers[0])


async def test_redirects_without_end(registry: Registry, tmp_path: Path) -> None:
    name = registry.push("a:1", image(LAYER))
    registry.faults.redirect = f"http://{registry.host}"

    with pytest.raises(RegistryError, match="redirects more than"):
        await fetched(name, tmp_path / "blob")


def changed(made: Image, **fields: Any) -> Image:
    manifest = {**json.loads(made.manifest), **fields}
    kind = str(manifest.get("mediaType"))
    return Image(json.dumps(manifest).encode(), kind, made.blobs)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"mediaType": "application/vnd.docker.distribution.manifest.v1+json"},
            "no image or index",
        ),
        ({"config": descriptor("application/vnd.cncf.helm.config.v1+json", b"{}")}, "no container"),
        ({"layers": [descriptor("text/html", b"")]}, "unknown type"),
        ({"layers": [{"digest": "../../etc/passwd", "size": 1}]}, "malformed"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": 1 << 50}]}, "malformed"),
        ({"layers": [descriptor("x", b"")] * 600}, "malformed"),
        ({"layers": "none"}, "malformed"),
    ],
)
async def test_manifests_of_other_kinds(
    registry: Registry, fields: dict[str, Any], said: str
) -> None:
    name = registry.push("a:1", changed(image(LAYER), **fields))

    with pytest.raises(BadImageError, match=said):
        await described(name)


async def test_a_manifest_that_is_too_large(registry: Registry) -> None:
    made = changed(image(LAYER), annotations={"x": "y" * (5 << 20)})

    with pytest.raises(BadImageError, match="larger than"):
        await described(registry.push("a:1", made))


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"[" * 100_000, b"\xff"])
async def test_a_manifest_that_is_none(registry: Registry, content: bytes) -> None:
    with pytest.raises(BadImageError):
        await described(registry.push("a:1", Image(content)))


async def test_indexes_of_indexes_end(registry: Registry) -> None:
    nested = image(LAYER)
    for _ in range(4):
        entries = [descriptor(nested.kind, nested.manifest)]
        content = json.dumps({"mediaType": OCI_INDEX, "manifests": entries}).encode()
        nested = Image(content, OCI_INDEX, {**nested.blobs, nested.digest: nested.manifest})

    with pytest.raises(BadImageError, match="index of indexes"):
        await described(registry.push("a:1", nested))


async def test_a_configuration_of_other_layers(registry: Registry) -> None:
    with pytest.raises(BadImageError, match="names 2"):
        await described(registry.push("a:1", image(LAYER, diff_ids=["sha256:" + "0" * 64] * 2)))


async def test_a_mirror_is_asked_first_and_the_registry_where_it_fails() -> None:
    made = image(LAYER)
    with serve() as mirror, serve() as origin:
        origin.push("a:1", made)
        rule = f"{origin.host}={mirror.host}"
        settings = RegistrySettings(mirrors=(rule,))
        source = hosts.open_registry(ImageReference.parse(f"{origin.host}/a:1"), settings)
        assert (await describe(source)).manifest
        assert mirror.requests
        assert origin.requests

        mirror.push("a:1", made)
        origin.requests.clear()
        await describe(source)
        await source.close()
        assert not origin.requests


async def test_only_registries_that_the_operator_allows() -> None:
    settings = RegistrySettings(allow=("*.example.com", "docker.io"))
    for allowed in ("python", "a.example.com/x"):
        await hosts.open_registry(ImageReference.parse(allowed), settings).close()

    with pytest.raises(InvalidRequestError, match=r"registry\.allow"):
        hosts.open_registry(ImageReference.parse("ghcr.io/a/b"), settings)


async def test_cancelling_lets_go(registry: Registry, tmp_path: Path) -> None:
    made = image(LAYER)
    name = registry.push("a:1", made)
    registry.faults.stall = over = threading.Event()
    task = asyncio.create_task(fetched(name, tmp_path / "blob"))
    while not registry.asked(made.layers[0]):  # noqa: ASYNC110 - another thread's list
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    over.set()


def test_faults_have_names() -> None:
    for kind in (RegistryError, LoginError, BadImageError):
        assert issubclass(kind, AenvError)
        assert kind.code
    with pytest.raises(ValueError, match="digest"):
        Descriptor(digest="md5:1", size=1)
