"""Writable disks of sandboxes: ``pool`` makes them, ``disk`` is what a sandbox holds.

Imports the host boundary, models and the engine port.
"""
