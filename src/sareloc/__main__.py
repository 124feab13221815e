"""`python -m sareloc` is the `sareloc` command."""

from sareloc.cli import main

if __name__ == "__main__":
    main()
