"""`python -m runner.standin serve MODEL …` and `python -m runner.standin bench serve …`."""

import sys
from typing import NoReturn


def main(argv: list[str]) -> NoReturn:
    if argv[:1] == ["serve"]:
        from runner.standin.server import serve

        sys.exit(serve(argv[1:]))
    if argv[:2] == ["bench", "serve"]:
        from runner.standin.bench import bench

        sys.exit(bench(argv[2:]))
    from runner.standin.settings import VllmParser

    VllmParser().error("this stand-in knows `serve MODEL` and `bench serve`")


if __name__ == "__main__":
    main(sys.argv[1:])
