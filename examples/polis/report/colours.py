"""The hue of each topic. The style sheet sets the lightness, for the light and dark themes."""

from collections import Counter

from .model import Analysis, Layer, Topic

HUES = (212, 28, 158, 338, 268, 190, 50, 300, 100, 4, 235, 130)  # adjacent entries differ clearly
SPREAD = 16  # degrees between the topics within one larger topic


def by_size(layer: Layer) -> list[Topic]:
    return sorted(layer.topics, key=lambda each: (-each.size, each.cluster_id))


def topic_hues(analysis: Analysis, layer: Layer) -> dict[int, int]:
    """Return a hue per cluster. On a fine layer it is close to the hue of the larger topic that contains it."""
    depth, main = analysis.layers.index(layer), analysis.layers.index(analysis.main_layer or layer)
    if depth >= main:
        return {each.cluster_id: HUES[place % len(HUES)] for place, each in enumerate(by_size(layer))}
    coarse = topic_hues(analysis, analysis.layers[main])
    inside: dict[int, list[int]] = {}
    for topic in by_size(layer):
        around = Counter(
            each.clusters[main]
            for each in analysis.comments
            if main < len(each.clusters) and each.clusters[depth] == topic.cluster_id
        )
        inside.setdefault(max(around, key=around.__getitem__, default=-1), []).append(topic.cluster_id)
    return {
        cluster: (coarse.get(parent, HUES[0]) + round(SPREAD * (place - (len(clusters) - 1) / 2))) % 360
        for parent, clusters in inside.items()
        for place, cluster in enumerate(clusters)
    }
