"""``/sandboxes``: bodies and statuses that the E2B clients rely on."""

from __future__ import annotations

import asyncio
import base64
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.server.apis import Api, error_of

from aenv.models.errors import CapacityError, EngineError
from aenv.models.settings import Quotas

UNKNOWN = "i" + "z" * 19


class TestCreate:
    async def test_answers_what_the_clients_read(self, api: Api) -> None:
        reply = await api.client.post("/v2/sandboxes", json={"templateID": "base"})

        assert reply.status_code == 201
        body = reply.json()
        assert re.fullmatch(r"[a-z0-9]+", body["sandboxID"])
        assert reply.headers["x-agentenv-sandbox-id"] == body["sandboxID"]
        assert body["envdVersion"] == "0.6.13"
        assert body["domain"] == "localhost:8000"
        assert body["alias"] == "base"
        assert body["clientID"]
        assert len(body["envdAccessToken"]) >= 32
        assert body["trafficAccessToken"] is None
        assert body["engine"] == "fake"

    async def test_every_listing_tells_the_engine(self, api: Api) -> None:
        sandbox_id = await api.new()

        (listed,) = (await api.client.get("/v2/sandboxes")).json()
        (old,) = (await api.client.get("/sandboxes")).json()
        detail = (await api.client.get(f"/sandboxes/{sandbox_id}")).json()
        assert {one["engine"] for one in (listed, old, detail)} == {"fake"}

    @pytest.mark.parametrize(("path", "seconds"), [("/v2/sandboxes", 300), ("/sandboxes", 15)])
    async def test_default_timeouts(self, api: Api, path: str, seconds: int) -> None:
        reply = await api.client.post(path, json={"templateID": "base"})

        detail = (await api.client.get(f"/sandboxes/{reply.json()['sandboxID']}")).json()
        start, end = (datetime.fromisoformat(detail[key]) for key in ("startedAt", "endAt"))
        assert (end - start).total_seconds() == seconds

    async def test_a_private_sandbox_has_a_traffic_token(self, api: Api) -> None:
        network = {"allowPublicTraffic": False}
        reply = await api.client.post(
            "/v2/sandboxes", json={"templateID": "base", "network": network}
        )

        token = reply.json()["trafficAccessToken"]
        route = api.system.routes.get(reply.json()["sandboxID"])
        assert route is not None
        assert token
        assert (route.allow_public_traffic, route.traffic_token) == (False, token)

    async def test_what_the_node_is_asked_for(self, api: Api) -> None:
        sandbox_id = await api.new(
            envVars={"A": "b"},
            allow_internet_access=False,
            cpuCount=1,
            memoryMB=256,
            network={
                "allowOut": ["1.1.1.1", "8.8.8.0/24"],
                "denyOut": ["0.0.0.0/0", "::/0"],
                "dnsServers": ["9.9.9.9"],
                "maskRequestHost": "localhost:${PORT}",
            },
        )

        spec = api.node.running[sandbox_id]
        assert spec.env_vars == {"A": "b"}
        assert (spec.resources.cpu, spec.resources.memory_mb) == (1, 256)
        assert not spec.network.allow_internet
        assert spec.network.allow_out == ("1.1.1.1/32", "8.8.8.0/24")
        assert spec.network.deny_out == ("0.0.0.0/0",)
        assert spec.network.dns_servers == ("9.9.9.9",)
        assert spec.network.mask_request_host == "localhost:${PORT}"

    @pytest.mark.parametrize(
        "extra",
        [
            {"secure": False},
            {"secure": True},
            {"mcp": None},
            {"mcp": {"browser": {}}},
            {"autoPause": False, "autoResume": {"enabled": False}},
            {"volumeMounts": [], "network": None, "metadata": None, "envVars": None},
            {"someFieldOfTomorrow": 1},
        ],
    )
    async def test_what_older_and_newer_clients_send_is_fine(
        self, api: Api, extra: dict[str, Any]
    ) -> None:
        await api.new(**extra)

    @pytest.mark.parametrize(
        ("extra", "status", "field"),
        [
            ({"autoPause": True, "engine": "plain"}, 400, "autoPause"),
            ({"autoResume": {"enabled": True}, "engine": "plain"}, 400, "autoResume"),
            ({"secretEnvVars": ["KEY"]}, 400, "secretEnvVars"),
            ({"autoResume": {"enabled": True}, "autoPauseMemory": False}, 400, "autoPauseMemory"),
            ({"volumeMounts": [{"name": "v", "path": "/v"}]}, 404, "volume 'v'"),
            ({"volumeMounts": [{"name": "v"}]}, 400, "volumeMounts"),
            ({"iam": {"tokens": {"t": {"audience": "a"}}}}, 501, "iam"),
            ({"network": {"allowOut": ["example.com"]}}, 400, "network.allowOut"),
            ({"network": {"allowOut": ["::1"]}}, 400, "network.allowOut"),
            ({"network": {"denyOut": ["*.example.com"]}}, 400, "network.denyOut"),
            ({"network": {"dnsServers": ["dns.example"]}}, 400, "network.dnsServers"),
            ({"network": {"rules": {"h": []}}}, 400, "network.rules"),
            ({"network": {"egressProxy": {"address": "x"}}}, 400, "network.egressProxy"),
            ({"network": {"httpsPorts": [443]}}, 501, "network.httpsPorts"),
            ({"network": {"maskRequestHost": "a\r\nb"}}, 400, "network.maskRequestHost"),
            ({"network": {"allowedOut": []}}, 400, "network.allowedOut"),
            ({"timeout": "300"}, 400, "timeout"),
            ({"timeout": 1.5}, 400, "timeout"),
            ({"timeout": True}, 400, "timeout"),
            ({"timeout": -1}, 400, "timeout"),
            ({"timeout": 10**30}, 400, "timeout"),
            ({"metadata": {"a": 1}}, 400, "metadata.a"),
            ({"metadata": []}, 400, "metadata"),
            ({"metadata": {"a": "\x00"}}, 400, "metadata"),
            ({"envVars": {"": "x"}}, 400, "envVars"),
            ({"mcp": "yes"}, 400, "mcp"),
            ({"memoryMB": 1}, 400, "memoryMB"),
            ({"cpuCount": 0}, 400, "cpuCount"),
            ({"templateID": 7}, 400, "templateID"),
            ({"templateID": ""}, 400, "templateID"),
        ],
    )
    async def test_what_is_refused_names_the_field(
        self, api: Api, extra: dict[str, Any], status: int, field: str
    ) -> None:
        reply = await api.client.post("/v2/sandboxes", json={"templateID": "base", **extra})

        assert error_of(reply)[0] == status
        assert field in reply.json()["message"]
        assert api.node.count("create") == 0

    async def test_an_unknown_template_is_404(self, api: Api) -> None:
        reply = await api.client.post("/v2/sandboxes", json={"templateID": "nope"})
        assert error_of(reply) == (404, "not_found")

    async def test_a_full_host_is_503_and_worth_a_retry(self, api: Api) -> None:
        api.node.knobs.create_errors = [CapacityError("no memory", retry_after=7)]

        reply = await api.client.post("/v2/sandboxes", json={"templateID": "base"})

        assert error_of(reply) == (503, "capacity")
        assert (reply.headers["retry-after"], reply.headers["should-retry"]) == ("7", "true")
        assert reply.json()["culprit"] == "infrastructure"

    async def test_a_broken_engine_is_500_and_not_worth_one(self, api: Api) -> None:
        api.node.knobs.create_errors = [EngineError("runsc failed")]

        reply = await api.client.post("/v2/sandboxes", json={"templateID": "base"})

        assert error_of(reply) == (500, "engine")
        assert "retry-after" not in reply.headers

    async def test_the_quota_is_429_with_figures(self, api: Api) -> None:
        object.__setattr__(api.system.settings, "quotas", Quotas(sandboxes=1))
        await api.new()

        reply = await api.client.post("/v2/sandboxes", json={"templateID": "base"})

        assert error_of(reply) == (429, "quota_exceeded")
        assert "the limit is 1" in reply.json()["message"]
        assert reply.headers["should-retry"] == "false"


