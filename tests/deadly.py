"""A model whose tokenizer ends its process on one text, wherever it is loaded: for tests of what survives that."""

import os
from functools import partial

import fusebert
from fusebert.engine.tokenizer import Tokenizer

TEXT = "mat mat mat"


def load(path):
    model = fusebert.load(path)
    model.origin = partial(load, path)
    encode = Tokenizer.__call__

    def deadly(self, texts, *more):
        if TEXT in texts and os.getpid() != HOME:
            os._exit(9)
        return encode(self, texts, *more)

    Tokenizer.__call__ = deadly
    return model


def forget():
    """Tokenizers of this process end nothing any more."""
    Tokenizer.__call__ = _HARMLESS


HOME = -1  # the process that it must not end
_HARMLESS = Tokenizer.__call__
