"""Signals that stop a run: after the first, it finishes its step and writes a checkpoint."""

import contextlib
import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTICE = b"\nstopping: a checkpoint is written after this step (Ctrl-C again stops at once, without one)\n"


class Stopping:
    """A context in which SIGINT (Ctrl-C) and SIGTERM are recorded and do not end the process; a second SIGINT does.

    A signal that was ignored before stays ignored, as SIGINT is for the background jobs of a script.

    Args:
        loud: whether to print a notice on the terminal.

    Attributes:
        received: the first signal received, if any.
    """

    def __init__(self, loud: bool):
        self.loud = loud
        self.received: signal.Signals | None = None

    def __enter__(self) -> "Stopping":
        handlers = {each: signal.getsignal(each) for each in SIGNALS}
        self.before = {each: handler for each, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}
        for each in self.before:
            signal.signal(each, self._note)
        return self

    def __exit__(self, *_) -> None:
        for each, handler in self.before.items():
            signal.signal(each, handler)

    def _note(self, number: int, _) -> None:
        if self.received is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.received = signal.Signals(number)
        if self.loud:
            with contextlib.suppress(OSError):
                os.write(2, NOTICE)  # not by print, which may be what the signal interrupted
