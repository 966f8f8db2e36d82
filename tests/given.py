"""Files that tests are given: small ones in tests/data, larger ones in a folder `shared` beside the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOTS = (TESTS / "data", TESTS.parents[1] / "shared")


class Given(type(Path())):
    """A path that looks in both; a test that asks for what is in neither is skipped."""

    def __truediv__(self, key: object) -> Given:
        inside = Path(f"{self}/{key}")
        (relative,) = (inside.relative_to(root) for root in ROOTS if inside.is_relative_to(root))
        found = next((root / relative for root in ROOTS if (root / relative).exists()), None)
        if found is None and "PYTEST_CURRENT_TEST" in os.environ:
            pytest.skip("files of the folder `shared` beside the project are not here")
        return Given(found or ROOTS[-1] / relative)


GIVEN = Given(ROOTS[0])
