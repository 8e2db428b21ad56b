"""Tiny models with layers without a softmax, saved once for all tests here."""

import pytest

from tests.hybrids import HybridFolders


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> HybridFolders:
    """The folder of a model, by the name of its architecture."""
    return HybridFolders(tmp_path_factory.mktemp("hybrids"), granitemoehybrid={"residual_multiplier": 0.7})
