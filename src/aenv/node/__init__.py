"""One host: engines, images, disks, network slots, the agent's client, behind the Node port
(port.py).

Imports store and models.
"""
