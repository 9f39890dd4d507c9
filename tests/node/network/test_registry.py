"""Slots of several instances on one host: no two hold the same, none is lost, none is stolen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from aenv.models.sandboxes import NetworkPolicy
from aenv.node.network.registry import Claim, Registry

BOOT = "boot-now"


class Namespaces:
    """Which (instance, index) have a namespace."""

    def __init__(self) -> None:
        self.present: set[tuple[str, int]] = set()

    def __call__(self, instance: str, index: int) -> bool:
        return (instance, index) in self.present


@pytest.fixture
def namespaces() -> Namespaces:
    return Namespaces()


def make(folder: Path, instance: str, namespaces: Namespaces, boot_id: str = BOOT) -> Registry:
    registry = Registry(folder, instance, boot_id, namespaces)
    registry.open()
    return registry


def claim(registry: Registry) -> Claim:
    claimed = registry.claim(iter(range(100)))
    assert claimed is not None
    return claimed


def test_instances_never_hold_the_same_slot(tmp_path: Path, namespaces: Namespaces) -> None:
    registries = [make(tmp_path, f"{number:08x}", namespaces) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda number: claim(registries[number % 4]), range(40)))
    assert len({claimed.index for claimed in claims}) == 40


def test_an_instance_without_a_slot_leaves_no_file(tmp_path: Path, namespaces: Namespaces) -> None:
    one, two = make(tmp_path, "aaaaaaaa", namespaces), make(tmp_path, "bbbbbbbb", namespaces)
    kept = claim(two)
    one.close()
    two.close()
    assert {path.name for path in tmp_path.iterdir()} == {
        "lock",
        "bbbbbbbb.holder",
        str(kept.index),
    }


def test_the_file_of_a_killed_instance_goes_with_the_next_start_once_it_holds_nothing(
    tmp_path: Path, namespaces: Namespaces
) -> None:
    holding = make(tmp_path, "bbbbbbbb", namespaces)
    kept = claim(holding)
    namespaces.present.add(("bbbbbbbb", kept.index))
    for name in ("aaaaaaaa", "bbbbbbbb"):
        (tmp_path / f"{name}.holder").touch()
    living = make(tmp_path, "cccccccc", namespaces)
    os.close(holding._holder or -1)  # what the kernel does when a process is killed

    make(tmp_path, "dddddddd", namespaces)

    assert {path.name for path in tmp_path.glob("*.holder")} == {
        "bbbbbbbb.holder",
        "cccccccc.holder",
        "dddddddd.holder",
    }
    living.close()


def test_a_full_range_yields_none(tmp_path: Path, namespaces: Namespaces) -> None:
    registry = make(tmp_path, "aaaaaaaa", namespaces)
    assert registry.claim(iter([7])) is not None
    assert registry.claim(iter([7])) is None


def test_entries_keep_sandbox_and_policy(tmp_path: Path, namespaces: Namespaces) -> None:
    registry = make(tmp_path, "aaaaaaaa", namespaces)
    policy = NetworkPolicy(False, ("1.1.1.1",), ("2.0.0.0/8",), ("9.9.9.9",))
    written = Claim(claim(registry).index, "aaaaaaaa", BOOT, "i" + "a" * 19, policy)
    registry.write(written)
    assert registry.mine() == [written]


def test_the_slots_of_a_server_that_is_down_are_kept_while_its_namespaces_are(
    tmp_path: Path, namespaces: Namespaces
) -> None:
    down = make(tmp_path, "aaaaaaaa", namespaces)
    held = claim(down)
    namespaces.present.add(("aaaaaaaa", held.index))
    down.close()
    other = make(tmp_path, "bbbbbbbb", namespaces)
    assert other.claim(iter([held.index])) is None
    namespaces.present.clear()
    assert other.claim(iter([held.index])) is not None


def test_the_slots_of_a_running_server_are_kept_before_their_namespaces_exist(
    tmp_path: Path, namespaces: Namespaces
) -> None:
    running = make(tmp_path, "aaaaaaaa", namespaces)
    held = claim(running)
    assert make(tmp_path, "bbbbbbbb", namespaces).claim(iter([held.index])) is None


def test_a_killed_server_no_longer_runs(tmp_path: Path, namespaces: Namespaces) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from aenv.node.network.registry import Registry\n"
        f"r = Registry(Path({str(tmp_path)!r}), 'aaaaaaaa', {BOOT!r}, lambda *_: False)\n"
        "r.open(); assert r.claim(iter([3])); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == -9
    assert make(tmp_path, "bbbbbbbb", namespaces).claim(iter([3])) is not None


def test_after_a_reboot_old_entries_count_for_nothing(
    tmp_path: Path, namespaces: Namespaces
) -> None:
    before = make(tmp_path, "aaaaaaaa", namespaces)
    held = claim(before)
    before.close()
    after = make(tmp_path, "aaaaaaaa", namespaces, boot_id="boot-later")
    assert after.mine() == []
    assert after.claim(iter([held.index])) is not None


@pytest.mark.parametrize("rubbish", ["", "{", "[]", json.dumps({"instance": "x"})])
def test_an_unreadable_entry_may_be_taken(
    tmp_path: Path, namespaces: Namespaces, rubbish: str
) -> None:
    (tmp_path / "5").write_text(rubbish)
    registry = make(tmp_path, "aaaaaaaa", namespaces)
    assert registry.claim(iter([5])) is not None


def test_nobody_frees_what_is_anothers(tmp_path: Path, namespaces: Namespaces) -> None:
    held = claim(make(tmp_path, "aaaaaaaa", namespaces))
    other = make(tmp_path, "bbbbbbbb", namespaces)
    other.free(held.index)
    assert other.claim(iter([held.index])) is None


def test_others_are_seen(tmp_path: Path, namespaces: Namespaces) -> None:
    ours = make(tmp_path, "aaaaaaaa", namespaces)
    assert not ours.others_present()
    other = make(tmp_path, "bbbbbbbb", namespaces)
    assert ours.others_present()
    claimed = other.claim(count())
    assert claimed is not None
    other.close()
    assert not ours.others_present()
    namespaces.present.add(("bbbbbbbb", claimed.index))
    assert ours.others_present()
