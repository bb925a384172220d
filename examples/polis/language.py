"""The language of the comments: which it is, and how a text in it splits into words.

Words are counted by their stems, so that "bus" and "buses" do not compete, but a topic is never named by a stem: for
each stem, `Vocabulary` knows the form that people wrote most often.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import budoux
import snowballstemmer
import stopwordsiso

ENGLISH = "en"
_STEMMERS = """ar:arabic ca:catalan cs:czech da:danish de:german el:greek en:english es:spanish eu:basque fi:finnish
    fr:french ga:irish hi:hindi hu:hungarian hy:armenian id:indonesian it:italian lt:lithuanian nl:dutch no:norwegian
    pl:polish pt:portuguese ro:romanian ru:russian sv:swedish tr:turkish"""
SNOWBALL = dict(each.split(":") for each in _STEMMERS.split())
WITHOUT_SPACES = ("zh", "zh-Hant", "ja")
ELISIONS = ("ca", "fr", "it")  # an apostrophe ends an article: l'ombre
TEXTS_LOOKED_AT = 2_000  # of a conversation, to tell its language
WORD_LENGTH_MAX = 60  # a topic name has three keywords; longer strings are not words
LETTERS = re.compile(r"[^\W\d_][^\W_]{2,}")
APOSTROPHES = re.compile("['\u2019]")
HAN, KANA = re.compile(r"[\u4e00-\u9fff]"), re.compile(r"[\u3040-\u30ff]")
NO_WORD = re.compile(r"[\W\d_]|[\u3040-\u309f]+\Z")  # signs and digits; in Japanese, what has no Chinese character
LINKS = re.compile(r"https?://\S+|www\.\S+")
# Characters that are common in one of the two scripts, and do not occur in the other.
TRADITIONAL, SIMPLIFIED = (
    frozenset(each) for each in ("們這個應說時為對車會學國與過還發", "们这个应说时为对车会学国与过还发")
)

# Words that occur in proposals on any topic, in addition to the stop words of a language.
_PROPOSALS = {
    "en": """need needs should want wants make makes made get gets got bring come comes going let like just people
        everybody nobody somebody instead whatever something anything nothing really much many more most even also still
        new old town place places thing things way would could must may might does did doing done dont cant wont isnt
        whether one two three four year years day days half least month months use uses used change changes think good
        better""",
    "de": """sollte sollten soll sollen muss müssen müsste müssten kann können könnte könnten darf dürfen braucht
        brauchen mehr weniger statt bitte idee ideen finde finden gibt geben gut besser sehr viel viele alle
        menschen leute jeder jede jedes jeden müßte wäre wären bzw etc""",
    "zh": """应该 需要 可以 必须 希望 建议 认为 觉得 支持 反对 更多 更加 增加 减少 我们 大家 人们 不应
        应当 很多 非常 问题""",
    "zh-Hant": """應該 需要 可以 必須 希望 建議 認為 覺得 支持 反對 更多 更加 增加 減少 我們 大家 人們 不應
        應當 很多 非常 問題 如果 因為 所以 但是 而且 沒有 這個 那個 這些 那些 他們 自己 什麼 怎麼
        以及 或者 並且 不是 就是 還是 對於 關於 由於 為了 已經 目前 現在 一個 不能 不會 不要 只要
        只有 可能 其他 進行 如何 是否""",
    "ja": "べき 必要 思う 欲しい ほしい 増やす 減らす もっと 人 人々 方 物 事 私 私たち 皆 等 問題",
}


def language_of(texts: Sequence[str]) -> str:
    """Return the language of most texts, as a BCP 47 tag; English where nothing tells."""
    sample = texts[:: max(1, len(texts) // TEXTS_LOOKED_AT)]
    everything = "\n".join(sample)
    han, kana = len(HAN.findall(everything)), len(KANA.findall(everything))
    letters = sum(len(each) for each in LETTERS.findall(everything)) or 1
    if han + kana > letters / 4:
        if kana > han / 10:
            return "ja"
        counts = Counter(everything)
        traditional, simplified = (sum(counts[each] for each in those) for those in (TRADITIONAL, SIMPLIFIED))
        return "zh-Hant" if traditional > simplified else "zh"
    words = Counter(re.findall(r"[^\W\d_]+", everything.lower()))
    scores = {each: sum(words[word] for word in _stop_words(each)) for each in SNOWBALL}
    best = max(scores, key=lambda each: (scores[each], each == ENGLISH))
    return best if scores[best] else ENGLISH


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of a conversation."""

    language: str
    texts: Sequence[Sequence[str]]  # per text the stems of its words, without stop words
    forms: Mapping[str, str]  # per stem the form that people wrote most often


def vocabulary(texts: Sequence[str], language: str) -> Vocabulary:
    left_out = stop_words(language)
    everything = [words_of(text, language) for text in texts]
    found = [[word for word in words if word.casefold() not in left_out] for words in everything]
    stem = _stems({word for words in found for word in words}, language)
    inside: Counter[str] = Counter()
    for words in everything:
        inside.update(words[1:])
    written: dict[str, Counter[str]] = {}
    for words in found:
        for word in words:
            # The first word of a text has a capital, whichever it is: how it is written elsewhere decides. In German
            # it is most likely a noun, if it occurs nowhere else.
            small = word.lower()
            form = word if inside[word] > inside[small] or (language == "de" and not inside[small]) else small
            written.setdefault(stem[word], Counter())[form] += 1
    forms = {each: min(counts, key=lambda word: (-counts[word], len(word), word)) for each, counts in written.items()}
    return Vocabulary(language, [[stem[word] for word in words] for words in found], forms)


def words_of(text: str, language: str) -> list[str]:
    """Return the words as they are written, without stop words being left out."""
    text = LINKS.sub(" ", text)
    if language in WITHOUT_SPACES and (HAN.search(text) or KANA.search(text)):
        return [word for word in (each.strip() for each in _segmenter(language).parse(text)) if _is_word(word)]
    text = APOSTROPHES.sub(" " if language in ELISIONS else "", text)
    return [word for word in LETTERS.findall(text) if len(word) <= WORD_LENGTH_MAX]


def stop_words(language: str) -> frozenset[str]:
    """Return the words that name no topic, written in small letters."""
    own = _PROPOSALS.get(language, "").split()
    return _stop_words(language.split("-")[0]) | {APOSTROPHES.sub("", word) for word in own}


@cache
def _stop_words(language: str) -> frozenset[str]:
    return frozenset(APOSTROPHES.sub("", word.lower()) for word in stopwordsiso.stopwords(language))


def _is_word(text: str) -> bool:
    return 2 <= len(text) <= WORD_LENGTH_MAX and not NO_WORD.search(text)


def _stems(words: Iterable[str], language: str) -> dict[str, str]:
    """Return the stem of each word."""
    small = {word: word.casefold() for word in words}
    if language not in SNOWBALL:
        return small
    stemmer = snowballstemmer.stemmer(SNOWBALL[language])
    found = {word: str(stemmer.stemWord(each)) for word, each in small.items()}
    known = set(found.values())
    # English "buses" has the stem "buse" and "bus" the stem "bus", German "Autos" keeps its s: where both are there,
    # they are one word.
    return {word: each[:-1] if each[-1:] in "es" and each[:-1] in known else each for word, each in found.items()}


@cache
def _segmenter(language: str) -> budoux.Parser:
    model = {"zh": "zh-hans", "zh-Hant": "zh-hant", "ja": "ja_word"}[language]
    return budoux.Parser(json.loads((files(budoux) / "models" / f"{model}.json").read_text(encoding="utf-8")))
