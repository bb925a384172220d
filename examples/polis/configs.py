"""The configuration of each stage: the analysis queue's job configurations, with their fields and defaults.

A stage's config is its job's payload, so the whole pipeline is checked before any of it starts. The conversation is not
part of it: that is the job's subject.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Visualization = Literal["basic", "enhanced", "multilayer"]


class StageConfig(BaseModel):
    """Base of the configs. A misspelled field is an error, never silently a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PcaConfig(StageConfig):
    max_votes: int = Field(1_000_000, ge=1)  # in a larger conversation only the last votes count
    batch_size: int = Field(50_000, ge=1)  # votes per step of the progress
    n_components: int = Field(2, ge=2, le=50)
    pca_method: Literal["randomized", "full", "arpack"] = "randomized"  # scikit-learn's solvers


class UmapConfig(StageConfig):
    n_neighbors: int = Field(15, ge=2, le=200)
    min_dist: float = Field(0.1, ge=0.0, le=0.99)
    n_components: int = Field(2, ge=2, le=50)  # maps are drawn from the first two
    metric: Literal["cosine", "euclidean", "manhattan"] = "cosine"
    embedding_model: Literal["all-MiniLM-L6-v2", "wordllama"] = "all-MiniLM-L6-v2"  # where missing: wordllama
    skip_embedding: bool = False  # take the vectors of the conversation's last UMAP job


class ReportConfig(StageConfig):
    model: str = Field("", max_length=200)  # the LLM's name; empty: POLIS_LLM_MODEL
    include_topics: bool = True
    include_consensus: bool = True
    include_uncertainty: bool = True
    language: str = Field("en", pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")
    max_tokens: int = Field(4_000, ge=1, le=200_000)


class PipelineOptions(StageConfig):
    """Options of FULL_PIPELINE in addition to `stages`. Each visualization becomes an artifact of the REPORT job."""

    visualizations: Annotated[list[Visualization], Field(min_length=1)] = ["basic", "enhanced", "multilayer"]
