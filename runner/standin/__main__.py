"""`python -m runner.standin serve MODEL …` and `python -m runner.standin bench serve …`."""

import sys

from runner.standin.settings import VllmParser

if sys.argv[1:2] == ["serve"]:
    from runner.standin.server import serve

    serve(sys.argv[2:])
elif sys.argv[1:3] == ["bench", "serve"]:
    from runner.standin.bench import bench

    sys.exit(bench(sys.argv[3:]))
else:
    VllmParser({}).error("this stand-in knows `serve MODEL` and `bench serve`")
