"""`python -m runner.standin serve MODEL …` and `python -m runner.standin bench serve …`."""

import sys

USAGE = (
    "usage: vllm [-h] [-v]\n            {chat,complete,serve,launch,bench,collect-env,run-batch} ...\n"
    "vllm: error: this stand-in knows `serve MODEL` and `bench serve`\n"
)


def main(argv: list[str]) -> int:
    if argv[:1] == ["serve"]:
        from runner.standin.server import serve

        return serve(argv[1:])
    if argv[:2] == ["bench", "serve"]:
        from runner.standin.bench import bench

        return bench(argv[2:])
    sys.stderr.write(USAGE)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
