"""One control plane for all cluster tests, built before the first of them if need be."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
from cases import Cluster
from plane import Plane


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the programs outside of any test's time limit."""
    if session.config.option.collectonly or not any(item.get_closest_marker("cluster") for item in session.items):
        return
    try:
        programs.build()
    except programs.CannotBuildError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A running control plane with four nodes of eight NPUs."""
    built = programs.ready()
    assert built is not None
    volcano = os.environ.get("NANOCHAT_VOLCANO_BIN")
    plane = Plane(tmp_path_factory.mktemp("plane") / "p", built, Path(volcano) if volcano else None)
    try:
        yield plane.up(nodes=4)
    finally:
        plane.down()


_numbers = itertools.count()


@pytest.fixture
def cluster(plane: Plane, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A namespace of its own, with claims and a service account, removed without waiting afterwards."""
    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:40].strip("-")
    made = Cluster.make(plane, f"{name}-{next(_numbers)}")
    yield made
    made.clean()
