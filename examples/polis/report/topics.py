"""The comment map of each layer, with the list of its topics. Radio buttons switch between layers: no script."""

from .colours import by_size, topic_hues
from .maps import comment_map
from .markup import element, text
from .model import Analysis, Layer, Topic
from .page import captioned
from .words import counted

KEYWORDS = 4
CAPTION = (
    "Each dot is a comment, larger the more people voted on it; comments that say similar things are close, and lines"
    " join nearest neighbours. Point at a dot to read it, click it to find it below."
)


def layer_name(analysis: Analysis, layer: Layer) -> str:
    size = counted(len(layer.topics), "topic")
    if len(analysis.layers) == 1:
        return size
    if layer is analysis.layers[-1]:
        return f"Coarse: {size}"
    return f"Fine: {size}" if layer is analysis.layers[0] else f"Middle: {size}"


def layered_maps(analysis: Analysis) -> str:
    """Return the maps, one layer at a time; in print, all of them."""
    switches, panels = [], []
    for place, layer in enumerate(reversed(analysis.layers)):
        name = f"layer{layer.number}"
        checked = "checked" if layer is analysis.main_layer else None
        switches.append(element("input", type="radio", name="layer", id=name, checked=checked))
        switches.append(element("label", text(layer_name(analysis, layer)), for_=name))
        panels.append(element("div", layer_map(analysis, layer), class_=f"panel p{place}"))
    return element("div", *switches, *panels, class_="layers")


def layer_map(analysis: Analysis, layer: Layer, *, edges: bool = True) -> str:
    title = element("h3", text(layer_name(analysis, layer)), class_="layer-title")
    return title + captioned(comment_map(analysis, layer, edges=edges), CAPTION, topic_list(analysis, layer))


def _more(topic: Topic) -> list[str]:
    """Return the keywords that are not part of its name, as one text."""
    words = [each for each in topic.keywords if each.casefold() not in topic.name.casefold()][:KEYWORDS]
    return [", ".join(words)] if words else []


def topic_list(analysis: Analysis, layer: Layer) -> str:
    hues = topic_hues(analysis, layer)
    items = (
        element(
            "li",
            element("strong", text(topic.name), lang=analysis.language),
            element("small", text(" · ".join([counted(topic.size, "comment"), *_more(topic)]))),
            style=f"--hue:{hues[topic.cluster_id]}",
        )
        for topic in by_size(layer)
    )
    return element("ol", *items, class_="topics")
