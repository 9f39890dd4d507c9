"""The rules: one service and one state machine per noun, over the node port and the catalog.

Imports node (through its port), store and models.
"""
