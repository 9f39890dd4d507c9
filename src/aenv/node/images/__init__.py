"""Images: the read-only root file systems that templates start from, and how they are built.

``store.ImageStore`` is the face. A *recipe* (one module per source: ``base``, ``host``; later OCI
images and Dockerfiles) turns into an image, once per host, in the cache folder; ``builds`` runs
that in a process of its own and lets others join. May import ``aenv.models`` and the port in
``aenv.node.engine``; mounts through ``aenv.node.host``.
"""

from aenv.node.images.store import Image, ImageStore

__all__ = ["Image", "ImageStore"]
