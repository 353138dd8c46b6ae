"""Programs in any language as candidates: a process answers requests as specified in `PROTOCOL.md` in this folder.

`client.py` and `client.mjs` are clients for users to copy; this package does not import them.
"""
