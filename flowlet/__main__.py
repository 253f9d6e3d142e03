"""``python -m flowlet``: the command ``flowlet``, see ``flowlet.cli.main``.

Side: shared.
"""

from flowlet.cli.main import main

if __name__ == "__main__":
    main()
