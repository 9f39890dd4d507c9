"""Warm pools: machines that wait, frozen, for the creates that will probably come.

Imports what a node is made of; only ``node.local`` imports this.
"""

from aenv.node.pools.demand import PoolKey
from aenv.node.pools.filling import Filling
from aenv.node.pools.pools import PoolBounds, Pools

__all__ = ["Filling", "PoolBounds", "PoolKey", "Pools"]
