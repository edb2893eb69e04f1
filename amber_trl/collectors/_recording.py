"""Records the torch calls that an actor makes in one frame, and replays them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import getitem
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from tensordict.utils import NestedKey
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Outputs = Mapping[NestedKey, Tensor]

_ESCAPES = frozenset({"numpy", "tolist", "__array__", "__dlpack__", "__set__"})
"""Names of calls that pass values to Python or change tensors unseen by torch's dispatcher."""


class NotRecordedError(Exception):
    """The actor is not a fixed list of torch calls; the message says why."""


class Recording:
    """An actor's computation in one frame, as two functions made of torch operations.

    ``once`` computes everything that depends only on parameters, such as the exponential of a log-std
    parameter, once per batch. ``each`` computes the rest in every frame. Operations that no output
    needs are left out, except that random numbers are drawn as often as the actor draws them.

    ``call`` calls the actor with the observation; ``omitted`` is an output to leave out.
    """

    each: GraphModule
    """Maps :attr:`kept` and the observation of a frame to its outputs."""
    kept: list[Tensor]
    """The inputs of :attr:`each` besides the observation, as of the last :meth:`begin`."""

    def __init__(
        self, call: Callable[[], Outputs], observation: Tensor, omitted: NestedKey | None
    ) -> None:
        recorder = _Recorder(observation)
        with recorder, _Functions():
            outputs = call()
        nodes = {key: recorder.node(value) for key, value in outputs.items() if key != omitted}
        self.outputs = list(nodes)
        """Names of the outputs of :attr:`each`, in order."""
        self._constants = list(recorder.constants.values())
        self._guards = list(recorder.guards.values())
        self._split(recorder, list(nodes.values()))

    def begin(self) -> Callable[[Tensor], Sequence[Tensor]] | None:
        """The function from an observation to the outputs, for the current parameters.

        None if a value that the actor looked at has changed since: it must be recorded again.
        """
        *kept, seen = self._once.forward(*self._constants)
        self.kept = kept
        return partial(self.each.forward, *kept) if list(seen) == self._guards else None

    def _split(self, recorder: "_Recorder", outputs: list[Node]) -> None:
        graph, fixed = recorder.graph, recorder.fixed()
        if not fixed.issuperset(recorder.guards):
            raise NotRecordedError("it looks at the values of a tensor that varies by frame")
        graph.output((*outputs, *recorder.guards))
        graph.eliminate_dead_code(_is_impure)
        # Fixed nodes that outputs or other nodes read are passed from one function to the other.
        kept = [
            node
            for node in graph.nodes
            if node in fixed and (node in outputs or not fixed.issuperset(_calls(node.users)))
        ]
        once, each = Graph(), Graph()
        # Constants -> (kept, guards).
        new = {node: once.placeholder(node.name) for node in recorder.constants}
        for node in _calls(graph.nodes):
            if node in fixed:
                new[node] = once.node_copy(node, new.__getitem__)
        once.output((*(new[node] for node in kept), [new[node] for node in recorder.guards]))
        # (kept, observation) -> outputs.
        new = {node: each.placeholder(node.name) for node in (*kept, recorder.observation)}
        for node in _calls(graph.nodes):
            if node not in fixed:
                new[node] = each.node_copy(node, new.__getitem__)
                _quicken(new[node])
        each.output(tuple(new[node] for node in outputs))
        self._once, self.each = GraphModule({}, once), GraphModule({}, each)


