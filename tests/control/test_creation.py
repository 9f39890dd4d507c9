"""Making sandboxes: what comes out, and that a failure leaves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.control.volumes import MountRequest
from aenv.models.errors import (
    CapabilityError,
    CapacityError,
    ConflictError,
    IdempotencyMismatchError,
    InfrastructureError,
    InvalidRequestError,
    NotBuiltYetError,
    NotFoundError,
    QuotaExceededError,
    SandboxNotFoundError,
    TemplateBuildError,
    TemplateNotReadyError,
)
from aenv.models.sandboxes import Resources
from aenv.models.settings import Quotas
from aenv.models.templates import TemplateProgress, TemplateStatus


async def test_a_created_sandbox_runs_and_has_a_route(house: House) -> None:
    record = await house.create(metadata={"a": "b"}, timeout=60)

    assert record.state == "running"
    assert record.end_at - record.started_at == 60 * 10**9
    assert house.node.running[record.id].access_token == record.access_token
    route = house.system.routes.get(record.id)
    assert route is not None
    assert route.access_token == record.access_token


async def test_every_sandbox_has_tokens_of_its_own(house: House) -> None:
    first, second = await house.create(), await house.create()

    tokens = {first.access_token, first.host_secret, second.access_token, second.host_secret}
    assert len(tokens) == 4


async def test_secrets_do_not_show_in_a_printed_record(house: House) -> None:
    record = await house.create(env_vars={"KEY": "hunter2"})

    assert record.access_token not in repr(record)
    assert record.host_secret not in repr(record)
    assert "hunter2" not in repr(house.node.running[record.id])


@pytest.mark.parametrize("failure", [CapacityError("full"), RuntimeError("boom")])
async def test_a_failed_create_leaves_nothing(house: House, failure: Exception) -> None:
    house.node.knobs.create_errors = [failure]

    expected = type(failure) if isinstance(failure, CapacityError) else InfrastructureError
    with pytest.raises(expected):
        await house.create()

    assert await house.living() == []
    assert house.node.running == {}
    assert len(house.system.routes) == 0
    assert house.system.telemetry.creates_failed == 1


async def test_what_nobody_got_an_answer_for_is_ended(house: House) -> None:
    house.node.knobs.create_gate = asyncio.Event()
    request = asyncio.create_task(house.create())
    await until(lambda: house.node.count("create"))
    sandbox_id = house.node.calls[-1][1]

    request.cancel()
    await asyncio.wait({request})
    house.node.knobs.create_gate.set()

    await until_equal(lambda: house.state(sandbox_id), "killed")
    await until(lambda: house.node.running == {})
    assert len(house.system.routes) == 0


async def test_whenever_the_caller_hangs_up_nothing_is_left(house: House) -> None:
    for steps in range(12):
        request = asyncio.create_task(house.create())
        for _ in range(steps):
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait({request})
        assert request.cancelled()
    await until_equal(house.living, [])
    await until(lambda: house.node.running == {})
    assert len(house.system.routes) == 0


async def test_with_a_key_a_create_is_finished_though_its_caller_hung_up(house: House) -> None:
    house.node.knobs.create_gate = asyncio.Event()
    request = asyncio.create_task(house.create(idempotency_key="k"))
    await until(lambda: house.node.count("create"))

    request.cancel()
    await asyncio.wait({request})
    house.node.knobs.create_gate.set()

    await until(lambda: len(house.system.routes) == 1)
    assert (await house.create(idempotency_key="k")).id == house.node.calls[-1][1]


async def test_deleting_a_sandbox_that_is_being_made_leaves_nothing(house: House) -> None:
    house.node.knobs.create_gate = asyncio.Event()
    request = asyncio.create_task(house.create(idempotency_key="k"))
    await until(lambda: house.node.count("create"))
    sandbox_id = house.node.calls[-1][1]

    await house.system.sandboxes.kill(house.caller, sandbox_id)

    with pytest.raises(ConflictError, match="ended while"):
        await request
    assert await house.state(sandbox_id) == "killed"
    assert house.node.running == {}
    assert len(house.system.routes) == 0


async def test_deleting_in_the_moment_the_boot_succeeds_leaves_nothing(house: House) -> None:
    for _ in range(20):
        gate = house.node.knobs.create_gate = asyncio.Event()
        before = house.node.count("create")
        request = asyncio.create_task(house.create())
        await until(lambda before=before: house.node.count("create") > before)
        sandbox_id = house.node.calls[-1][1]
        gate.set()
        kill = house.system.sandboxes.kill(house.caller, sandbox_id)
        await asyncio.gather(request, kill, return_exceptions=True)

        assert await house.state(sandbox_id) == "killed"
        assert house.system.routes.get(sandbox_id) is None
        assert sandbox_id not in house.node.running


class TestIdempotency:
    async def test_the_same_key_and_body_give_the_same_sandbox(self, house: House) -> None:
        first = await house.create(idempotency_key="k", fingerprint="f")
        again = await house.create(idempotency_key="k", fingerprint="f")

        assert again.id == first.id
        assert house.node.count("create") == 1

    async def test_also_when_they_come_at_once(self, house: House) -> None:
        house.node.knobs.create_gate = asyncio.Event()
        requests = [
            asyncio.create_task(house.create(idempotency_key="k", fingerprint="f"))
            for _ in range(10)
        ]
        await until(lambda: house.node.count("create"))
        house.node.knobs.create_gate.set()

        assert len({record.id for record in await asyncio.gather(*requests)}) == 1
        assert len(house.node.running) == 1

    async def test_another_body_is_refused(self, house: House) -> None:
        await house.create(idempotency_key="k", fingerprint="f")

        with pytest.raises(IdempotencyMismatchError):
            await house.create(idempotency_key="k", fingerprint="other")

    async def test_a_failed_create_frees_the_key(self, house: House) -> None:
        house.node.knobs.create_errors = [CapacityError("full")]
        with pytest.raises(CapacityError):
            await house.create(idempotency_key="k", fingerprint="f")

        record = await house.create(idempotency_key="k", fingerprint="other")

        assert record.state == "running"

    async def test_those_who_joined_a_failing_create_get_its_error(self, house: House) -> None:
        house.node.knobs.create_gate = asyncio.Event()
        house.node.knobs.create_errors = [CapacityError("full")]
        first = asyncio.create_task(house.create(idempotency_key="k", fingerprint="f"))
        await until(lambda: house.node.count("create"))
        second = asyncio.create_task(house.create(idempotency_key="k", fingerprint="f"))
        await asyncio.sleep(0.05)
        house.node.knobs.create_gate.set()

        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [CapacityError, CapacityError]

    async def test_keys_are_forgotten_after_a_day(self, house: House) -> None:
        first = await house.create(idempotency_key="k", fingerprint="f", timeout=200_000)
        house.clock.pass_time(24 * 3600 + 1)
        second = await house.create(idempotency_key="k", fingerprint="f")

        assert second.id != first.id

    async def test_keys_belong_to_one_api_key(self, house: House) -> None:
        first = await house.create(idempotency_key="k", fingerprint="f")
        text, _ = await house.system.keys.create("other")
        other = house.system.keys.authenticate(text)
        from aenv.control.requests import CreateRequest

        request = CreateRequest("base", 300, idempotency_key="k", fingerprint="f")
        second = await house.system.sandboxes.create(other, request)

        assert second.id != first.id


class TestTemplates:
    async def test_unknown_is_not_found(self, house: House) -> None:
        with pytest.raises(NotFoundError, match="nope"):
            await house.create(template="nope")

    @pytest.mark.parametrize("reference", ["base", "base:default", "default/base"])
    async def test_by_name_tag_and_team(self, house: House, reference: str) -> None:
        assert (await house.create(template=reference)).template == "base"

    @pytest.mark.parametrize("reference", ["base:v2", "others/base", "BASE", "../base", "base\0"])
    async def test_other_tags_teams_and_nonsense_are_not_found(
        self, house: House, reference: str
    ) -> None:
        with pytest.raises(NotFoundError):
            await house.create(template=reference)

    async def test_by_id(self, house: House) -> None:
        template = await house.system.templates.get("base")

        assert (await house.create(template=template.id)).template_id == template.id

    async def test_being_built_says_how_far(self, house: House) -> None:
        house.node.infos.clear()
        house.node.knobs.build = TemplateProgress("base", TemplateStatus.BUILDING, 0.4, "unpack")

        with pytest.raises(TemplateNotReadyError, match=r"40% \(unpack\)") as caught:
            await house.create()

        assert caught.value.retry_after == 5
        assert await house.living() == []

    async def test_a_broken_build_is_not_worth_a_retry(self, house: House) -> None:
        house.node.infos.clear()
        house.node.knobs.build = TemplateProgress(
            "base", TemplateStatus.ERROR, error="mirror is down"
        )

        with pytest.raises(TemplateBuildError, match="mirror is down"):
            await house.create()


@pytest.mark.parametrize(
    ("options", "error", "field"),
    [
        ({"auto_pause": True, "engine": "plain"}, CapabilityError, "autoPause"),
        ({"auto_resume": True, "engine": "plain"}, CapabilityError, "autoResume"),
        ({"secret_env": ("KEY",)}, InvalidRequestError, "secretEnvVars"),
        (
            {"auto_resume": True, "auto_pause_memory": False},
            InvalidRequestError,
            "autoPauseMemory",
        ),
        ({"volume_mounts": (MountRequest("v", "/v"),)}, NotFoundError, "volume 'v'"),
        ({"iam": {"tokens": {}}}, NotBuiltYetError, "iam"),
        ({"timeout": -1}, InvalidRequestError, "timeout"),
        ({"env_vars": {"A=B": "c"}}, InvalidRequestError, "envVars"),
        ({"env_vars": {"A": "c" * 2**17}}, InvalidRequestError, "envVars"),
        ({"metadata": {"k": "v" * 2**17}}, InvalidRequestError, "metadata"),
    ],
)
async def test_what_is_refused_names_the_field(
    house: House, options: dict[str, object], error: type[Exception], field: str
) -> None:
    with pytest.raises(error, match=field):
        await house.create(**options)
    assert house.node.count("create") == 0


async def test_the_servers_default_size_counts_for_templates_without_one(tmp_path: Path) -> None:
    house = await House(tmp_path, options={"defaults": Resources(1, 256, 512)}).open()
    try:
        await house.create()
        await house.create(memory_mb=128)
        sizes = sorted(spec.resources.memory_mb for spec in house.node.running.values())
        assert sizes == [128, 256]
    finally:
        await house.system.close()


class TestQuotas:
    @pytest.mark.parametrize(
        ("quotas", "figures"),
        [
            (Quotas(sandboxes=2), "2 sandboxes in use, 1 more asked for, the limit is 2"),
            (Quotas(cpu=5), "4 vCPUs in use, 2 more"),
            (Quotas(memory_mb=2048), "2048 MiB of memory in use, 1024 more"),
        ],
    )
    async def test_are_refused_with_the_figures(
        self, tmp_path: Path, quotas: Quotas, figures: str
    ) -> None:
        house = await House(tmp_path, options={"quotas": quotas}).open()
        try:
            first = await house.create()
            await house.create()
            with pytest.raises(QuotaExceededError, match=figures):
                await house.create()
            await house.system.sandboxes.kill(house.caller, first.id)
            await house.create()
        finally:
            await house.system.close()

    async def test_hold_for_creates_that_come_at_once(self, tmp_path: Path) -> None:
        house = await House(tmp_path, options={"quotas": Quotas(sandboxes=3)}).open()
        try:
            outcomes = await asyncio.gather(
                *(house.create() for _ in range(12)), return_exceptions=True
            )
            assert sum(isinstance(one, QuotaExceededError) for one in outcomes) == 9
            assert len(house.node.running) == 3
        finally:
            await house.system.close()


async def test_fifty_creates_at_once(house: House) -> None:
    records = await asyncio.gather(*(house.create() for _ in range(50)))

    assert len({record.id for record in records}) == 50
    assert len(house.system.routes) == 50


async def test_closing_calls_off_what_is_half_made(tmp_path: Path) -> None:
    house = await House(tmp_path).open()
    house.node.knobs.create_gate = asyncio.Event()
    request = asyncio.create_task(house.create())
    await until(lambda: house.node.count("create"))

    await house.system.close()

    with pytest.raises(ConflictError):
        await request
    assert house.node.running == {}
    await house.restart()
    assert await house.living() == []
    await house.system.close()


async def test_a_closing_server_makes_nothing_new(house: House) -> None:
    await house.system.shut_down(kill=False)

    with pytest.raises(CapacityError, match="shutting down"):
        await house.create()


async def test_uses_of_a_template_are_counted(house: House) -> None:
    await house.create()
    await house.create()

    async def count() -> int:
        return (await house.system.templates.get("base")).uses.count

    await until_equal(count, 2)


async def test_an_unknown_sandbox_is_not_found(house: House) -> None:
    for name in ("i" + "a" * 19, "nope", "", "../../etc"):
        with pytest.raises(SandboxNotFoundError):
            await house.system.sandboxes.get(house.caller, name)
