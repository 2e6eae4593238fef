"""A program for tests/verbs/test_embed.py: runs `embed` in children that are killed at random moments, then to its end.
The model is loaded once, since a child inherits it."""

import os
import random
import signal
import sys
import time

import fusebert
from fusebert.verbs import windows as module

MODEL, DATA, OUT, KILLS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
module._ROWS = 40


def work(model: fusebert.Model) -> None:
    fusebert.embed(model, DATA, OUT, module.Settings(keep=("id",)))


def main() -> None:
    model = fusebert.load(MODEL, threads=1)
    draw, unfinished = random.Random(7), 0
    for _ in range(KILLS):
        child = os.fork()
        if not child:
            work(model)
            os._exit(0)
        time.sleep(draw.uniform(0.0, 0.12))
        os.kill(child, signal.SIGKILL)
        unfinished += os.waitpid(child, 0)[1] == signal.SIGKILL
    work(model)
    sys.stdout.write(str(unfinished))


main()
