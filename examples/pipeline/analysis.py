"""What is measured. Pure functions: text in, numbers out."""

import ast
import io
import math
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.BoolOp, ast.IfExp, ast.comprehension, ast.match_case)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
WORDS_PER_MODULE = 80  # enough to tell modules apart, few enough to compare all with all


def measure(name: str, source: str) -> dict:
    """One module: its size, its shape, what it imports and the words it is made of."""
    nodes = list(ast.walk(ast.parse(source)))
    kinds = Counter(map(type, nodes))
    lines = source.splitlines()
    return {
        "module": name,
        "lines": len(lines),
        "blank_lines": sum(not line.strip() for line in lines),
        "functions": sum(kinds[kind] for kind in FUNCTIONS),
        "classes": kinds[ast.ClassDef],
        "branches": sum(kinds[kind] for kind in BRANCHES),
        "documented": _documented(nodes),
        "imports": sorted(set(_imports(nodes))),
        "words": dict(Counter(_words(source)).most_common(1_000)),
    }


def _words(source: str) -> Iterator[str]:
    """The parts of every name, comment and docstring, in lower case."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.COMMENT) or (
            token.type == tokenize.STRING and len(token.string) > 40
        ):
            for word in WORD.findall(token.string):
                if 3 <= len(word) <= 24:
                    yield word.lower()


def _imports(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _documented(nodes: list[ast.AST]) -> int:
    """How many functions and classes have a docstring."""
    return sum(
        ast.get_docstring(node, clean=False) is not None
        for node in nodes
        if isinstance(node, (*FUNCTIONS, ast.ClassDef))
    )


# Over all modules


def weigh(counts: dict[str, dict[str, int]]) -> dict[str, dict[str, float]]:
    """TF-IDF: per module its most telling words, as a vector of length 1."""
    seen_in = Counter(word for words in counts.values() for word in words)
    everywhere = len(counts)
    return {name: _weigh_one(words, seen_in, everywhere) for name, words in counts.items()}


def _weigh_one(words: dict[str, int], seen_in: Counter[str], everywhere: int) -> dict[str, float]:
    weights = {word: (1 + math.log(count)) * math.log(everywhere / seen_in[word]) for word, count in words.items()}
    heaviest = sorted(weights, key=lambda word: (-weights[word], word))[:WORDS_PER_MODULE]
    length = math.sqrt(sum(weights[word] ** 2 for word in heaviest)) or 1.0
    return {word: weights[word] / length for word in heaviest}


def neighbours(
    vectors: dict[str, dict[str, float]], tell: Callable[[float], object], per_module: int = 3
) -> dict[str, list[tuple[str, float]]]:
    """For every module those that speak most like it (cosine similarity)."""
    postings: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for name, vector in vectors.items():
        for word, weight in vector.items():
            postings[word].append((name, weight))
    found = {}
    for done, (name, vector) in enumerate(vectors.items(), 1):
        likeness: dict[str, float] = defaultdict(float)
        for word, weight in vector.items():
            for other, other_weight in postings[word]:
                likeness[other] += weight * other_weight
        likeness.pop(name, None)
        ranked = sorted(likeness.items(), key=lambda pair: (-pair[1], pair[0]))[:per_module]
        found[name] = [(other, round(score, 4)) for other, score in ranked]
        tell(done / len(vectors))
    return found


def closest_pairs(
    found: dict[str, list[tuple[str, float]]], among: set[str], count: int
) -> list[tuple[str, str, float]]:
    pairs = {
        tuple(sorted((name, other))): score
        for name, others in found.items()
        for other, score in others
        if name in among and other in among
    }
    ranked = sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(one, other, score) for (one, other), score in ranked[:count]]


def total(modules: Iterable[dict], field: str) -> int:
    return sum(module[field] for module in modules)
