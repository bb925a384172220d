"""The visualizations that a job can request by name; each is a separate page and artifact.

basic      the comment map in the colours of its topics, and nothing else on it
enhanced   the same with the names of the topics and nearest neighbours, and coloured by what unites and divides
multilayer a map for every layer of the hierarchy, from coarse to fine
"""

from collections.abc import Callable

from .lists import every_comment
from .maps import agreement_map, comment_map
from .markup import element, text
from .model import Analysis
from .page import captioned, page
from .topics import CAPTION, layer_map, layer_name, topic_list

AGREEMENT_CAPTION = (
    "The map of comments by how the groups voted: what unites them, what divides them, and what does neither. Numbers"
    " are those of the comments at either end."
)


def agreement_legend() -> str:
    names = (("consensus", "unites"), ("mixed", "neither"), ("divisive", "divides"))
    parts = (element("span", element("i", class_=f"chip {kind}"), said) for kind, said in names)
    return element("p", *parts, class_="legend")


def basic(analysis: Analysis) -> list[str]:
    layer = analysis.main_layer
    if layer is None:
        return [element("p", "There are too few comments to find topics among them.")]
    plot = comment_map(analysis, layer, names=False, edges=False)
    return [captioned(plot, CAPTION, topic_list(analysis, layer))]


def enhanced(analysis: Analysis) -> list[str]:
    layer = analysis.main_layer
    if layer is None:
        return basic(analysis)
    return [
        element("section", element("h2", "By topic"), layer_map(analysis, layer)),
        element(
            "section",
            element("h2", "By agreement"),
            captioned(agreement_map(analysis), AGREEMENT_CAPTION, agreement_legend()),
        ),
    ]


def multilayer(analysis: Analysis) -> list[str]:
    if not analysis.layers:
        return basic(analysis)
    return [
        element(
            "section", element("h2", text(layer_name(analysis, layer))), layer_map(analysis, layer), class_="one-layer"
        )
        for layer in reversed(analysis.layers)
    ]


PAGES: dict[str, Callable[[Analysis], list[str]]] = {"basic": basic, "enhanced": enhanced, "multilayer": multilayer}


def visualization(name: str, analysis: Analysis) -> bytes:
    head = element(
        "header",
        element("p", text(f"Comment map · {name}"), class_="eyebrow"),
        element("h1", text(analysis.title)),
        class_="top",
    )
    comments = element("section", element("h2", "The comments"), every_comment(analysis.comments, analysis.language))
    origin = ", ".join(f"{stage} {job_id}" for stage, job_id in analysis.jobs.items())
    made = [element("footer", text(f"Made from the jobs {origin}."), class_="author")] if origin else []
    return page(f"{analysis.title}: {name}", element("main", head, *PAGES[name](analysis), comments, *made))
