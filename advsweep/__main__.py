"""`python -m advsweep`: the command `advsweep`."""

from advsweep.cli import main

if __name__ == "__main__":
    main()
