"""`python -m runner` is the `campaign` command."""

from runner.cli import main

main(prog_name="campaign")
