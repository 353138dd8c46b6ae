"""Processes as a terminal starts them."""

import signal


def as_in_a_terminal() -> None:
    """Let SIGINT interrupt: a process that a shell starts in the background ignores it, and so do those that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
