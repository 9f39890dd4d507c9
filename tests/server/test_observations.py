"""Metrics, logs, nodes, templates, Prometheus."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes.node import BASE
from tests.server.apis import Api, error_of

from aenv.models.errors import EngineError
from aenv.models.memory import MemoryReport, MemoryShare
from aenv.models.pools import PoolReport, PoolShare
from aenv.models.sandboxes import LogEntry
from aenv.models.templates import TemplateInfo, TemplateProgress, TemplateStatus


def lines(count: int, at: float = 1000.0) -> list[LogEntry]:
    """One per second from ``at``; every tenth is an error."""
    return [
        LogEntry(n, at + n, "stdout", f"line {n}", "info" if n % 10 else "error", {"pid": "1"})
        for n in range(1, count + 1)
    ]


class TestMetrics:
    async def test_the_first_sample_is_there_at_once(self, api: Api) -> None:
        sandbox_id = await api.new()

        (sample,) = (await api.client.get(f"/sandboxes/{sandbox_id}/metrics")).json()

        assert sample == {
            "timestamp": "1970-01-01T00:00:01.500000Z",
            "timestampUnix": 1,
            "cpuCount": 2,
            "cpuUsedPct": 3.0,
            "memUsed": 4,
            "memTotal": 5,
            "memCache": 6,
            "diskUsed": 7,
            "diskTotal": 8,
        }

    async def test_of_many(self, api: Api) -> None:
        first, second = await api.new(), await api.new()
        ids = f"{first},{second},{'i' + 'z' * 19},nonsense"

        reply = await api.client.get("/sandboxes/metrics", params={"sandbox_ids": ids})

        assert set(reply.json()["sandboxes"]) == {first, second}

    @pytest.mark.parametrize("query", ["", "sandbox_ids=", "sandbox_ids=a,,b"])
    async def test_of_none_is_400(self, api: Api, query: str) -> None:
        assert error_of(await api.client.get(f"/sandboxes/metrics?{query}"))[0] == 400

    @pytest.mark.parametrize("query", ["start=x", "start=-1", "end=inf", "start=5&end=1"])
    async def test_a_strange_window_is_400(self, api: Api, query: str) -> None:
        reply = await api.client.get(f"/sandboxes/{await api.new()}/metrics?{query}")
        assert error_of(reply)[0] == 400


class TestLogs:
    async def test_v1(self, api: Api) -> None:
        sandbox_id = await api.new()
        api.node.entries[sandbox_id] = lines(5)

        query = {"start": 1003_000, "limit": 2}
        body = (await api.client.get(f"/sandboxes/{sandbox_id}/logs", params=query)).json()

        assert [log["line"] for log in body["logs"]] == ["line 3", "line 4"]
        assert [log["message"] for log in body["logEntries"]] == ["line 3", "line 4"]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ({"limit": 2}, [1, 2]),
            ({"after": 28, "limit": 10}, [29, 30]),
            ({"cursor": 1029_000}, [29, 30]),
            ({"direction": "backward", "limit": 2}, [30, 29]),
            ({"direction": "backward", "limit": 2, "cursor": 1005_000}, [5, 4]),
            ({"direction": "backward", "limit": 2, "after": 5}, [4, 3]),
            ({"level": "error"}, [10, 20, 30]),
            ({"search": "line 2", "limit": 3}, [2, 20, 21]),
            ({"limit": 0}, []),
        ],
    )
    async def test_v2(self, api: Api, query: dict[str, str], expected: list[int]) -> None:
        sandbox_id = await api.new()
        api.node.entries[sandbox_id] = lines(30)

        reply = await api.client.get(f"/v2/sandboxes/{sandbox_id}/logs", params=query)

        logs = reply.json()["logs"]
        assert [log["seq"] for log in logs] == expected
        for log in logs:
            assert log["timestamp"].endswith("Z")
            assert log["fields"] == {"pid": "1", "stream": "stdout"}

    async def test_are_readable_after_the_end(self, api: Api) -> None:
        sandbox_id = await api.new()
        api.node.entries[sandbox_id] = lines(1)
        await api.client.delete(f"/sandboxes/{sandbox_id}")

        reply = await api.client.get(f"/v2/sandboxes/{sandbox_id}/logs")
        assert [log["message"] for log in reply.json()["logs"]] == [
            "line 1",
            "the sandbox ended: killed by request",
        ]

    @pytest.mark.parametrize(
        "query", ["limit=1001", "limit=-1", "direction=up", "level=loud", "cursor=x", "after=-1"]
    )
    async def test_nonsense_is_400(self, api: Api, query: str) -> None:
        reply = await api.client.get(f"/v2/sandboxes/{await api.new()}/logs?{query}")
        assert error_of(reply)[0] == 400


class TestTemplates:
    async def test_list_get_alias(self, api: Api) -> None:
        await api.new()
        (listed,) = (await api.client.get("/templates")).json()
        (paged,) = (await api.client.get("/v2/templates")).json()
        (default,) = (await api.client.get("/default-templates")).json()
        alias = (await api.client.get("/templates/aliases/base")).json()
        by_id = (await api.client.get(f"/templates/{listed['templateID']}")).json()
        by_name = (await api.client.get("/templates/default%2Fbase:default")).json()

        assert listed["names"] == listed["aliases"] == ["base"]
        assert listed["buildStatus"] == "ready"
        assert listed["templateID"] == paged["templateID"] == default["templateID"]
        assert alias == {"templateID": listed["templateID"], "public": True}
        assert by_id["builds"][0]["status"] == "ready"
        assert by_name == by_id

    async def test_pages(self, api: Api) -> None:
        api.node.infos = {name: TemplateInfo(name, name, 1, 1.0) for name in ("a", "b", "c")}

        first = await api.client.get("/v2/templates?limit=2")
        token = first.headers["x-next-token"]
        second = await api.client.get(f"/v2/templates?limit=2&nextToken={token}")

        names = [one["names"][0] for reply in (first, second) for one in reply.json()]
        assert names == ["a", "b", "c"]
        assert "x-next-token" not in second.headers

    @pytest.mark.parametrize(
        "path",
        ["/templates/nope", "/templates/aliases/nope", "/templates/a%2Fb%3Ac", "/snapshots/x:y"],
    )
    async def test_unknown_is_404(self, api: Api, path: str) -> None:
        assert error_of(await api.client.get(path)) == (404, "not_found")

    async def test_delete(self, api: Api) -> None:
        sandbox_id = await api.new()
        assert error_of(await api.client.delete("/templates/base"))[0] == 409

        await api.client.delete(f"/sandboxes/{sandbox_id}")

        assert (await api.client.delete("/templates/base")).status_code == 204
        assert error_of(await api.client.delete("/templates/base"))[0] == 404

    async def test_progress_of_a_build(self, api: Api) -> None:
        api.node.infos.clear()
        api.node.knobs.build = TemplateProgress("base", TemplateStatus.BUILDING, 0.25, "unpack")

        progress = await api.client.post("/aenv/templates/base/build?wait=0")
        create = await api.client.post("/v2/sandboxes", json={"templateID": "base"})
        listed = (await api.client.get("/templates")).json()

        assert progress.status_code == 202
        assert progress.json()["fraction"] == 0.25
        assert error_of(create) == (503, "template_building")
        assert create.headers["retry-after"] == "5"
        assert "25%" in create.json()["message"]
        assert [one["buildStatus"] for one in listed] == ["building"]
        api.node.infos["base"] = BASE


class TestNodes:
    async def test_nodes(self, api: Api) -> None:
        await api.new()

        (node,) = (await api.client.get("/nodes")).json()

        assert (node["id"], node["status"], node["sandboxCount"]) == ("n1", "ready", 1)
        assert node["createSuccesses"] == 1
        assert node["metrics"]["allocatedMemoryBytes"] == 1024 * 2**20
        assert node["metrics"]["allocatedCPU"] == 2
        assert (await api.client.get("/nodes/n1")).json()["id"] == "n1"
        assert error_of(await api.client.get("/nodes/n2"))[0] == 404

    async def test_tell_promised_from_used_memory(self, api: Api) -> None:
        api.node.knobs.memory = REPORT

        (node,) = (await api.client.get("/nodes")).json()

        memory = node["memory"]
        assert memory["running"] == {"sandboxCount": 2, "promisedBytes": 2000, "usedBytes": 30}
        assert memory["hot"]["usedBytes"] == 10
        assert (memory["promisedToUsed"], memory["availableBytes"]) == (50.0, 400)
        assert (memory["stalled"], memory["exhausted"]) == (0.25, True)
        assert (memory["demotions"], memory["refusals"]) == ({"hot": 3}, {"memory": 1, "disk": 2})

    async def test_tell_what_waits_for_creates(self, api: Api) -> None:
        api.node.knobs.pools = POOLS

        (node,) = (await api.client.get("/nodes")).json()

        assert node["pools"] == [
            {
                "template": "base",
                "machineCount": 2,
                "wantedCount": 3,
                "memoryBytes": 40,
                "hits": 7,
                "misses": 1,
            }
        ]


REPORT = MemoryReport(
    running=MemoryShare(2, 2000, 30),
    hot=MemoryShare(1, 1000, 10),
    total=1000,
    available=400,
    stalled=0.25,
    exhausted=True,
    relieved={"hot": 3},
    refusals={"memory": 1, "disk": 2},
)
POOLS = PoolReport((PoolShare("base", 2, 40, 3, 7, 1),), images=1, image_bytes=90)


class TestPrometheus:
    async def test_pools(self, api: Api) -> None:
        api.node.knobs.pools = POOLS
        text = (await api.client.get("/metrics")).text
        for line in (
            'aenv_pool_machines{template="base"} 2.0',
            'aenv_pool_wanted_machines{template="base"} 3.0',
            'aenv_pool_memory_bytes{template="base"} 40.0',
            'aenv_pool_creates_total{outcome="hit",template="base"} 7.0',
            'aenv_pool_creates_total{outcome="miss",template="base"} 1.0',
            "aenv_template_images 1.0",
            "aenv_template_image_bytes 90.0",
        ):
            assert line in text.splitlines()

    async def test_promised_and_used_memory(self, api: Api) -> None:
        api.node.knobs.memory = REPORT
        text = (await api.client.get("/metrics")).text
        for line in (
            'aenv_sandboxes_in_memory{kind="hot"} 1.0',
            'aenv_sandbox_memory_promised_bytes{kind="running"} 2000.0',
            'aenv_sandbox_memory_used_bytes{kind="hot"} 10.0',
            'aenv_sandbox_memory_used_bytes{kind="pooled"} 0.0',
            "aenv_memory_overcommit_ratio 50.0",
            "aenv_host_memory_available_bytes 400.0",
            "aenv_host_memory_stalled_ratio 0.25",
            "aenv_host_memory_exhausted 1.0",
            'aenv_memory_demotions_total{kind="hot"} 3.0',
            'aenv_admission_refusals_total{reason="disk"} 2.0',
        ):
            assert line in text.splitlines()

        api.node.knobs.memory = replace(REPORT, stalled=None)
        assert "stalled" not in (await api.client.get("/metrics")).text

    async def test_figures(self, api: Api) -> None:
        await api.new()
        await api.client.post("/v2/sandboxes", json={"templateID": "nope"})
        api.system.telemetry.add_source(lambda: {"aenv_proxy_connections": 3.0})

        text = (await api.client.get("/metrics")).text

        for line in (
            'aenv_sandboxes{state="running"} 1.0',
            'aenv_sandboxes{state="killing"} 0.0',
            'aenv_sandbox_creates_total{outcome="ok"} 1.0',
            'aenv_sandbox_creates_total{outcome="not_found"} 1.0',
            "aenv_sandbox_create_seconds_count 1.0",
            "aenv_memory_promised_bytes 1.073741824e+09",
            "aenv_host_memory_used_bytes 40.0",
            "aenv_proxy_connections 3.0",
        ):
            assert line in text.splitlines()

    async def test_routes_are_counted_by_template_so_that_labels_stay_few(self, api: Api) -> None:
        for number in range(20):
            await api.client.get(f"/sandboxes/{number}")
            await api.client.get(f"/nowhere/{number}")
            await api.client.request(f"ODD{number}", "/sandboxes")

        text = (await api.client.get("/metrics")).text

        counted = [x for x in text.splitlines() if x.startswith("aenv_http_requests_total{")]
        assert len(counted) <= 4
        assert (
            'aenv_http_requests_total{method="GET",route="/sandboxes/{sandbox_id}",status="404"}'
            " 20.0" in counted
        )

    async def test_are_served_when_the_node_does_not_answer(self, api: Api) -> None:
        api.node.knobs.info_error = EngineError("hung")
        reply = await api.client.get("/metrics")
        assert reply.status_code == 200
        assert 'aenv_sandboxes{state="running"} 0.0' in reply.text


async def test_health_is_204_without_a_body(api: Api) -> None:
    reply = await api.client.get("/health")
    assert (reply.status_code, reply.content) == (204, b"")


async def test_shutting_down_with_kill_ends_the_sandboxes(api: Api) -> None:
    await api.new()
    reply = await api.client.post("/admin/shutdown", json={"kill": True})
    assert reply.json() == {"killed": 1, "failed": []}
    assert api.node.running == {}
