"""A node's network: slots (``slots``), what sandboxes may reach (``rules``), names (``dns``).

Every sandbox gets a slot: a network namespace joined to the host by a veth pair with a /30 of its
own. Imports the host boundary, models and the engine port.
"""
