"""Turns each comparison, limit and operator of the gates, one at a time, and sees whether a test of the gates notices.

`python -m tests.mutation [MODULE …]` prints the changes that no test noticed. Each is judged in a forked process whose
functions have the changed code.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from analysis import gates, gates_campaign
from tests import recorded, test_gates, test_gates_campaign

MODULES = ("gates_load", "gates_engine", "gates_gpu", "gates_record", "gates_campaign")
TESTS = (str(test_gates.__file__), str(test_gates_campaign.__file__))
CODES = {gate.code for gate in (*gates.GATES, *gates_campaign.GATES)}
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """(what was changed, the changed source); comparisons with None, which keep checks from failing, are left alone."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        changed = copy.deepcopy(tree)
        twin = list(ast.walk(changed))[number]
        if isinstance(node, ast.Compare) and isinstance(twin, ast.Compare):
            turned = TURNED.get(type(node.ops[0]))
            if turned is None:
                continue
            twin.ops[0] = turned()
        elif isinstance(twin, ast.FunctionDef) and twin.name in CODES:
            twin.body = ast.parse("return iter(())").body  # never finds anything
        else:
            continue
        ast.fix_missing_locations(changed)
        where = f"line {node.lineno}"
        yield (
            f"{where}: {ast.unparse(node).splitlines()[0 if isinstance(node, ast.Compare) else -1][:90]}",
            ast.unparse(changed),
        )


def functions(names: dict[str, Any]) -> Iterator[tuple[str, FunctionType]]:
    """Checks and helpers of a module, methods too."""
    for name, value in names.items():
        if isinstance(value, FunctionType):
            yield name, value
        elif isinstance(value, type):
            inner = {key: getattr(member, "fget", member) for key, member in vars(value).items()}  # of properties too
            yield from ((f"{name}.{key}", f) for key, f in inner.items() if isinstance(f, FunctionType))


def noticed(module: str, source: str) -> bool:
    """Whether the tests of the gates fail with this source."""
    child = os.fork()
    if child == 0:
        real = vars(importlib.import_module(f"analysis.{module}"))
        changed = dict(real)
        exec(compile(source, module, "exec"), changed)
        new = dict(functions(changed))
        for name, function in functions(real):
            if function.__module__ == f"analysis.{module}":
                function.__code__ = new[name].__code__
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", "not never_pooled", *TESTS]))
        os._exit(status != 0)
    return os.waitpid(child, 0)[1] != 0


def main() -> None:
    for folder in recorded.GPU_RUNS:
        test_gates.gpu_run(folder)  # parsed once, for all children
    total, missed = 0, 0
    for module in sys.argv[1:] or MODULES:
        source = Path(f"analysis/{module}.py").read_text(encoding="utf-8")
        for what, changed in mutants(source):
            total += 1
            if not noticed(module, changed):
                missed += 1
                print(f"not noticed: {module} {what}", flush=True)
    print(f"{total} changes of the gates, {total - missed} noticed by a test")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
