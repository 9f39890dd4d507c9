"""The blob store: content in chunks, shared between blobs, in a folder or an S3-compatible bucket.

``store.BlobStore`` is its face. Imports obstore and zstandard, so import it only where blobs are
used. What is there and who needs it stands in the catalog (``ledger``); objects are written once
under names that are never used again, so that no late write or delete can meet another's object.
"""
