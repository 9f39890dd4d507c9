"""``/admin/store``: lines of JSON, for admins, called off by who hangs up."""

from __future__ import annotations

import json
from typing import Any

from tests.server.apis import Api
from tests.store.blobs.contents import pages, stream


async def lines(api: Api, method: str, what: str) -> list[dict[str, Any]]:
    answer = await api.client.request(method, f"/admin/store/{what}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_usage_verify_and_gc(api: Api) -> None:
    store = await api.system.storage.blobs()
    done = await store.put(stream(pages(70)), holder="one")

    used = (await lines(api, "GET", "usage"))[-1]["result"]
    assert used["store"]["blobs"] == 1
    assert sum(part["count"] for part in used["store"]["parts"]) == 3

    assert (await lines(api, "POST", "verify"))[-1]["result"]["damages"] == []
    await store.release("one", done.ref.id)
    assert (await lines(api, "POST", "gc"))[-1]["result"]["blobs"] == 1


async def test_damage_is_told_with_who_is_hit(api: Api) -> None:
    store = await api.system.storage.blobs()
    await store.put(stream(pages(70)), holder="volume:s")
    assert store.objects.folder is not None
    [chunk] = store.objects.folder.glob("chunks/*/*")
    chunk.unlink()
    [damage] = (await lines(api, "POST", "verify"))[-1]["result"]["damages"]
    assert (damage["reason"], damage["holders"]) == ("missing", ["volume:s"])


async def test_failures_are_the_last_line(api: Api) -> None:
    store = await api.system.storage.blobs()
    assert store.objects.folder is not None
    store.objects.folder.rename(store.objects.folder.with_name("unmounted"))
    told = (await lines(api, "GET", "usage"))[-1]["error"]
    assert (told["culprit"], told["error_code"]) == ("infrastructure", "blob_store_unreachable")
    assert str(store.objects.folder) in told["message"]


async def test_only_admins(api: Api) -> None:
    key, _ = await api.system.keys.create("plain")
    answer = await api.client.post("/admin/store/gc", headers={"x-api-key": key})
    assert answer.status_code == 403