class TestIdempotencyKey:
    async def post(self, api: Api, key: str, path: str = "/v2/sandboxes", **body: Any) -> Any:
        return await api.client.post(
            path, json={"templateID": "base", **body}, headers={"Idempotency-Key": key}
        )

    async def test_same_key_same_body_is_one_sandbox(self, api: Api) -> None:
        replies = await asyncio.gather(*(self.post(api, "k-1", metadata={}) for _ in range(5)))

        assert {reply.status_code for reply in replies} == {201}
        assert len({reply.json()["sandboxID"] for reply in replies}) == 1

    async def test_another_body_or_route_is_a_mismatch(self, api: Api) -> None:
        await self.post(api, "k")

        other = await self.post(api, "k", timeout=5)
        route = await self.post(api, "k", "/sandboxes")

        assert error_of(other) == error_of(route) == (409, "idempotency_request_mismatch")

    @pytest.mark.parametrize("key", ["", "UPPER", "a b", "k" * 256, "ü"])
    async def test_a_malformed_key_is_400(self, api: Api, key: str) -> None:
        reply = await api.client.post(
            "/v2/sandboxes",
            json={"templateID": "base"},
            headers=[(b"Idempotency-Key", key.encode())],
        )
        assert error_of(reply)[0] == 400


class TestOne:
    async def test_detail(self, api: Api) -> None:
        sandbox_id = await api.new(metadata={"k": "v"}, network={"denyOut": ["1.0.0.0/8"]})

        body = (await api.client.get(f"/sandboxes/{sandbox_id}")).json()

        assert body["state"] == "running"
        assert body["metadata"] == {"k": "v"}
        assert (body["cpuCount"], body["memoryMB"], body["diskSizeMB"]) == (2, 1024, 10240)
        assert body["lifecycle"] == {"autoResume": False, "onTimeout": "kill"}
        assert body["network"]["denyOut"] == ["1.0.0.0/8"]
        assert body["allowInternetAccess"] is True
        assert body["startedAt"].endswith("Z")
        assert datetime.fromisoformat(body["startedAt"]).tzinfo == UTC

    async def test_delete_once(self, api: Api) -> None:
        sandbox_id = await api.new()

        first = await api.client.delete(f"/sandboxes/{sandbox_id}")
        second = await api.client.delete(f"/sandboxes/{sandbox_id}")

        assert (first.status_code, first.content) == (204, b"")
        assert error_of(second) == (404, "sandbox_not_found")

    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("GET", "/sandboxes/{}", None),
            ("DELETE", "/sandboxes/{}", None),
            ("POST", "/sandboxes/{}/connect", {"timeout": 1}),
            ("POST", "/v2/sandboxes/{}/connect", {}),
            ("POST", "/sandboxes/{}/timeout", {"timeout": 1}),
            ("POST", "/sandboxes/{}/timeout", {"timeout": 0}),
            ("POST", "/sandboxes/{}/refreshes", {"duration": 1}),
            ("PUT", "/sandboxes/{}/network", {}),
            ("GET", "/sandboxes/{}/metrics", None),
            ("GET", "/sandboxes/{}/logs", None),
            ("GET", "/v2/sandboxes/{}/logs", None),
        ],
    )
    @pytest.mark.parametrize("name", [UNKNOWN, "short", "%2e%2e%2fetc", "a" * 300, "%00"])
    async def test_unknown_ids_are_404(
        self, api: Api, method: str, path: str, body: Any, name: str
    ) -> None:
        reply = await api.client.request(method, path.format(name), json=body)
        assert error_of(reply)[0] == 404

    async def test_connect_extends_and_answers_200(self, api: Api) -> None:
        sandbox_id = await api.new(timeout=10)
        created = api.system.routes.get(sandbox_id)

        v1 = await api.client.post(f"/sandboxes/{sandbox_id}/connect", json={"timeout": 60})
        shorter = await api.client.post(f"/v2/sandboxes/{sandbox_id}/connect", json={"timeout": 1})
        empty = await api.client.post(f"/v2/sandboxes/{sandbox_id}/connect")

        assert (v1.status_code, shorter.status_code, empty.status_code) == (200, 200, 200)
        assert created is not None
        assert v1.json()["envdAccessToken"] == created.access_token
        row = await api.row(sandbox_id)
        assert row.end_at == api.clock.wall() + 300 * 10**9

    async def test_connect_v1_needs_a_timeout(self, api: Api) -> None:
        reply = await api.client.post(f"/sandboxes/{await api.new()}/connect", json={})
        assert error_of(reply)[0] == 400
        assert "timeout" in reply.json()["message"]

    async def test_timeout_zero_ends_it_now(self, api: Api) -> None:
        sandbox_id = await api.new()

        reply = await api.client.post(f"/sandboxes/{sandbox_id}/timeout", json={"timeout": 0})

        assert reply.status_code == 204
        assert (await api.client.get(f"/sandboxes/{sandbox_id}")).status_code == 404
        assert api.node.running == {}

    async def test_refresh_without_a_body(self, api: Api) -> None:
        sandbox_id = await api.new(timeout=1)
        assert (await api.client.post(f"/sandboxes/{sandbox_id}/refreshes")).status_code == 204
        assert (await api.row(sandbox_id)).end_at == api.clock.wall() + 15 * 10**9

    async def test_network_is_replaced_and_what_is_left_out_is_cleared(self, api: Api) -> None:
        sandbox_id = await api.new(
            network={"allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"], "allowPublicTraffic": False}
        )

        reply = await api.client.put(
            f"/sandboxes/{sandbox_id}/network", json={"denyOut": ["2.2.2.2"]}
        )

        assert reply.status_code == 204
        policy = api.node.running[sandbox_id].network
        assert (policy.allow_out, policy.deny_out) == ((), ("2.2.2.2/32",))
        assert not policy.allow_public_traffic
        detail = (await api.client.get(f"/sandboxes/{sandbox_id}")).json()
        assert detail["network"]["denyOut"] == ["2.2.2.2/32"]

    async def test_network_rules_that_failed_are_not_recorded(self, api: Api) -> None:
        sandbox_id = await api.new()
        api.node.knobs.network_errors = [EngineError("nft failed")]

        reply = await api.client.put(
            f"/sandboxes/{sandbox_id}/network", json={"denyOut": ["2.2.2.2"]}
        )

        assert error_of(reply) == (500, "engine")
        detail = (await api.client.get(f"/sandboxes/{sandbox_id}")).json()
        assert detail["network"]["denyOut"] == []


