"""The whole API, asked everything that its own document allows and much that it does not."""

from pathlib import Path

import pytest

from tests.server.fuzz import fuzz

EXAMPLES = 2  # per operation, beside those that are drawn from the document; scripts/campaign api draws more
SECONDS = 570  # it computes for 20; on a busy machine it has a tenth of a core


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 30)
def test_the_api_answers_everything_as_its_document_says(tmp_path: Path) -> None:
    fuzzed = fuzz(tmp_path, examples=EXAMPLES, seed=7, seconds=SECONDS)
    assert fuzzed.broken == []
    assert fuzzed.passed, fuzzed.said[-20_000:]
    assert fuzzed.answers.total() > 1000
