"""`python -m runner.standin serve MODEL …` and `python -m runner.standin bench serve …`."""

import sys


def main(argv: list[str]) -> int:
    if argv[:1] == ["serve"]:
        from runner.standin.server import serve

        return serve(argv[1:])
    if argv[:2] == ["bench", "serve"]:
        from runner.standin.bench import bench

        return bench(argv[2:])
    from runner.standin.settings import VllmParser

    VllmParser().error("this stand-in knows `serve MODEL` and `bench serve`")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
