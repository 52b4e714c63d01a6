"""python -m labkit COMMAND"""

from labkit.cli import main

if __name__ == "__main__":
    main(prog_name="python -m labkit")
