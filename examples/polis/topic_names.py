"""Names of topics: from a language model if one is configured, else from the keywords."""

from collections.abc import Sequence

from .language import WITHOUT_SPACES
from .llm import LLM, LLMError
from .tables import ClusterKeywords

BY_KEYWORDS = "keywords"
NAME_LENGTH_MAX = 80
NAME_TOKENS_MAX = 60
SAMPLES = 8  # comments that the model is shown


def by_keywords(clusters: Sequence[ClusterKeywords], language: str) -> dict[str, str]:
    """Return a name per cluster key; two clusters of a layer never share one."""
    names: dict[str, str] = {}
    comma = "、" if language in WITHOUT_SPACES else ", "
    for cluster in clusters:
        taken = {name for key, name in names.items() if key.startswith(f"layer{cluster.layer}_")}
        lengths = range(min(3, len(cluster.keywords)), len(cluster.keywords) + 1)
        possible = [comma.join(_capitalised(cluster.keywords[:length])) for length in lengths if length]
        fallback = f"Topic {cluster.cluster_id + 1}"
        names[cluster.cluster_key] = next((name for name in possible if name not in taken), fallback)
    return names


def _capitalised(words: Sequence[str]) -> list[str]:
    """Return the words with a capital at the beginning; the others stay as they are, such as "EU"."""
    return [word[:1].upper() + word[1:] if place == 0 else word for place, word in enumerate(words)]


def question(cluster: ClusterKeywords, bodies: dict[int, str], title: str) -> str:
    samples = "\n".join(f"- {bodies[number]}" for number in cluster.sample_comments[:SAMPLES])
    return (
        f"Participants of a public conversation ({title}) wrote these comments, which belong together:\n{samples}\n\n"
        f"Words that stand out in them: {', '.join(cluster.keywords)}.\n"
        "Name their common topic in two to five words, in the language of the comments. Be neutral: name what they are"
        " about, not what they demand. Answer with the name alone."
    )


def ask(model: LLM, text: str) -> str:
    """Ask the model for a name, as one short line."""
    lines = [line.strip(" \t\"'*#.“”") for line in model.ask(text, NAME_TOKENS_MAX).splitlines()]
    name = next((line for line in lines if line), "")
    if not name:
        raise LLMError("the model's answer has no name in it")
    return name[:NAME_LENGTH_MAX]
