"""What kube-scheduler and an extender send each other: k8s.io/kube-scheduler/extender/v1. May not do input or output.

Go takes the names of fields in any case, and schedulers before 1.17 wrote them in lower case: both are read. They are
written as types.go has them, where no field is left out. Of pods and nodes only what is needed is looked at, later."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

HIGHEST = 10
"""The highest score of a node: MaxExtenderPriority."""
_LONGEST_NAME = 253
"""Characters of the name of an object (RFC 1123 subdomain)."""
_MOST_NODES = 100_000


class Received(BaseModel):
    """A message from the scheduler. Fields that are not known are left out."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _in_any_case(cls, message: object) -> object:
        return {str(key).lower(): value for key, value in message.items()} if isinstance(message, dict) else message


class NodeList(Received):
    """Nodes, as the API server would list them."""

    items: list[dict[str, Any]] | None = Field(default=None, max_length=_MOST_NODES)


class ExtenderArgs(Received):
    """The question of filter and prioritize: a pod, and nodes, or their names if the extender is nodeCacheCapable."""

    pod: dict[str, Any] | None = None
    nodes: NodeList | None = None
    nodenames: list[str] | None = Field(default=None, max_length=_MOST_NODES)


class ExtenderBindingArgs(Received):
    """The question of bind."""

    podname: str = Field(min_length=1, max_length=_LONGEST_NAME)
    podnamespace: str = Field(min_length=1, max_length=_LONGEST_NAME)
    poduid: str = Field(min_length=1, max_length=_LONGEST_NAME)
    node: str = Field(min_length=1, max_length=_LONGEST_NAME)


class Sent(BaseModel):
    """An answer of the extender."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, populate_by_name=True)


class SentNodes(Sent):
    """The nodes of an answer, as they came."""

    metadata: dict[str, Any] = {}
    items: list[dict[str, Any]]


class ExtenderFilterResult(Sent):
    """The nodes that fit, and why others do not. `unresolvable`: those where no pod can make room by ending."""

    nodes: SentNodes | None = Field(default=None, serialization_alias="Nodes")
    node_names: list[str] | None = Field(default=None, serialization_alias="NodeNames")
    failed: dict[str, str] = Field(default={}, serialization_alias="FailedNodes")
    unresolvable: dict[str, str] = Field(default={}, serialization_alias="FailedAndUnresolvableNodes")
    error: str = Field(default="", serialization_alias="Error")


class HostPriority(Sent):
    """The score of one node, from 0 to HIGHEST."""

    host: str = Field(serialization_alias="Host")
    score: int = Field(ge=0, le=HIGHEST, serialization_alias="Score")


class HostPriorityList(RootModel[list[HostPriority]]):
    """The answer of prioritize."""


class ExtenderBindingResult(Sent):
    """The answer of bind. `error`: empty if the pod is bound."""

    error: str = Field(default="", serialization_alias="Error")


def sent(message: Sent | HostPriorityList) -> bytes:
    """Return an answer as JSON."""
    return message.model_dump_json(by_alias=True).encode()
