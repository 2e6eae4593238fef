"""The commands: one per public verb. Each parses, calls, and hands the Report to `show`.

Exit codes: 0 done, 1 the answers differ, 2 something the user can mend, 70 a defect in fusebert, 130 interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn


def main(words: Sequence[str] | None = None) -> NoReturn:
    """The console script. What takes long to import is imported where an interrupt is caught."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else somebody wants it ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        from fusebert.cli.call import call

        code = call(list(sys.argv[1:] if words is None else words))
    except BaseException:  # a library that is being imported may turn an interrupt into another error
        if not interrupted:
            raise
        code = 130
    finally:
        signal.signal(signal.SIGINT, before)
    if code == 130:
        sys.stderr.write("fusebert: interrupted\n")
    sys.exit(code)
