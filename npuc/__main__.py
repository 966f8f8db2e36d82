"""python -m npuc."""

from npuc.cli import main

main()
