"""Pause, resume, fork, snapshots: bodies and statuses that the E2B clients rely on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from tests.fakes.waiting import until_equal
from tests.server.apis import Api, error_of

from aenv.models.errors import CapacityError, DiskFullError
from aenv.models.settings import Quotas

UNKNOWN = "i" + "z" * 19


async def detail(api: Api, sandbox_id: str) -> Any:
    return (await api.client.get(f"/sandboxes/{sandbox_id}")).json()


async def post(api: Api, path: str, body: Any = None) -> Any:
    return await api.client.post(path, json=body)


class TestPause:
    @pytest.mark.parametrize("body", [None, {}, {"memory": True, "requireHealthyGuest": True}])
    async def test_204_then_409(self, api: Api, body: Any) -> None:
        sandbox_id = await api.new()

        first = await post(api, f"/sandboxes/{sandbox_id}/pause", body)
        second = await post(api, f"/sandboxes/{sandbox_id}/pause", body)

        assert (first.status_code, first.content) == (204, b"")
        assert error_of(second) == (409, "conflict")
        found = await detail(api, sandbox_id)
        assert (found["state"], found["pauseMode"]) == ("paused", "full")

    async def test_without_memory(self, api: Api) -> None:
        sandbox_id = await api.new()

        await post(api, f"/sandboxes/{sandbox_id}/pause", {"memory": False})

        assert (await detail(api, sandbox_id))["pauseMode"] == "filesystem"

    async def test_an_unknown_one_is_404(self, api: Api) -> None:
        assert error_of(await post(api, f"/sandboxes/{UNKNOWN}/pause"))[0] == 404

    async def test_an_agent_that_must_answer_and_does_not_is_503(self, api: Api) -> None:
        sandbox_id = await api.new()
        api.node.knobs.mute.add(sandbox_id)

        for body in ({"requireHealthyGuest": True}, {"memory": False}):
            reply = await post(api, f"/sandboxes/{sandbox_id}/pause", body)
            assert error_of(reply)[0] == 503
        assert (await detail(api, sandbox_id))["state"] == "running"

    async def test_a_full_disk_is_507_and_it_runs_on(self, api: Api) -> None:
        sandbox_id = await api.new()
        api.node.knobs.pause_errors = [DiskFullError("no room")]

        reply = await post(api, f"/sandboxes/{sandbox_id}/pause")

        assert error_of(reply) == (507, "disk_full")
        assert (await detail(api, sandbox_id))["state"] == "running"

    async def test_a_running_sandbox_has_no_pause_mode(self, api: Api) -> None:
        found = await detail(api, await api.new())
        assert "pauseMode" not in found
        assert "envdUnresponsiveAtPause" not in found


class TestConnect:
    @pytest.mark.parametrize("version", ["", "/v2"])
    async def test_200_when_it_runs_201_when_it_was_paused(self, api: Api, version: str) -> None:
        sandbox_id = await api.new()
        path = f"{version}/sandboxes/{sandbox_id}/connect"

        running = await post(api, path, {"timeout": 60})
        await post(api, f"/sandboxes/{sandbox_id}/pause")
        paused = await post(api, path, {"timeout": 60})

        assert (running.status_code, paused.status_code) == (200, 201)
        assert paused.json() == running.json()
        assert "pauseMode" not in await detail(api, sandbox_id)

    async def test_an_agent_mute_at_the_pause_is_409_unless_its_memory_is_left(
        self, api: Api
    ) -> None:
        sandbox_id = await api.new()
        api.node.knobs.mute.add(sandbox_id)
        await post(api, f"/sandboxes/{sandbox_id}/pause")
        assert (await detail(api, sandbox_id))["envdUnresponsiveAtPause"] is True
        path = f"/v2/sandboxes/{sandbox_id}/connect"

        refused = await post(api, path)
        rebooted = await post(api, path, {"memory": False})

        assert error_of(refused) == (409, "sandbox_snapshot_guest_agent_unresponsive")
        assert rebooted.status_code == 201
        assert (await detail(api, sandbox_id))["restored"] == "disk"

    async def test_a_killed_one_is_404(self, api: Api) -> None:
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/pause")
        assert (await api.client.delete(f"/sandboxes/{sandbox_id}")).status_code == 204

        assert error_of(await post(api, f"/v2/sandboxes/{sandbox_id}/connect"))[0] == 404
        assert (await api.client.delete(f"/sandboxes/{sandbox_id}")).status_code == 404

    async def test_a_full_host_is_503_and_it_stays_paused(self, api: Api) -> None:
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/pause")
        api.node.knobs.resume_errors = [CapacityError("no memory")]

        reply = await post(api, f"/v2/sandboxes/{sandbox_id}/connect")

        assert error_of(reply) == (503, "capacity")
        assert (await detail(api, sandbox_id))["state"] == "paused"

    async def test_a_resumed_one_counts_for_the_quota_again(self, api: Api) -> None:
        api.options = {"quotas": Quotas(sandboxes=1)}
        await api.system.close()
        await api.open()
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/pause")
        await api.new()

        reply = await post(api, f"/v2/sandboxes/{sandbox_id}/connect")

        assert error_of(reply) == (429, "quota_exceeded")


class TestResume:
    async def test_201_then_409(self, api: Api) -> None:
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/pause")

        first = await post(api, f"/sandboxes/{sandbox_id}/resume", {"timeout": 60})
        second = await post(api, f"/sandboxes/{sandbox_id}/resume")

        assert (first.status_code, error_of(second)[0]) == (201, 409)
        assert error_of(await post(api, f"/sandboxes/{UNKNOWN}/resume"))[0] == 404

    async def test_may_change_what_happens_at_the_end(self, api: Api) -> None:
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/pause")

        await post(api, f"/sandboxes/{sandbox_id}/resume", {"timeout": 60, "autoPause": True})

        assert (await detail(api, sandbox_id))["lifecycle"]["onTimeout"] == "pause"


async def test_the_lifecycle_is_told(api: Api) -> None:
    sandbox_id = await api.new(autoPause=True, autoResume={"enabled": True})
    assert (await detail(api, sandbox_id))["lifecycle"] == {
        "autoResume": True,
        "onTimeout": "pause",
    }


async def test_timeout_0_pauses_where_the_end_is_a_pause(api: Api) -> None:
    sandbox_id = await api.new(autoPause=True)

    reply = await post(api, f"/sandboxes/{sandbox_id}/timeout", {"timeout": 0})

    assert reply.status_code == 204
    assert (await detail(api, sandbox_id))["state"] == "paused"
    assert error_of(await post(api, f"/sandboxes/{sandbox_id}/timeout", {"timeout": 9}))[0] == 404


async def test_running_and_paused_are_listed_in_one_order(api: Api) -> None:
    ids = []
    for number in range(5):
        ids.append(await api.new())
        api.clock.pass_time(1)
        if number % 2:
            await post(api, f"/sandboxes/{ids[-1]}/pause")

    assert await api.ids() == ids[::-1]
    assert await api.ids(state="paused") == [ids[3], ids[1]]
    assert await api.ids("/sandboxes") == [ids[4], ids[2], ids[0]]
    first = await api.client.get("/v2/sandboxes", params={"limit": 3})
    rest = await api.ids(nextToken=first.headers["x-next-token"])
    assert [one["sandboxID"] for one in first.json()] + rest == ids[::-1]
    assert first.headers["x-total-running"] == "3"


class TestSnapshots:
    async def test_one_without_a_name(self, api: Api) -> None:
        sandbox_id = await api.new()

        reply = await post(api, f"/sandboxes/{sandbox_id}/snapshots", {})

        assert reply.status_code == 201
        body = reply.json()
        assert body["names"] == []
        assert body["snapshotID"] == f"{body['templateID']}:default"
        assert (await detail(api, sandbox_id))["state"] == "running"

    @pytest.mark.parametrize(
        ("name", "public"),
        [
            ("mine", "default/mine:default"),
            ("mine:v2", "default/mine:v2"),
            ("default/mine:v2", "default/mine:v2"),
        ],
    )
    async def test_one_with_a_name(self, api: Api, name: str, public: str) -> None:
        sandbox_id = await api.new()

        body = (await post(api, f"/sandboxes/{sandbox_id}/snapshots", {"name": name})).json()

        assert (body["snapshotID"], body["names"]) == (public, [public])

    @pytest.mark.parametrize("name", ["Upper", "a/b/c", "other/mine", "x:", ":x", "-x", "a b", "é"])
    async def test_a_bad_name_is_400(self, api: Api, name: str) -> None:
        sandbox_id = await api.new()
        reply = await post(api, f"/sandboxes/{sandbox_id}/snapshots", {"name": name})
        assert error_of(reply)[0] == 400

    async def test_a_templates_name_is_taken(self, api: Api) -> None:
        sandbox_id = await api.new()
        reply = await post(api, f"/sandboxes/{sandbox_id}/snapshots", {"name": "base"})
        assert error_of(reply)[0] == 409

    async def test_the_same_name_again_is_a_new_build_of_the_same_template(self, api: Api) -> None:
        sandbox_id = await api.new()
        path = f"/sandboxes/{sandbox_id}/snapshots"

        first = (await post(api, path, {"name": "mine"})).json()
        second = (await post(api, path, {"name": "mine"})).json()
        api.clock.pass_time(1)
        other = (await post(api, path, {"name": "mine:v2"})).json()

        assert first["templateID"] == second["templateID"] == other["templateID"]
        assert first["snapshotID"] == second["snapshotID"]
        listed = (await api.client.get("/snapshots")).json()
        assert [one["snapshotID"] for one in listed] == [
            "default/mine:v2",
            "default/mine:default",
        ]
        await until_equal(lambda: _images(api), 2)

    async def test_of_a_paused_one_is_409_of_an_unknown_one_404(self, api: Api) -> None:
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/pause")

        assert error_of(await post(api, f"/sandboxes/{sandbox_id}/snapshots"))[0] == 409
        assert error_of(await post(api, f"/sandboxes/{UNKNOWN}/snapshots"))[0] == 404

    async def test_a_misspelt_tag_is_not_looked_for_in_a_registry(self, api: Api) -> None:
        source = await api.new()
        await post(api, f"/sandboxes/{source}/snapshots", {"name": "after:good"})
        reply = await api.client.post("/v2/sandboxes", json={"templateID": "after:nope"})
        assert error_of(reply) == (404, "not_found")
        assert "good" in reply.json()["message"]

        here = replace(api.node.infos["base"], name="after:1")
        api.node.infos[here.name] = here
        started = await api.client.post("/v2/sandboxes", json={"templateID": "after:1"})
        assert started.status_code == 201

    async def test_a_sandbox_starts_from_it_by_any_of_its_names(self, api: Api) -> None:
        source = await api.new(envVars={"A": "a", "B": "b", "KEY": "s"}, secretEnvVars=["KEY"])
        path = f"/sandboxes/{source}/snapshots"
        named = (await post(api, path, {"name": "mine"})).json()
        unnamed = (await post(api, path)).json()

        for reference in (
            named["snapshotID"],
            "mine",
            "mine:default",
            "default/mine",
            named["templateID"],
            unnamed["snapshotID"],
        ):
            child = await api.new(templateID=reference, envVars={"B": "c"})
            spec = api.node.running[child]
            assert spec.snapshot in api.node.images
            assert spec.env_vars == {"A": "a", "B": "c"}
            found = await detail(api, child)
            assert found["restored"] == "warm"
            assert found["parentSandboxID"] == source
            assert found["metadata"] == {}

    async def test_other_resources_than_the_snapshots_are_400(self, api: Api) -> None:
        sandbox_id = await api.new(memoryMB=512)
        body = (await post(api, f"/sandboxes/{sandbox_id}/snapshots")).json()
        create = {"templateID": body["snapshotID"], "memoryMB": 1024}

        assert error_of(await post(api, "/v2/sandboxes", create))[0] == 400
        create["memoryMB"] = 512
        assert (await post(api, "/v2/sandboxes", create)).status_code == 201

    async def test_deleted_it_is_gone(self, api: Api) -> None:
        sandbox_id = await api.new()
        body = (await post(api, f"/sandboxes/{sandbox_id}/snapshots", {"name": "mine"})).json()
        child = await api.new(templateID="mine")
        path = f"/templates/{quote(body['snapshotID'], safe='')}"

        assert (await api.client.delete(path)).status_code == 204
        assert error_of(await api.client.delete(path))[0] == 404
        create = {"templateID": body["snapshotID"]}
        assert error_of(await post(api, "/v2/sandboxes", create))[0] == 404
        assert await _images(api) == 0
        assert (await detail(api, child))["state"] == "running"

    async def test_a_failed_create_does_not_cost_the_snapshot(self, api: Api) -> None:
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/snapshots", {"name": "mine"})
        api.node.knobs.create_errors = [CapacityError("full")]

        assert (await post(api, "/v2/sandboxes", {"templateID": "mine"})).status_code == 503

        await api.new(templateID="mine")

    async def test_are_listed_in_pages_and_by_filters(self, api: Api) -> None:
        one, other = await api.new(), await api.new()
        for number in range(5):
            api.clock.pass_time(1)
            await post(api, f"/sandboxes/{one}/snapshots", {"name": f"n{number}"})
        await post(api, f"/sandboxes/{other}/snapshots")

        async def names(**query: Any) -> list[str]:
            found = (await api.client.get("/snapshots", params=query)).json()
            return [snapshot["snapshotID"].split("/")[-1] for snapshot in found]

        assert await names(sandboxID=one) == [f"n{n}:default" for n in (4, 3, 2, 1, 0)]
        assert len(await names(sandboxID=other)) == 1
        assert await names(name="n3") == await names(name="default/n3:default") == ["n3:default"]
        assert await names(name="n3:v9") == await names(name="nobody") == []
        page = await api.client.get("/snapshots", params={"sandboxID": one, "limit": 3})
        rest = await names(sandboxID=one, nextToken=page.headers["x-next-token"])
        assert rest == ["n1:default", "n0:default"]
        assert error_of(await api.client.get("/snapshots", params={"nextToken": "no"}))[0] == 400

    async def test_one_by_its_id(self, api: Api) -> None:
        sandbox_id = await api.new(cpuCount=1, memoryMB=512)
        body = (await post(api, f"/sandboxes/{sandbox_id}/snapshots", {"name": "mine"})).json()

        found = (await api.client.get(f"/snapshots/{quote(body['snapshotID'], safe='')}")).json()

        assert found["names"] == ["default/mine:default"]
        assert (found["cpuCount"], found["memoryMB"], found["diskSizeMB"]) == (1, 512, 10240)
        assert (found["ownBytes"], found["sharedBytes"]) == (1000, 2500)
        assert found["createdAt"].endswith("Z")
        assert error_of(await api.client.get("/snapshots/nobody"))[0] == 404

    async def test_what_is_damaged_is_named(self, api: Api) -> None:
        sandbox_id = await api.new()
        body = (await post(api, f"/sandboxes/{sandbox_id}/snapshots", {"name": "mine"})).json()
        path = f"/aenv/snapshots/{quote(body['snapshotID'], safe='')}/verify"
        assert (await post(api, path)).status_code == 204

        api.node.knobs.damaged.add(body["imageID"])

        assert error_of(await post(api, path)) == (500, "snapshot_damaged")
        assert error_of(await post(api, "/aenv/snapshots/nobody/verify"))[0] == 404

    async def test_without_memory_its_sandboxes_boot(self, api: Api) -> None:
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/snapshots", {"name": "mine", "memory": False})

        child = await api.new(templateID="mine")

        assert (await detail(api, child))["restored"] == "disk"


class TestFork:
    async def test_children_beside_each_other(self, api: Api) -> None:
        sandbox_id = await api.new(metadata={"a": "b"}, memoryMB=512)

        reply = await post(api, f"/sandboxes/{sandbox_id}/fork", {"count": 3, "timeout": 60})

        assert reply.status_code == 201
        children = [one["sandbox"] for one in reply.json()]
        assert len({one["sandboxID"] for one in children} | {sandbox_id}) == 4
        assert len({one["envdAccessToken"] for one in children}) == 3
        assert all("error" not in one for one in reply.json())
        found = await detail(api, children[0]["sandboxID"])
        assert (found["metadata"], found["memoryMB"]) == ({"a": "b"}, 512)
        assert found["parentSandboxID"] == sandbox_id
        assert api.node.count("snapshot") == 1
        await until_equal(lambda: _images(api), 0)

    async def test_one_by_default_with_default_time(self, api: Api) -> None:
        sandbox_id = await api.new()
        assert len((await post(api, f"/sandboxes/{sandbox_id}/fork")).json()) == 1

    async def test_each_succeeds_or_fails_by_itself(self, api: Api) -> None:
        sandbox_id = await api.new()
        api.node.knobs.create_errors = [CapacityError("full")]

        results = (await post(api, f"/sandboxes/{sandbox_id}/fork", {"count": 3})).json()

        assert sorted(next(iter(one)) for one in results) == ["error", "sandbox", "sandbox"]
        error = next(one["error"] for one in results if "error" in one)
        assert (error["code"], error["message"]) == (503, "full")

    @pytest.mark.parametrize("count", [0, 21, -1, "2"])
    async def test_counts_are_1_to_20(self, api: Api, count: Any) -> None:
        sandbox_id = await api.new()
        reply = await post(api, f"/sandboxes/{sandbox_id}/fork", {"count": count})
        assert error_of(reply)[0] == 400

    async def test_of_a_paused_one_is_409_of_an_unknown_one_404(self, api: Api) -> None:
        sandbox_id = await api.new()
        await post(api, f"/sandboxes/{sandbox_id}/pause")

        assert error_of(await post(api, f"/sandboxes/{sandbox_id}/fork"))[0] == 409
        assert error_of(await post(api, f"/sandboxes/{UNKNOWN}/fork"))[0] == 404

    async def test_secrets_stay_with_the_source_unless_asked_for(self, api: Api) -> None:
        sandbox_id = await api.new(envVars={"A": "a", "KEY": "s"}, secretEnvVars=["KEY"])

        plain = (await post(api, f"/sandboxes/{sandbox_id}/fork")).json()
        asked = (await post(api, f"/sandboxes/{sandbox_id}/fork", {"secrets": True})).json()

        specs = [api.node.running[one[0]["sandbox"]["sandboxID"]] for one in (plain, asked)]
        assert specs[0].env_vars == {"A": "a"}
        assert specs[1].env_vars == {"A": "a", "KEY": "s"}
        assert specs[1].secret_env == frozenset({"KEY"})


async def _images(api: Api) -> int:
    await asyncio.sleep(0)
    return len(api.node.images)
