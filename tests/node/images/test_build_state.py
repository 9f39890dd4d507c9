from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

from aenv.models.templates import TemplateStatus
from aenv.node.images.progress import BuildState, tidy


def test_nothing_was_ever_built(tmp_path: Path) -> None:
    assert BuildState(tmp_path / "images", "base").read().status is TemplateStatus.ABSENT


def test_others_see_how_far_the_builder_is(tmp_path: Path) -> None:
    builder, onlooker = BuildState(tmp_path, "base"), BuildState(tmp_path, "base")

    with builder.hold() as mine:
        assert mine
        builder.report(0.0, "preparing")
        seen = onlooker.read()

    assert (seen.status, seen.fraction, seen.step) == (TemplateStatus.BUILDING, 0.0, "preparing")


def test_only_one_builds(tmp_path: Path) -> None:
    with BuildState(tmp_path, "base").hold(), BuildState(tmp_path, "base").hold() as mine:
        assert not mine


def test_templates_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with BuildState(tmp_path, "base").hold(), BuildState(tmp_path, "other").hold() as mine:
        assert mine


def test_looking_does_not_disturb_a_builder_that_comes(tmp_path: Path) -> None:
    state = BuildState(tmp_path, "base")
    with state.hold():
        pass
    assert not state.is_held()

    with BuildState(tmp_path, "base").hold() as mine:
        assert mine


def test_a_builder_that_died_is_not_building(tmp_path: Path) -> None:
    state = BuildState(tmp_path, "base")
    with state.hold():
        state.report(0.0, "preparing")

    assert state.read().status is TemplateStatus.ABSENT


def test_a_failure_is_kept_until_the_next_build(tmp_path: Path) -> None:
    state = BuildState(tmp_path, "base")
    with state.hold():
        state.report(0.0, "preparing")
        state.fail("the mirror is down")

    failed = state.read()
    assert (failed.status, failed.error) == (TemplateStatus.ERROR, "the mirror is down")

    with state.hold():
        state.report(0.0, "preparing")
        assert state.read().error is None


def test_a_damaged_progress_file_is_as_none(tmp_path: Path) -> None:
    state = BuildState(tmp_path, "base")
    with state.hold():
        (tmp_path / ".base.progress").write_text('{"fraction": ')
        assert state.read().status is TemplateStatus.BUILDING


def test_nothing_stays_of_a_build_that_succeeded(tmp_path: Path) -> None:
    state = BuildState(tmp_path, "base")
    with state.hold():
        state.report(0.5, "half way")
        state.clear()
    assert list(tmp_path.iterdir()) == []


def test_never_two_builders_however_many_try_while_the_lock_comes_and_goes(tmp_path: Path) -> None:
    inside, together, held = threading.Lock(), [], []

    def build() -> None:
        for _ in range(200):
            with BuildState(tmp_path, "base").hold() as mine:
                if mine:
                    held.append(1)
                    if not inside.acquire(blocking=False):
                        together.append(1)
                        continue
                    inside.release()

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held
    assert together == []


def test_what_killed_and_long_failed_builds_left_is_tidied(tmp_path: Path) -> None:
    (tmp_path / ".oci-killed.lock").touch()
    for name in ("oci-new", "oci-old", "oci-running"):
        BuildState(tmp_path, name).fail("no")
    days_ago = time.time() - 2 * 86400
    for name in ("oci-old", "oci-running"):
        os.utime(tmp_path / f".{name}.progress", (days_ago, days_ago))

    with (tmp_path / ".oci-running.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tidy(tmp_path)

    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".oci-new.progress", ".oci-running.lock", ".oci-running.progress"]
