"""aenv inside a sandbox, where the platform is not installed. See :mod:`aenv.guest`."""

from aenv.guest import Restore, on_restore

__all__ = ["Restore", "on_restore"]
