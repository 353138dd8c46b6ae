"""Programs in any language as candidates: a process that answers requests, as `PROTOCOL.md` in this folder specifies.

`client.py` and `client.mjs` are clients to be copied; nothing here imports them.
"""

from conformance.candidates.command.command import Command, arguments_of

__all__ = ["Command", "arguments_of"]
