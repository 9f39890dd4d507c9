"""The pinned runsc: where it may come from (``sources``), and finding or installing it.

May import ``models``.
"""

from aenv.node.runsc.finder import Runsc, find
from aenv.node.runsc.installer import install, keep

__all__ = ["Runsc", "find", "install", "keep"]
