from __future__ import annotations

from pathlib import Path

from aenv.models.templates import TemplateStatus
from aenv.node.images.progress import BuildState


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
