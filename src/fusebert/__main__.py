"""`python -m fusebert` is the command."""

from fusebert.cli import main

main()
