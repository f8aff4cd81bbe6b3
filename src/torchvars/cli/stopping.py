"""A command that is stopped says what it leaves behind."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """SIGTERM came. Like KeyboardInterrupt it is no error that a library may catch."""


@contextmanager
def stoppable(say: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, prints one line and exits as a shell expects it, with 130 or 143.

    Args:
        say: what is to be said of the work so far; called if it is stopped. Nothing is printed if it is empty.
    """

    def terminate(*_) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # others are not told of signals
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
        interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL)  # once more, and it ends at once
        try:
            if line := say():
                print(line, file=sys.stderr, flush=True)
        finally:
            signal.signal(signal.SIGINT, interrupted)
        raise SystemExit(128 + number) from None
    finally:
        signal.signal(signal.SIGTERM, before)
