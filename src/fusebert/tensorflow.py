"""TensorFlow's front door: importing this module loads the fused ops into TensorFlow, so that graphs with them run.

`bert`, `bert_hidden_states` and `encoder_form` are TensorFlow's own wrappers of the ops;
docs/tensorflow-op.md describes them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import tensorflow as tf

from fusebert.errors import FusebertError


def library() -> str:
    """The path of the op library, for `tf.load_op_library` or another program that loads TensorFlow ops."""
    native = find_spec("fusebert._native")  # beside it, also where the package is installed to be edited
    path = Path((native and native.origin) or __file__).with_name("libfusebert_tensorflow.so")
    if not path.is_file():
        raise FusebertError(f"{path} is missing; install fusebert again")
    return str(path)


_ops = tf.load_op_library(library())
bert = _ops.bert
bert_hidden_states = _ops.bert_hidden_states
encoder_form = _ops.encoder_form
