"""Which route needs what."""

from __future__ import annotations

import pytest
from starlette.routing import Route
from tests.server.apis import Api, error_of

from aenv.server.app import create_app

LOCAL, REMOTE = "127.0.0.1", "192.0.2.1"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("X-API-Key", "wrong")],
        [("X-API-Key", "")],
        [("X-API-Key", "\x00ü")],
        [("Authorization", "Bearer {key}")],
        [("X-Admin-Token", "{key}")],
        [("X-API-Key", "{key}"), ("X-API-Key", "{key}")],
        [("X-API-Key", "{key}"), ("X-API-Key", "wrong")],
    ],
)
async def test_without_one_valid_key_it_is_401_with_a_body(
    api: Api, headers: list[tuple[str, str]]
) -> None:
    key = api.system.keys.local
    sent = [(name, value.format(key=key).encode()) for name, value in headers]
    client = api.client_from(LOCAL, {})

    for path in ("/sandboxes", "/v2/sandboxes", "/templates", "/nodes", "/unknown", "/proxy/x"):
        assert error_of(await client.get(path, headers=sent)) == (401, "unauthorized")


async def test_a_key_beside_other_credentials_counts(api: Api) -> None:
    reply = await api.client.get("/sandboxes", headers={"Authorization": "Bearer x"})
    assert reply.status_code == 200


async def test_every_route_needs_a_key_but_the_open_ones(api: Api) -> None:
    """Also the routes that somebody adds tomorrow."""
    client = api.client_from(REMOTE, {})
    app = create_app(api.system)
    paths = [route.path for route in app.routes if isinstance(route, Route)]
    open_ones = {
        path
        for path in [*paths, *(await client.get("/openapi.json")).json()["paths"]]
        if (await client.get(path.replace("{", "").replace("}", ""))).status_code != 401
    }
    assert open_ones == {"/health", "/openapi.json"}


async def test_a_revoked_key_is_refused_at_once(api: Api) -> None:
    text, record = await api.system.keys.create("ci")
    client = api.client_from(LOCAL, {"X-API-Key": text})
    assert (await client.get("/sandboxes")).status_code == 200

    await api.system.keys.revoke(record.id)

    assert (await client.get("/sandboxes")).status_code == 401
    listed = {key.id: key for key in await api.system.keys.all()}
    assert listed[record.id].revoked_at is not None
    assert text not in repr(listed)


async def test_shutting_down_needs_an_admin_key(api: Api) -> None:
    text, _ = await api.system.keys.create("ci")
    client = api.client_from(LOCAL, {"X-API-Key": text})

    assert error_of(await client.post("/admin/shutdown")) == (403, "forbidden")
    assert not api.system.stop.is_set()

    assert (await api.client.post("/admin/shutdown")).json() == {"killed": 0, "failed": []}
    assert api.system.stop.is_set()


class TestMetrics:
    async def test_need_no_key_on_loopback(self, api: Api) -> None:
        for address in (LOCAL, "::1"):
            reply = await api.client_from(address, {}).get("/metrics")
            assert reply.status_code == 200

    @pytest.mark.parametrize(
        "header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"]
    )
    async def test_but_through_a_proxy_on_loopback(self, api: Api, header: str) -> None:
        client = api.client_from(LOCAL, {header: "127.0.0.1"})
        assert (await client.get("/metrics")).status_code == 401

    async def test_need_one_from_elsewhere(self, api: Api) -> None:
        assert (await api.client_from(REMOTE, {}).get("/metrics")).status_code == 401
        client = api.client_from(REMOTE, {"X-API-Key": api.system.keys.local})
        assert (await client.get("/metrics")).status_code == 200


class TestTheLocalKey:
    async def test_stays_the_same_over_restarts(self, api: Api) -> None:
        first = api.system.keys.local
        await api.system.keys.publish(api.settings.folders, "http://x")
        await api.system.close()
        await api.restart()
        assert api.system.keys.local == first

    async def test_is_made_anew_when_its_file_was_lost_and_the_old_one_dies(self, api: Api) -> None:
        first = api.system.keys.local
        await api.system.close()
        await api.restart()
        assert api.system.keys.local != first
        assert not api.system.keys.is_valid(first)

    async def test_a_preset_replaces_the_preset_before(self, api: Api) -> None:
        for preset, other in (("preset-one", "preset-two"), ("preset-two", "preset-one")) * 2:
            await api.system.close()
            api.options = {"api_key": preset}
            await api.restart()
            assert api.system.keys.is_valid(preset)
            assert not api.system.keys.is_valid(other)

    async def test_a_preset_may_be_any_string_that_a_header_carries(self, api: Api) -> None:
        for preset in ("k", "two words", "~" * 512):
            await api.system.close()
            api.options = {"api_key": preset}
            await api.restart()
            client = api.client_from(LOCAL, {"X-API-Key": preset})
            assert (await client.get("/v2/sandboxes")).status_code == 200

    async def test_only_hashes_are_in_the_catalog(self, api: Api) -> None:
        key = api.system.keys.local.encode()
        await api.system.catalog.read(
            lambda db: db.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        )
        for file in api.settings.folders.data.iterdir():
            assert key not in file.read_bytes()
