"""The commands: one per public verb. Each parses, calls, and hands the Report to `show`.

Exit codes: 0 done, 1 the answers differ, 2 anything the user can mend."""

from fusebert.cli import embed, load_test, measurements, models, patterns, serve  # each adds its commands
from fusebert.cli.app import app

__all__ = ["embed", "load_test", "main", "measurements", "models", "patterns", "serve"]


def main() -> None:
    """The console script."""
    app()
