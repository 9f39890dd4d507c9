"""What the routes of builds and tags answer (contract e2b §1.3)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from aenv.control.builds.journals import JournalEntry
from aenv.control.builds.library import BuiltTemplate
from aenv.control.builds.service import BuildRecord as BuildRecord
from aenv.control.builds.service import BuildStatus, TemplateRecord
from aenv.server.wire import Reply, wire_time

REASONS = 20


class Requested(Reply):
    template_id: str
    build_id: str
    public: bool
    names: list[str]
    tags: list[str]
    aliases: list[str]

    @classmethod
    def of(cls, template: TemplateRecord, build: BuildRecord) -> Requested:
        return cls(
            template_id=template.id,
            build_id=build.id,
            public=template.public,
            names=[template.name],
            tags=list(build.tags),
            aliases=[template.name],
        )


class FilesLink(Reply):
    """``url`` is there also when the files are: clients may upload them again."""

    present: bool
    url: str


class LogEntry(Reply):
    timestamp: str
    message: str
    level: str
    step: str | None = None

    @classmethod
    def of(cls, entry: JournalEntry) -> LogEntry:
        return cls(
            timestamp=wire_time(entry.timestamp),
            message=entry.message,
            level=entry.level,
            step=entry.step,
        )


class Reason(Reply):
    message: str
    step: str | None
    log_entries: list[LogEntry]


class BuildState(Reply):
    """``reason`` is left out unless the build failed."""

    template_id: str
    build_id: str
    status: str
    logs: list[str]
    log_entries: list[LogEntry]
    reason: Reason | None = None

    @classmethod
    def of(
        cls, build: BuildRecord, page: Sequence[JournalEntry], log: Sequence[JournalEntry]
    ) -> BuildState:
        failed = build.status is BuildStatus.ERROR
        return cls(
            template_id=build.template_id,
            build_id=build.id,
            status=build.status.value,
            logs=[],
            log_entries=[LogEntry.of(entry) for entry in page],
            reason=_reason(build, log) if failed else None,
        )


class BuildLogs(Reply):
    logs: list[LogEntry]


class Updated(Reply):
    names: list[str]


class Tagged(Reply):
    tags: list[str]
    build_id: str


class Tag(Reply):
    tag: str
    build_id: str
    created_at: str


class TagCount(Reply):
    total: int


class TagExists(Reply):
    exists: bool
    normalized_tag: str


class Assignment(Reply):
    """Only the present one is kept: a tag that moves forgets where it was."""

    assignment_id: str
    build_id: str
    assigned_at: str
    build_created_at: str
    build_finished_at: str | None


class Assignments(Reply):
    data: list[Assignment]
    next_cursor: str | None = None


class TagGroup(Reply):
    tag: str
    assignments: list[Assignment]
    has_more: bool = False


class TagGroups(Reply):
    tags: list[TagGroup]
    next_cursor: str | None = None


def tags_of(template: BuiltTemplate) -> list[Tag]:
    return [
        Tag(tag=one.tag, build_id=one.build_id, created_at=wire_time(one.created_at))
        for one in template.tags
    ]


def assignments_of(template: BuiltTemplate, tag: str) -> list[Assignment]:
    builds = {one.id: one for one in template.builds}
    return [
        Assignment(
            assignment_id=str(uuid.uuid5(uuid.UUID(one.build_id), f"{one.tag}:{one.created_at}")),
            build_id=one.build_id,
            assigned_at=wire_time(one.created_at),
            build_created_at=wire_time(builds[one.build_id].created_at),
            build_finished_at=_time(builds[one.build_id].finished_at),
        )
        for one in template.tags
        if one.tag == tag
    ]


def _time(moment: int | None) -> str | None:
    return None if moment is None else wire_time(moment)


def _reason(build: BuildRecord, log: Sequence[JournalEntry]) -> Reason:
    about = [entry for entry in log if entry.step == build.step]
    return Reason(
        message=build.message or "the build failed",
        step=build.step,
        log_entries=[LogEntry.of(entry) for entry in about[-REASONS:]],
    )
