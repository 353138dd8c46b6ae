"""Exported programs as candidates: loaded without their source code; interior activations are located in their graphs.

To read another format, write a module here with a function `opened(path, device, inputs)` that returns a `graph.Program`, or the
reason why the case is not supported, and enter its suffix in `candidates.lookup.READERS`. Another kind of file
also needs a public class, and is handled in `candidates.registry.load_implementation`, and in `_require_readable` and `KINDS` of
`candidates.lookup`.
"""
