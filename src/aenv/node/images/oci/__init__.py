"""OCI images: from a registry, a layout folder or a saved archive to EROFS layers and a record.

``recipe.OciRecipe`` is the face. ``sources`` deliver verified bytes, ``tars`` read a layer without
touching a file system, ``trees`` hold what it contains, ``imagefiles`` write that as EROFS, and
``layers`` keep the result, one per layer and host. May import what ``aenv.node.images`` may.
"""
