"""What a fresh guest is told about itself: the body of its ``/init``."""

from __future__ import annotations

from aenv.models.sandboxes import NetworkPolicy
from aenv.models.templates import TemplateInfo
from aenv.node.agentwire import AgentInit
from aenv.node.engine import Capabilities, GuestNetwork, Isolation
from aenv.node.port import SandboxSpec

GUEST_CA = "/.aenv/ca.crt"
CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
)


def guest_init(
    spec: SandboxSpec,
    template: TemplateInfo,
    capabilities: Capabilities,
    network: GuestNetwork | None,
    *,
    host_ca: bool,
) -> AgentInit:
    """What ``/init`` tells a fresh guest; the caller's variables win over the template's."""
    env = dict.fromkeys(CA_VARIABLES, GUEST_CA) if host_ca else {}
    own = capabilities.isolation is not Isolation.NONE
    return AgentInit(
        sandbox_id=spec.sandbox_id,
        template_id=template.name,
        access_token=spec.access_token,
        env_vars={**env, **template.env, **spec.env_vars},
        secret_env=tuple(sorted(spec.secret_env)),
        default_user=template.default_user if own else "",
        default_workdir=_workdir(template) if own else "",
        hostname=spec.sandbox_id if own else "",
        hosts=hosts_file(spec.sandbox_id, network) if own else "",
        dns_servers=nameservers(spec.network, network),
    )


def _workdir(template: TemplateInfo) -> str:
    """Empty, that is every user's own home, unless the template names a place of its own."""
    return "" if template.workdir == f"/home/{template.default_user}" else template.workdir


def hosts_file(hostname: str, network: GuestNetwork | None) -> str:
    address = network.address if network else "127.0.1.1"
    lines = ("127.0.0.1 localhost", "::1 localhost ip6-localhost", f"{address} {hostname}", "")
    return "\n".join(lines)


def nameservers(policy: NetworkPolicy, network: GuestNetwork | None) -> tuple[str, ...]:
    """The resolvers the caller asked for, or else the engine's."""
    if network is None:
        return ()
    return policy.dns_servers or network.nameservers
