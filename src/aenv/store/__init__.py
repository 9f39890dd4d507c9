"""Persistence: the catalog (SQLAlchemy), blobs, settings files. Imports models only."""
