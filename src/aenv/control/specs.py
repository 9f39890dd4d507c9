"""From a sandbox's row to what a node is asked to run."""

from __future__ import annotations

from aenv.control import networks
from aenv.control.routes import Route
from aenv.node.port import RunningSandbox, SandboxSpec
from aenv.store.records import SandboxRecord


def spec(
    record: SandboxRecord, *, snapshot: str | None = None, reboot: bool = False
) -> SandboxSpec:
    """``snapshot``: the image it starts from or comes back from; ``reboot``: from its disk only."""
    return SandboxSpec(
        sandbox_id=record.id,
        template=record.template,
        resources=record.resources,
        network=networks.from_json(record.network),
        access_token=record.access_token,
        host_secret=record.host_secret,
        env_vars=dict(record.env_vars),
        engine=record.engine,
        snapshot=snapshot,
        secret_env=frozenset(record.secret_env),
        reboot=reboot,
        volumes=record.volumes,
    )


def route(record: SandboxRecord, running: RunningSandbox) -> Route:
    """Where the proxy finds a running sandbox."""
    rules = networks.from_json(record.network)
    return Route(
        sandbox_id=record.id,
        agent=(running.agent.host, running.agent.port),
        guest_host=running.guest_host,
        access_token=record.access_token,
        traffic_token=record.traffic_token,
        allow_public_traffic=rules.allow_public_traffic,
        mask_request_host=rules.mask_request_host,
    )
