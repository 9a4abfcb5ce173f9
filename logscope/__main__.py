"""`python -m logscope`."""

from logscope.commands.cli import main

main()
