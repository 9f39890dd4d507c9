"""WatchDir (async stream) and CreateWatcher/GetWatcherEvents (sync polling)."""

import asyncio

from e2b import (
    AsyncSandbox,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
)
from scenarios import raises, scenario, until


@scenario
def a_first_upload_is_create_chmod_write(sandbox: Sandbox):
    sandbox.files.make_dir("w1")
    watch = sandbox.files.watch_dir("w1")
    sandbox.files.write("w1/new", "x")
    events = watch.get_new_events()
    assert [(event.name, event.type) for event in events][:3] == [
        ("new", FilesystemEventType.CREATE),
        ("new", FilesystemEventType.CHMOD),
        ("new", FilesystemEventType.WRITE),
    ]
    watch.stop()


@scenario
def rename_and_remove_are_seen(sandbox: Sandbox):
    sandbox.files.write("w2/file", "x")
    watch = sandbox.files.watch_dir("w2")
    sandbox.files.rename("w2/file", "w2/other")
    sandbox.files.remove("w2/other")
    seen: list[tuple[str, FilesystemEventType]] = []

    def all_there() -> bool:
        seen.extend((event.name, event.type) for event in watch.get_new_events())
        return {
            ("file", FilesystemEventType.RENAME),
            ("other", FilesystemEventType.CREATE),
            ("other", FilesystemEventType.REMOVE),
        } <= set(seen)

    until(all_there)
    watch.stop()


@scenario
def recursive_watches_pick_up_new_folders(sandbox: Sandbox):
    sandbox.files.make_dir("w3/known")
    watch = sandbox.files.watch_dir("w3", recursive=True)
    sandbox.files.write("w3/known/a", "x")
    sandbox.files.make_dir("w3/fresh")
    sandbox.files.write("w3/fresh/b", "x")
    names: set[str] = set()

    def all_there() -> bool:
        names.update(event.name for event in watch.get_new_events())
        return {"known/a", "fresh", "fresh/b"} <= names

    until(all_there)
    watch.stop()


@scenario
def a_flat_watch_does_not_look_below(sandbox: Sandbox):
    sandbox.files.make_dir("w4/below")
    watch = sandbox.files.watch_dir("w4")
    sandbox.files.write("w4/below/hidden", "x")
    sandbox.files.write("w4/seen", "x")
    names = {event.name for event in watch.get_new_events()}
    assert "seen" in names
    assert not any("hidden" in name for name in names)
    watch.stop()


@scenario
def entries_come_along_when_asked(sandbox: Sandbox):
    sandbox.files.make_dir("w5")
    watch = sandbox.files.watch_dir("w5", include_entry=True)
    sandbox.files.write("w5/sized", "12345")
    events = watch.get_new_events()
    assert any(event.entry and event.entry.path == "/home/user/w5/sized" for event in events)
    watch.stop()


@scenario
def only_folders_that_exist_can_be_watched(sandbox: Sandbox):
    sandbox.files.write("plain-file", "x")
    raises(InvalidArgumentException, lambda: sandbox.files.watch_dir("plain-file"))
    raises(NotFoundException, lambda: sandbox.files.watch_dir("not-there"))


@scenario
def a_stopped_watch_is_gone(sandbox: Sandbox):
    sandbox.files.make_dir("w6")
    watch = sandbox.files.watch_dir("w6")
    watch.stop()
    raises(Exception, watch.get_new_events)


@scenario
async def async_events_arrive_by_themselves(sandbox: AsyncSandbox):
    await sandbox.files.make_dir("w7")
    events: asyncio.Queue = asyncio.Queue()
    watch = await sandbox.files.watch_dir("w7", on_event=events.put_nowait)
    await sandbox.files.write("w7/new", "x")
    first = await asyncio.wait_for(events.get(), 10)
    assert (first.name, first.type) == ("new", FilesystemEventType.CREATE)
    await watch.stop()
