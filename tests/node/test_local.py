"""A node made of fakes: create, destroy, deaths, restarts; a failure leaves nothing."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from hashlib import sha256

import pytest
from tests.fakes.engine import FAKE
from tests.fakes.images import BASE
from tests.fakes.waiting import until
from tests.node.nodes import GIB, Bench, make_spec

from aenv.models.errors import (
    AgentUnreachableError,
    CapabilityError,
    CapacityError,
    ConflictError,
    EngineError,
    EnvironmentFaultError,
    InvalidRequestError,
    NotFoundError,
    TemplateNotReadyError,
)
from aenv.models.sandboxes import NetworkPolicy, Resources
from aenv.models.templates import TemplateProgress, TemplateStatus
from aenv.node import starting
from aenv.node.hosts import Headroom
from aenv.node.local import LocalNode


async def test_a_created_sandbox_is_initialised_and_described(bench: Bench, node: LocalNode):
    spec = make_spec(env_vars={"A": "1"})
    running = await node.create(spec)
    machine = bench.engine.machines[spec.sandbox_id]
    assert running.sandbox_id == spec.sandbox_id
    assert running.agent == machine.address(49983)
    assert running.guest_host == "127.0.0.1"
    assert (running.template, running.engine) == (BASE, "fake")
    verifier = machine.spec.agent_env["AENV_HOST_VERIFIER"]
    assert verifier == sha256(b"secret").hexdigest()
    assert machine.agent.secrets == ["secret"]
    (init,) = machine.agent.inits
    assert init["sandboxId"] == init["hostname"] == spec.sandbox_id
    assert init["templateId"] == "base"
    assert init["accessToken"] == "token"
    assert init["envVars"] == {"LANG": "C.UTF-8", "A": "1"}
    assert init["dnsServers"] == ["10.93.0.1"]
    assert f"10.93.0.2 {spec.sandbox_id}" in init["hosts"]
    assert "defaultWorkdir" not in init


async def test_a_template_may_name_a_working_directory(bench: Bench, node: LocalNode):
    bench.images.ready["app"] = replace(BASE, name="app", workdir="/app")
    spec = make_spec(template="app")
    await node.create(spec)
    assert bench.engine.machines[spec.sandbox_id].agent.inits[0]["defaultWorkdir"] == "/app"


async def test_the_host_ca_is_named_to_every_common_client_when_injected(bench: Bench):
    bench.inject_host_ca = True
    node = bench.node()
    await node.start(())
    spec = make_spec(env_vars={"PIP_CERT": "/mine"})
    await node.create(spec)
    machine = bench.engine.machines[spec.sandbox_id]
    env = machine.agent.inits[0]["envVars"]
    assert machine.spec.host_ca
    assert env["SSL_CERT_FILE"] == env["GIT_SSL_CAINFO"] == "/.aenv/ca.crt"
    assert env["PIP_CERT"] == "/mine"
    await node.destroy(spec.sandbox_id)
    await node.close()


async def test_the_callers_resolvers_replace_the_engines(bench: Bench, node: LocalNode):
    spec = make_spec(network=NetworkPolicy(dns_servers=("9.9.9.9",)))
    await node.create(spec)
    agent = bench.engine.machines[spec.sandbox_id].agent
    assert agent.inits[0]["dnsServers"] == ["9.9.9.9"]
    await node.set_network(spec.sandbox_id, NetworkPolicy(deny_out=("1.1.1.1",)))
    assert agent.inits[1]["dnsServers"] == ["10.93.0.1"]
    await node.set_network(spec.sandbox_id, NetworkPolicy())
    assert len(agent.inits) == 2
    assert bench.engine.machines[spec.sandbox_id].policies[-1] == NetworkPolicy()


async def test_start_and_ready_commands_of_the_template_run(bench: Bench, node: LocalNode):
    bench.images.ready["web"] = replace(BASE, name="web", start_cmd="serve", ready_cmd="ping")
    spec = make_spec(template="web")
    await node.create(spec)
    assert bench.engine.machines[spec.sandbox_id].agent.started == ["serve", "ping"]


async def test_the_words_of_an_images_start_command_need_no_shell(bench: Bench, node: LocalNode):
    web = replace(BASE, name="web", start_cmd="/entry serve 'a b'", start_exec=True)
    bench.images.ready["web"] = web
    spec = make_spec(template="web")
    await node.create(spec)
    assert bench.engine.machines[spec.sandbox_id].agent.programs == [["/entry", "serve", "a b"]]


async def test_a_template_that_never_gets_ready_is_the_environments_fault(
    bench: Bench, node: LocalNode, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(starting, "READY_DEADLINE", 0.05)
    monkeypatch.setattr(starting, "READY_INTERVAL", 0.01)
    bench.images.ready["web"] = replace(BASE, name="web", ready_cmd="ping")
    bench.engine.behaviour.commands["ping"] = 3
    with pytest.raises(EnvironmentFaultError, match="exit code 3"):
        await node.create(make_spec(template="web"))
    assert not bench.engine.alive


async def test_an_unknown_template_and_an_unknown_engine_are_refused(node: LocalNode):
    with pytest.raises(NotFoundError):
        await node.create(make_spec(template="nope"))
    with pytest.raises(InvalidRequestError, match="nope"):
        await node.create(make_spec(engine="nope"))


async def test_a_template_being_built_is_joined_and_the_progress_told(
    bench: Bench, node: LocalNode
):
    bench.images.unready["slow"] = TemplateProgress(
        "slow", TemplateStatus.BUILDING, 0.4, "unpacking"
    )
    with pytest.raises(TemplateNotReadyError, match="40%, unpacking"):
        await node.create(make_spec(template="slow"))
    assert bench.images.ensured == ["slow"]


@pytest.mark.parametrize(
    "policy",
    [
        NetworkPolicy(allow_internet=False),
        NetworkPolicy(deny_out=("8.8.8.8",)),
        NetworkPolicy(dns_servers=("9.9.9.9",)),
    ],
)
async def test_rules_an_engine_cannot_enforce_are_refused(
    bench: Bench, node: LocalNode, policy: NetworkPolicy
):
    bench.engine.capabilities = replace(FAKE, egress_policy=False)
    with pytest.raises(CapabilityError, match="fake"):
        await node.create(make_spec(network=policy))
    await node.create(make_spec(network=NetworkPolicy(allow_out=("8.8.8.8",))))
    (spec,) = bench.engine.alive
    with pytest.raises(CapabilityError):
        await node.set_network(spec, policy)


async def test_a_boot_that_fails_leaves_nothing(bench: Bench, node: LocalNode):
    bench.engine.boot_error = EngineError("no slot")
    spec = make_spec()
    with pytest.raises(EngineError, match="no slot"):
        await node.create(spec)
    bench.engine.boot_error = None
    await node.create(spec)


async def test_an_agent_that_never_answers_fails_the_create(
    bench: Bench, node: LocalNode, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(starting, "AGENT_DEADLINE", 0.1)
    bench.engine.behaviour.silent = True
    with pytest.raises(AgentUnreachableError, match="did not answer"):
        await node.create(make_spec())
    assert not bench.engine.alive


async def test_an_agent_that_answers_500_fails_the_create(bench: Bench, node: LocalNode):
    bench.engine.behaviour.init_status = 500
    with pytest.raises(AgentUnreachableError, match="HTTP 500"):
        await node.create(make_spec())
    assert not bench.engine.alive


async def test_a_guest_that_dies_during_init_fails_the_create_at_once(
    bench: Bench, node: LocalNode
):
    bench.engine.behaviour.silent = True
    spec = make_spec()
    create = asyncio.create_task(node.create(spec))
    await until(lambda: spec.sandbox_id in bench.engine.machines)
    await bench.engine.machines[spec.sandbox_id].die("out of memory")
    with pytest.raises(EngineError, match=r"out of memory \(exit code 137\)"):
        await create
    assert not bench.engine.alive


@pytest.mark.parametrize("stage", ["boot", "init"])
async def test_a_cancelled_create_leaves_nothing(bench: Bench, node: LocalNode, stage: str):
    bench.engine.behaviour.silent = True
    bench.engine.boot_gate = asyncio.Event()
    if stage == "init":
        bench.engine.boot_gate.set()
    create = asyncio.create_task(node.create(make_spec()))
    await until(lambda: bench.engine.booting if stage == "boot" else bench.engine.alive)
    create.cancel()
    with pytest.raises(asyncio.CancelledError):
        await create
    assert not bench.engine.alive
    assert not bench.engine.booting


async def test_destroy_during_create_ends_the_create(bench: Bench, node: LocalNode):
    bench.engine.behaviour.silent = True
    spec = make_spec()
    create = asyncio.create_task(node.create(spec))
    await until(lambda: bench.engine.alive)
    await node.destroy(spec.sandbox_id)
    with pytest.raises(ConflictError, match="killed while it was starting"):
        await create
    assert not bench.engine.alive


async def test_destroy_is_idempotent_and_shared(bench: Bench, node: LocalNode):
    bench.engine.destroy_gate = asyncio.Event()
    spec = make_spec()
    await node.create(spec)
    first, second = (asyncio.create_task(node.destroy(spec.sandbox_id)) for _ in range(2))
    await until(lambda: bench.engine.destroys)
    second.cancel()
    bench.engine.destroy_gate.set()
    await first
    await node.destroy(spec.sandbox_id)
    await node.destroy("unknown")
    assert bench.engine.destroys == [spec.sandbox_id]


async def test_a_failed_destroy_can_be_tried_again(bench: Bench, node: LocalNode):
    spec = make_spec()
    await node.create(spec)
    bench.engine.destroy_errors.append(EngineError("busy"))
    with pytest.raises(EngineError, match="busy"):
        await node.destroy(spec.sandbox_id)
    await node.destroy(spec.sandbox_id)
    assert not bench.engine.alive


async def test_a_second_create_of_the_same_id_is_a_conflict(bench: Bench, node: LocalNode):
    spec = make_spec()
    await node.create(spec)
    with pytest.raises(ConflictError, match="exists"):
        await node.create(spec)
    assert bench.engine.alive == {spec.sandbox_id}


async def test_many_creates_at_once_run_some_boots_at_a_time(bench: Bench, node: LocalNode):
    most = max(16, 8 * (os.cpu_count() or 1))
    specs = [make_spec() for _ in range(2 * most)]
    await asyncio.gather(*(node.create(spec) for spec in specs))
    assert bench.engine.alive == {spec.sandbox_id for spec in specs}
    assert 1 < bench.engine.most_booting <= most


@pytest.mark.parametrize(
    ("headroom", "what"),
    [(Headroom(GIB // 2, 64 * GIB), "memory"), (Headroom(64 * GIB, 2 * GIB), "disk")],
)
async def test_what_the_host_cannot_hold_is_refused_with_figures(
    bench: Bench, node: LocalNode, headroom: Headroom, what: str
):
    bench.headroom = headroom
    with pytest.raises(CapacityError, match=f"short of {what}: .* MiB are available") as refused:
        await node.create(make_spec(resources=Resources(memory_mb=1024)))
    assert refused.value.retry_after
    assert not bench.engine.machines


async def test_a_template_in_use_cannot_be_deleted(bench: Bench, node: LocalNode):
    spec = make_spec()
    await node.create(spec)
    with pytest.raises(ConflictError, match="in use by 1"):
        await node.delete_template("base")
    await node.destroy(spec.sandbox_id)
    await node.delete_template("base")
    assert await node.templates() == []


async def test_the_node_tells_what_it_is(node: LocalNode):
    info = await node.info()
    assert info.cpu_count >= 1
    assert info.memory_total > 0
    assert info.memory_available == 64 * GIB
    assert [found.engine for found in info.capabilities] == ["fake"]
