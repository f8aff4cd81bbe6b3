"""Ctrl-C and SIGTERM: a command that is stopped prints one line and exits."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """SIGTERM was received. Like KeyboardInterrupt it is not an Exception, so that no library catches it."""


@contextmanager
def stoppable(message: Callable[[], str]) -> Iterator[None]:
    """Prints one line on Ctrl-C or SIGTERM, and exits with the status of shells, 130 or 143.

    Args:
        message: returns the line to print, such as how to resume; empty to print nothing.
    """

    def terminate(*_) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # signals are delivered to the main thread only
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
        interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends the process at once
        try:
            if line := message():
                print(line, file=sys.stderr, flush=True)
        finally:
            signal.signal(signal.SIGINT, interrupted)
        raise SystemExit(128 + number) from None
    finally:
        signal.signal(signal.SIGTERM, before)
