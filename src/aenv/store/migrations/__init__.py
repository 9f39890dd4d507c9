"""Alembic's migrations, one file per schema, packaged with the server."""