class _Recorder(TorchDispatchMode):
    """Writes every operation that reaches torch's dispatcher into a graph."""

    def __init__(self, observation: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.observation = self.graph.placeholder("observation")
        self.constants: dict[Node, Tensor] = {}
        """Tensors that existed before the call: parameters, buffers and the like."""
        self.guards: dict[Node, object] = {}
        """Values that reached Python, such as a condition on which the actor branches."""
        self._given = {_address(observation)}
        self._written: set[int] = set()
        self._nodes = {id(observation): self.observation}
        self._alive: list[Any] = [observation]  # kept alive so that no id is reused

    def fixed(self) -> set[Node]:
        """Nodes that do not depend on the observation, draw nothing, and are not written to."""
        fixed = set(self.constants)
        for node in _calls(self.graph.nodes):
            pure = not _is_impure(node) and self._written.isdisjoint(node.meta["addresses"])
            if pure and fixed.issuperset(node.all_input_nodes):
                fixed.add(node)
        return fixed

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if torch.Tag.dynamic_output_shape in func.tags and not _indexes_by_integers(func, args):
            raise NotRecordedError("the shape of a result depends on the values of a tensor")
        node = self.graph.call_function(func, *tree_map(self.node, (args, named)))
        result = func(*args, **named)
        self._note_writes(func._schema.arguments, args, named)
        self._store(node, result)
        return result

    def node(self, leaf: Any) -> Any:
        """The node that produced a tensor; any other value is returned as it is."""
        if isinstance(leaf, torch.Generator):
            raise NotRecordedError("it draws from its own generator")
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._nodes:
            node = self._nodes[id(leaf)] = self.graph.placeholder("constant")
            self.constants[node] = leaf
            self._given.add(_address(leaf))
            self._alive.append(leaf)
        return self._nodes[id(leaf)]

    def _note_writes(self, formal: Sequence[Any], args: tuple[Any, ...], named: Any) -> None:
        given = named | {to.name: value for to, value in zip(formal, args, strict=False)}
        mutable = {to.name for to in formal if to.alias_info is not None and to.alias_info.is_write}
        written = tree_leaves([value for name, value in given.items() if name in mutable])
        self._written |= {_address(leaf) for leaf in written if isinstance(leaf, Tensor)}
        if not self._written.isdisjoint(self._given):
            raise NotRecordedError("it writes to a tensor that it keeps, or to its input")

    def _store(self, node: Node, result: Any) -> None:
        """Remembers the tensors that a node produced."""
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        node.meta["addresses"] = {_address(tensor) for tensor in tensors}
        self._alive.append(result)
        if isinstance(result, Tensor):
            self._nodes[id(result)] = node
        elif tensors:
            for position, item in enumerate(result):
                self._store(self.graph.call_function(getitem, (node, position)), item)
        elif result is not None:
            self.guards[node] = result


class _Functions(TorchFunctionMode):
    """Refuses functions with effects that :class:`_Recorder` does not see."""

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if (name := getattr(func, "__name__", "")) in _ESCAPES:
            raise NotRecordedError(f"it reads or sets the values of a tensor ({name})")
        if func is torch.nn.functional.one_hot and len(args) == 2:
            return _one_hot(*args)  # torch's own reads the values to check them
        return func(*args, **(kwargs or {}))


def alike(one: Tensor, other: Tensor, *, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Whether two tensors have the same shape, dtype and values, with NaN equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True)


def _one_hot(indices: Tensor, num_classes: int) -> Tensor:
    return (indices.unsqueeze(-1) == torch.arange(num_classes, device=indices.device)).long()


def _calls(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.op == "call_function"]


def _is_impure(node: Node) -> bool:
    """Whether a node must always run: it draws random numbers or writes to a tensor."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is not getitem
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return random or node.target._schema.is_mutable


def _quicken(node: Node) -> None:
    """Replaces an operation by torch's own binding, which is faster to call."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    name = node.target._schema.name.removeprefix("aten::").replace("_to_copy", "to")
    if isinstance(function := getattr(torch, name, None), BuiltinFunctionType):
        node.target = function
    elif isinstance(getattr(Tensor, name, None), MethodDescriptorType) and node.args:
        node.op, node.target = "call_method", name


def _indexes_by_integers(func: Any, args: Sequence[Any]) -> bool:
    if func is not torch.ops.aten.index.Tensor:
        return False
    return all(index is None or index.dtype in (torch.int32, torch.int64) for index in args[1])


def _address(tensor: Tensor) -> int:
    """The address of a tensor's storage, which its views share."""
    return tensor.untyped_storage().data_ptr()
