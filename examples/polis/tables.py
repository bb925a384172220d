"""The result tables: what each stage stores under its job's id, as typed rows with natural keys.

Rows are read by job (`app.results(CommentEmbedding).all(job_id)`), one by its key (`.get(job_id, 7)`), by job and
conversation (`.all(job_id, subject="…")`) and, because `subject_index=True`, by conversation over all jobs
(`.by_subject("…")`). Backstay adds job_id, created_at, parent_job_id, root_job_id and job_stage to every row. On
DynamoDB with the prefix `Delphi` the tables are Delphi_CommentEmbeddings and so on.

| stage | table                                | key            | rows                                         |
|-------|--------------------------------------|----------------|----------------------------------------------|
| PCA   | CommentExtremity                     | comment_id int | one per comment that was let in and voted on |
| PCA   | ParticipantProjections               | participant_id | one per participant who voted (the seventh)  |
| UMAP  | CommentEmbeddings                    | comment_id int | one per comment that was let in              |
| UMAP  | CommentHierarchicalClusterAssignments| comment_id int | the same comments                            |
| UMAP  | CommentClustersStructureKeywords     | cluster_key str| one per cluster of each layer                |
| UMAP  | UMAPGraph                            | edge_id str    | one per pair of neighbours                   |
| UMAP  | CommentClustersLLMTopicNames         | topic_key str  | one per cluster of each layer                |

Layers: 0 is the finest, each further one is coarser, and every cluster lies within one cluster of the next layer.
Cluster and topic keys are "layer0_3", edge ids "4_17" with the smaller comment id first.

The result of every stage is {result_type, output_location: {dynamodb_tables, s3_artifacts}, summary_metrics} and more;
the names are those of the queue that this replaces, whichever engine and file store are in use. PCA adds
{conversation, method, groups: [{group_id, size, x, y}], explained_variance: [share per component], certainty:
{clarity, silhouette, stability, by_chance}, agreement_with_polis: {polis_groups, people, rand_index, reasons} or null,
consensus_rank_correlation}, UMAP {embedding_model, dimensions, projection, topic_names_by, language, layers: [clusters
per layer]}, and both `export_hash`.
"""

from typing import Literal

from pydantic import BaseModel

from backstay import ResultRow


class GroupVotes(BaseModel):
    """How one opinion group voted on a comment."""

    agrees: int
    disagrees: int
    passes: int
    agree_share: float  # (agrees + 1) / (agrees + disagrees + passes + 2): pulled towards a half where few voted


class CommentExtremity(
    ResultRow, table="CommentExtremity", key="comment_id", subject="conversation_id", subject_index=True
):
    """How far a comment pulls people apart, and how each group voted on it."""

    comment_id: int
    conversation_id: str
    body: str
    agrees: int
    disagrees: int
    passes: int
    extremity: float  # length of its loading, weighted by what each component explains; the largest is 1
    components: list[float]  # the loading itself, one number per component
    group_votes: dict[str, GroupVotes]  # by group id, "0", "1", …
    consensus: float  # product over groups of agree_share (or of disagree shares, where larger), to the power 1/groups
    divisiveness: float  # largest difference of agree_share between two groups
    kind: Literal["consensus", "divisive", "mixed"]
    is_meta: bool = False  # about the participants: it takes no part in the opinion map
    representative_of: list[int]  # groups that it represents: they agree with it far more than all others do


class ParticipantProjection(
    ResultRow, table="ParticipantProjections", key="participant_id", subject="conversation_id", subject_index=True
):
    """The position of a participant on the opinion map."""

    participant_id: int
    conversation_id: str
    x: float
    y: float
    components: list[float]
    group_id: int | None  # None: voted on too few comments to be placed in a group
    votes: int
    agrees: int
    disagrees: int


class Embedding(BaseModel):
    vector: list[float]
    dimensions: int
    model: str


class CommentEmbedding(
    ResultRow, table="CommentEmbeddings", key="comment_id", subject="conversation_id", subject_index=True
):
    """The vector of a comment, and its place on the comment map."""

    comment_id: int
    conversation_id: str
    body: str
    embedding: Embedding
    x: float
    y: float
    components: list[float]  # the place in all n_components; x and y are its first two
    projection: str  # what made it: "umap-learn" or "umap (numpy)"


class ClusterAssignment(
    ResultRow,
    table="CommentHierarchicalClusterAssignments",
    key="comment_id",
    subject="conversation_id",
    subject_index=True,
):
    """The cluster of a comment in each layer. Entry n of every list is layer n."""

    comment_id: int
    conversation_id: str
    clusters: list[int]
    distance_to_centroid: list[float]
    confidence: list[float]  # 1 at the centroid, 0.5 half way between it and the next one's


class ClusterKeywords(
    ResultRow,
    table="CommentClustersStructureKeywords",
    key="cluster_key",
    subject="conversation_id",
    subject_index=True,
):
    """A cluster: its position, keywords and members."""

    cluster_key: str
    conversation_id: str
    layer: int
    cluster_id: int
    size: int
    x: float
    y: float
    keywords: list[str]  # the most telling first
    keyword_weights: list[float]
    sample_comments: list[int]  # comment ids, nearest to the centroid first
    parent: str | None  # cluster key in the next, coarser layer
    children: list[str]  # cluster keys in the finer one


class GraphEdge(ResultRow, table="UMAPGraph", key="edge_id", subject="conversation_id", subject_index=True):
    """Two comments that are neighbours."""

    edge_id: str
    conversation_id: str
    source: int
    target: int
    weight: float  # 0 to 1: how surely they belong together
    distance: float  # between the vectors, in the config's metric
    nearest: bool  # one of them has no nearer neighbour


class TopicName(
    ResultRow,
    table="CommentClustersLLMTopicNames",
    key="topic_key",
    subject="conversation_id",
    subject_index=True,
):
    """The name of a cluster."""

    topic_key: str
    conversation_id: str
    layer: int
    cluster_id: int
    topic_name: str
    model_name: str  # of the LLM, or "keywords"


PCA_TABLES: dict[str, type[ResultRow]] = {
    "CommentExtremity": CommentExtremity,
    "ParticipantProjections": ParticipantProjection,
}
UMAP_TABLES: dict[str, type[ResultRow]] = {
    "CommentEmbeddings": CommentEmbedding,
    "CommentHierarchicalClusterAssignments": ClusterAssignment,
    "CommentClustersStructureKeywords": ClusterKeywords,
    "UMAPGraph": GraphEdge,
    "CommentClustersLLMTopicNames": TopicName,
}
