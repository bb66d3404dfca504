"""`python -m advsweep`: the command `advsweep`."""

import sys

if __name__ == "__main__":
    # Python puts the working folder first. A stranger's `sqlalchemy.py` there would be imported,
    # as the script `advsweep` imports nothing of that folder.
    if not sys.flags.safe_path:
        del sys.path[0]

    from advsweep.cli import main

    main()
