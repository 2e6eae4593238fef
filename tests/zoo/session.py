"""Frozen graphs run by TensorFlow as they are written. How TensorFlow rewrites them depends on the processor: with
AVX-512 the GELU that it puts in is 2e-3 off, which is no truth to compare with."""

from pathlib import Path


def open_session(path: Path | str):
    """A session with the frozen graph at `path`, whose graph is not rewritten."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(Path(path).read_bytes()), name="")
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.compat.v1.Session(graph=graph, config=config)
