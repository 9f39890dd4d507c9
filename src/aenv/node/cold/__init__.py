"""Snapshots in the blob store: disks sealed into layers, copies put there and brought back.

Imports models, the engine port, images, snapshots, the host's mounts and the blob store's face.
"""
