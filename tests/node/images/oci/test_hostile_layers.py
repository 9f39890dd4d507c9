"""What no honest layer holds is refused by name, and nothing of it gets anywhere."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from tests.fakes.layers import archive, digest, entry, folder, link, pack

from aenv.models.errors import DiskFullError
from aenv.node.images.oci import imagefiles, tars, trees
from aenv.node.images.oci.conversions import convert
from aenv.node.images.oci.manifests import BadImageError
from aenv.node.images.oci.trees import HostileLayerError


def refused(folder: Path, blob: bytes, diff_id: str | None = None) -> str:
    """Why the layer is refused."""
    path, target = folder / "blob", folder / "target"
    path.write_bytes(blob)
    target.mkdir()
    with pytest.raises((HostileLayerError, BadImageError)) as raised:
        convert([(path, (diff_id or digest(blob)).removeprefix("sha256:"))], target)
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../../etc/cron.d/x", "leads out of the image"),
        ("/../x", "leads out of the image"),
        ("a/../../x", "leads out of the image"),
        ("a" * 256, "too long a name"),
        ("/".join(["d" * 200] * 25), "too long a name"),
        (".wh.", "removes no file's name"),
        ("a/.wh...", "removes no file's name"),
    ],
)
def test_names(tmp_path: Path, name: str, said: str) -> None:
    assert said in refused(tmp_path, archive(entry(name, b"x")))


def test_an_absolute_name_is_inside_the_image(tmp_path: Path) -> None:
    blob = archive(entry("/etc/aenv-was-here", b"x"))
    (tmp_path / "blob").write_bytes(blob)

    convert([(tmp_path / "blob", digest(blob).removeprefix("sha256:"))], tmp_path)

    assert not Path("/etc/aenv-was-here").exists()
    assert b"aenv-was-here" in (tmp_path / "layer.erofs").read_bytes()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    blob = archive(link("out", "/etc"), entry("out/passwd", b"x"))

    assert "lies below 'out', which is no folder" in refused(tmp_path, blob)


@pytest.mark.parametrize("target", ["../../etc/shadow", "/etc/shadow", "folder", "gone", "missing"])
def test_hard_links_lead_to_files_of_the_layer(tmp_path: Path, target: str) -> None:
    blob = archive(folder("folder"), entry(".wh.gone"), link("l", target, hard=True))

    said = refused(tmp_path, blob)

    assert "is no file of this layer" in said or "leads out of the image" in said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": tarfile.CHRTYPE, "devmajor": 1 << 20}, "impossible number"),
        ({"type": tarfile.BLKTYPE, "devminor": 1 << 20}, "impossible number"),
        ({"uid": 2**32 - 1}, "impossible owner"),
        ({"gid": -1}, "impossible owner"),
        ({"type": b"Z"}, "unknown type"),
        ({"type": tarfile.SYMTYPE, "linkname": ""}, "impossible target"),
        ({"pax_headers": {"SCHILY.xattr.user.": "x"}}, "unusable attribute"),
        ({"pax_headers": {"SCHILY.xattr.user.a": "x" * 70_000}}, "too many attributes"),
    ],
)
def test_entries(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    made = io.BytesIO()
    kind = tarfile.GNU_FORMAT if fields.get("gid") == -1 else tarfile.PAX_FORMAT
    with tarfile.open(fileobj=made, mode="w", format=kind) as tar:
        tar.addfile(entry("x", **fields)[0])

    assert said in refused(tmp_path, made.getvalue())


def test_the_root_is_a_folder(tmp_path: Path) -> None:
    assert "unknown type" in refused(tmp_path, archive(link("./", "/etc")))


def test_more_entries_than_any_layer_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_ENTRIES", 100)

    said = refused(tmp_path, archive(*(entry(f"f{n}") for n in range(200))))

    assert "more than 100 entries" in said


def test_a_file_that_claims_any_size(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("huge")
    huge.size = 1 << 50

    assert "claims more than 256 GiB" in refused(tmp_path, huge.tobuf(tarfile.GNU_FORMAT))


def test_a_sparse_file_that_claims_any_size(tmp_path: Path) -> None:
    pax = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)}
    blob = archive(entry("x", b"0\n".ljust(512, b"\0"), pax_headers=pax))

    assert "claims more than 256 GiB" in refused(tmp_path, blob)


def test_a_header_that_claims_any_size(tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    tar = header.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)

    assert "a header of the layer claims" in refused(tmp_path, tar)


def test_a_bomb_of_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "MOST_BYTES", 64 << 20)
    tar = archive(entry("x", b"x")) + bytes(256 << 20)

    assert "unpacks to more than" in refused(tmp_path, gzip.compress(tar), digest(tar))


def test_more_than_the_disk_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagefiles, "_CHECK_EVERY", 1 << 20)
    blob = archive(*(entry(f"f{n}", os.urandom(1 << 20)) for n in range(4)))
    (tmp_path / "blob").write_bytes(blob)
    free = 1 << 62

    class Small(imagefiles.ImageFile):
        def __init__(self, path: Path) -> None:
            super().__init__(path, spare_bytes=free)

    monkeypatch.setattr("aenv.node.images.oci.conversions.ImageFile", Small)
    with pytest.raises(DiskFullError, match="AENV_CACHE_DIR"):
        convert([(tmp_path / "blob", digest(blob).removeprefix("sha256:"))], tmp_path)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_a_truncated_layer(tmp_path: Path, compression: str) -> None:
    tar = archive(entry("x", os.urandom(1 << 20)), entry("y", b"y"))
    blob = pack(tar, compression)

    refused(tmp_path, blob[: len(blob) // 2], digest(tar))


def test_what_is_no_archive(tmp_path: Path) -> None:
    assert "no whole tar archive" in refused(tmp_path, b"#!/bin/sh\n" * 100)


def test_garbage_between_entries_does_not_end_the_layer_quietly(tmp_path: Path) -> None:
    first = archive(entry("a", b"a"))[:1024]

    assert "from some entry on" in refused(tmp_path, first + b"garbage!" * 64 + bytes(1024))


def test_a_layer_that_unpacks_to_something_else(tmp_path: Path) -> None:
    blob = archive(entry("a", b"a"))

    assert "configuration names" in refused(tmp_path, blob, "0" * 64)
