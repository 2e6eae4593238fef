"""ONNX Runtime's front door: the library with the operator `fusebert.Encoder`, and sessions that know it."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

from fusebert.engine.native import folder
from fusebert.errors import FusebertError


def library() -> str:
    """The path for `SessionOptions.register_custom_ops_library`."""
    return str(folder() / "libfusebert_onnxruntime.so")


def session(path: str | PathLike[str], sess_options: Any = None, threads: int | None = None, **options: Any) -> Any:
    """An `onnxruntime.InferenceSession` that can run fused models; the options are that class's.

    `threads` are the fused operator's: unless told, ONNX Runtime's `intra_op_num_threads` if set, else as many as this
    process may use. `sess_options` is changed: it gains the library."""
    try:
        import onnxruntime
    except ImportError:
        raise FusebertError("onnxruntime is not installed; try: pip install onnxruntime") from None
    if threads is not None and (not isinstance(threads, int) or not 1 <= threads <= 1024):
        raise FusebertError(f"threads: a whole number from 1 to 1024 is expected, not {threads!r:.40}")
    settings = onnxruntime.SessionOptions() if sess_options is None else sess_options
    if threads is None and settings.intra_op_num_threads > 0:
        threads = settings.intra_op_num_threads
    if threads is not None:
        settings.add_session_config_entry("fusebert.threads", str(threads))
    options.setdefault("providers", ["CPUExecutionProvider"])
    try:
        settings.register_custom_ops_library(library())
        return onnxruntime.InferenceSession(fspath(path), settings, **options)
    except Exception as error:  # its own family of exceptions, which is not public
        raise FusebertError(f"{fspath(path)}: {error}") from error
