"""``python -m evoattn`` is the command ``evoattn``."""

from evoattn.cli import main

if __name__ == "__main__":
    main()
