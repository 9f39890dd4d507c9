"""Stored snapshots of one node: a folder each, whole or absent, beside the disks in their pool.

Imports models, the engine port and ``faults``.
"""