class TestList:
    async def test_newest_first_with_headers(self, api: Api) -> None:
        made = []
        for _ in range(3):
            made.append(await api.new())
            api.clock.pass_time(1)

        reply = await api.client.get("/v2/sandboxes")

        assert [one["sandboxID"] for one in reply.json()] == made[::-1]
        assert reply.headers["x-total-running"] == "3"
        assert "x-next-token" not in reply.headers
        assert await api.ids(order="asc") == made
        assert await api.ids("/sandboxes") == made[::-1]

    @pytest.mark.parametrize("order", ["asc", "desc"])
    async def test_pages_are_stable_when_times_are_equal(self, api: Api, order: str) -> None:
        made = {await api.new() for _ in range(7)}
        seen: list[str] = []
        token = ""
        while True:
            query = {"limit": 2, "order": order, "nextToken": token}
            reply = await api.client.get("/v2/sandboxes", params=query)
            assert reply.headers["x-total-running"] == str(len(made))
            seen += [one["sandboxID"] for one in reply.json()]
            token = reply.headers.get("x-next-token", "")
            if not token:
                break
            newcomer = await api.new()
            await api.client.delete(f"/sandboxes/{newcomer}")

        assert sorted(seen) == sorted(made)

    async def test_the_cursor_has_e2bs_form(self, api: Api) -> None:
        await api.new()
        await api.new()

        for order, tail in (("desc", ""), ("asc", "__asc")):
            reply = await api.client.get("/v2/sandboxes", params={"limit": 1, "order": order})
            text = base64.urlsafe_b64decode(reply.headers["x-next-token"]).decode()
            shown = reply.json()[0]["sandboxID"]
            assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT[\d:]+\.\d{{9}}Z__{shown}{tail}", text)

    async def test_metadata_is_decoded_three_times(self, api: Api) -> None:
        wanted = await api.new(metadata={"a b": "c&d", "x": "y"})
        await api.new(metadata={"a b": "c"})

        reply = await api.client.get("/v2/sandboxes?metadata=a%252520b%3Dc%252526d")

        assert [one["sandboxID"] for one in reply.json()] == [wanted]
        assert reply.headers["x-total-running"] == "1"

    async def test_filters(self, api: Api) -> None:
        first = await api.new()
        between = api.clock.wall()
        api.clock.pass_time(1)
        second = await api.new()
        moment = datetime.fromtimestamp(between / 10**9, UTC).isoformat()

        assert await api.ids(startedAfter=moment) == [second]
        assert await api.ids(template="base") == [second, first]
        template_id = (await api.client.get(f"/sandboxes/{first}")).json()["templateID"]
        assert await api.ids(template=template_id) == [second, first]
        assert await api.ids(template="other") == []
        assert await api.ids(state="paused") == []
        assert await api.ids(state="running,paused") == [second, first]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("limit", "0"),
            ("limit", "101"),
            ("limit", "x"),
            ("state", "dead"),
            ("state", ","),
            ("order", "up"),
            ("nextToken", "garbage"),
            ("nextToken", base64.urlsafe_b64encode(b"2026__x__y").decode()),
            ("nextToken", base64.urlsafe_b64encode(b"2026-01-01T00:00:00Z__x__asc").decode()),
            ("startedAfter", "yesterday"),
        ],
    )
    async def test_nonsense_is_400_and_named(self, api: Api, name: str, value: str) -> None:
        reply = await api.client.get("/v2/sandboxes", params={name: value})
        assert error_of(reply)[0] == 400
        assert name in reply.json()["message"]

    async def test_others_teams_are_not_shown(self, api: Api) -> None:
        sandbox_id = await api.new()
        from sqlalchemy import update

        from aenv.store.tables import sandboxes

        moved = update(sandboxes).values(team="others")
        await api.system.catalog.write(lambda db: db.execute(moved).rowcount)

        assert await api.ids() == []
        assert (await api.client.get(f"/sandboxes/{sandbox_id}")).status_code == 404
        assert (await api.client.delete(f"/sandboxes/{sandbox_id}")).status_code == 404
        assert sandbox_id in api.node.running
