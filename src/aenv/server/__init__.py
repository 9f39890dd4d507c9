"""ASGI: E2B routes, the data-plane proxy, auth. Routers map requests onto control's services and
hold no rules.

Imports control and models.
"""
