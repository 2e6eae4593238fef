"""The commands: one per public verb. Each parses, calls, and hands the Report to `show`.

Exit codes: 0 done, 1 the answers differ, 2 anything the user can mend."""

from fusebert.cli import making, measuring, patterns  # each adds its commands
from fusebert.cli.common import app

__all__ = ["main", "making", "measuring", "patterns"]


def main() -> None:
    """The console script."""
    app()
