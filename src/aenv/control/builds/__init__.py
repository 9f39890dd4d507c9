"""Templates that are built in sandboxes of our own: plans of steps, the disks after them, logs, and
the image that a finished build leaves. Speaks to the node's port and the catalog.
"""
