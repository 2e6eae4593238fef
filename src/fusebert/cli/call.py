"""Call: one command line -> its exit code. Every error becomes a sentence here, or a JSON object for --json."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence

from typer.main import get_command

from fusebert.cli import embed, load_test, measurements, models, patterns, serve  # each adds its commands
from fusebert.cli.app import app
from fusebert.cli.legacy import translate
from fusebert.cli.show import show_error, show_status
from fusebert.errors import DifferentError, FusebertError, InternalError

__all__ = ["app", "call", "embed", "load_test", "measurements", "models", "patterns", "serve"]


def call(words: Sequence[str]) -> int:
    """Runs a command line as it is typed after `fusebert`."""
    as_json = "--json" in words
    known = translate(words, show_status) or ["--help"]
    try:
        return int(get_command(app).main(known, "fusebert", standalone_mode=False) or 0)
    except DifferentError as error:
        show_error(str(error), as_json)
        return 1
    except (FusebertError, OSError) as error:
        show_error(str(error), as_json)
        return 2
    except MemoryError:
        show_error("there is not enough memory; free some, or give a smaller model or smaller batches", as_json)
        return 2
    except Exception as error:
        if hasattr(error, "format_message"):  # it is about the words themselves
            show_error(_usage(error), as_json)
            return 2
        defect = error if isinstance(error, InternalError) else InternalError(error)
        if os.environ.get("FUSEBERT_TRACEBACK"):
            traceback.print_exception(defect.__cause__)
        show_error(str(defect), as_json)
        return 70


def _usage(error: Exception) -> str:
    """What is wrong with the words, and where their meaning is told."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fusebert"
    return f"{error.format_message()} ({command} --help tells what there is)"  # type: ignore[attr-defined]
