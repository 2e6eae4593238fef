"""Products: of an activation and a constant, a linear map or an embedding; of two activations, scores or a context."""

from __future__ import annotations

from collections.abc import Callable

from fusebert.match import axes as ax
from fusebert.match.axes import Group, View
from fusebert.match.findings import Refused
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Node


def matmul(lifting: Lifting, node: Node) -> None:
    a, b = (lifting.seen(name) for name in node.inputs[:2])
    if min(len(a.dims), len(b.dims)) < 2 or node.inputs[0] in lifting.weights:
        raise Refused("only products of matrices are supported, and the left one may not be a constant")
    left, right = list(a.dims), list(b.dims)
    if node.attributes.get("transpose_a"):
        left[-2:] = left[-1], left[-2]
    if node.attributes.get("transpose_b"):
        right[-2:] = right[-1], right[-2]
    batch = len(left) - 2
    if node.inputs[1] in lifting.weights:
        if any(right[:-2]) or len(right) > len(left):
            raise Refused(f"{node.inputs[1]} is several matrices")
        return linear(
            lifting,
            node,
            a,
            left[:-1],
            left[-1],
            node.inputs[1],
            (right[-1],),
            (right[-2],),
            lambda n: (*left[:-1], *n),
        )
    if len(left) != len(right):
        raise Refused("the two activations have different numbers of dimensions")
    pairs = list(zip(left[:batch], right[:batch], strict=True))
    return product(lifting, node, a, b, pairs, left[-2], right[-1], left[-1], right[-2], lambda bs, m, n: (*bs, m, n))


def einsum(lifting: Lifting, node: Node) -> None:
    terms, arrow, result = str(node.attributes.get("equation", "")).replace(" ", "").partition("->")
    parts, result = _spelled(lifting, node, terms.split(","), result)
    if not arrow or len(parts) != 2 or "." in "".join(parts) or any(len(set(p)) < len(p) for p in (*parts, result)):
        raise Refused(f"equation {node.attributes.get('equation')} is not a product of two tensors")
    names = list(node.inputs[:2])
    if names[0] in lifting.weights or (names[1] not in lifting.weights and _first_free(parts, result) == 1):
        names.reverse()
        parts.reverse()
    x, y = lifting.seen(names[0]), lifting.seen(names[1])
    if names[0] in lifting.weights or any(len(p) != len(v.dims) for p, v in zip(parts, (x, y), strict=True)):
        raise Refused("the equation does not fit its operands")
    left, right = dict(zip(parts[0], x.dims, strict=True)), dict(zip(parts[1], y.dims, strict=True))
    shared = [letter for letter in parts[1] if letter in left]
    summed, batch = [s for s in shared if s not in result], [s for s in shared if s in result]
    free_x, free_y = [s for s in parts[0] if s not in right], [s for s in parts[1] if s not in left]
    if any(s not in result for s in (*free_x, *free_y)) or any(s not in left and s not in right for s in result):
        raise Refused("the equation sums over more than the product does, or names an axis that no operand has")
    if names[1] in lifting.weights:
        if batch:
            raise Refused(f"{names[1]} is several matrices")

        def layout(new: tuple[Group, ...]) -> tuple[Group, ...]:
            found = {**left, **dict(zip(free_y, new, strict=True))}
            return tuple(found[s] for s in result)

        return linear(
            lifting,
            node,
            x,
            [left[s] for s in free_x],
            _joined(left, summed),
            names[1],
            tuple(right[s] for s in free_y),
            tuple(right[s] for s in summed),
            layout,
        )
    if len(free_x) != 1 or len(free_y) != 1:
        raise Refused("the product of two activations has more than one free axis each")

    def order(batches: list[Group], m: Group, n: Group) -> tuple[Group, ...]:
        found = {**dict(zip(batch, batches, strict=True)), free_x[0]: m, free_y[0]: n}
        return tuple(found[s] for s in result)

    pairs = [(left[s], right[s]) for s in batch]
    return product(
        lifting,
        node,
        x,
        y,
        pairs,
        left[free_x[0]],
        right[free_y[0]],
        _joined(left, summed),
        _joined(right, summed),
        order,
    )


def linear(
    lifting: Lifting,
    node: Node,
    x: View,
    leading: list[Group],
    summed: Group,
    weight: str,
    made: tuple[Group, ...],
    read: tuple[Group, ...],
    layout: Callable[[tuple[Group, ...]], tuple[Group, ...]],
) -> None:
    """A product with a constant: `made` and `read` are the weight's own dimensions that come out and go in."""
    if not summed or ax.size_of(summed) != ax.size_of(axis for group in read for axis in group):
        raise Refused(f"{weight} has another number of inputs than the activation has columns")
    out = node.outputs[0]
    canonical, last = ax.settled(lifting.dims[x.value]), ax.atoms(summed)
    if canonical[-1:] == (last,):
        lead = tuple(group for group in canonical[:-1] if group)  # a batch of one is none
    else:
        lead = tuple((axis,) for axis in ax.flat(canonical) if axis not in last)
        if set(ax.flat(leading)) != set(ax.flat(lead)) or len(last) + len(lead) != len(ax.flat(canonical)):
            raise Refused("the axis that is summed over is not a whole dimension of the activation")
    fresh = tuple(ax.fresh([ax.size_of(group)])[0] for group in made)
    dims = (*lead, tuple(axis for group in fresh for axis in group))
    name = lifting.lay(x, (*lead, last))
    selected = lifting.maker.get(name)
    rows = (tuple(a for g in made for a in g), tuple(a for g in read for a in g))
    if selected is not None and selected.op == "one_hot" and _plain_one_hot(lifting, selected):
        table = lifting.lay_weight(weight, ax.settled(lifting.dims[weight]), (rows[1], rows[0]))
        lifting.emit("embed", (table, selected.inputs[0]), out, dims, node)
    else:
        matrix = lifting.lay_weight(weight, ax.settled(lifting.dims[weight]), rows)
        lifting.emit("linear", (name, matrix), out, dims, node)
    lifting.views[out] = View(out, layout(fresh))


def product(
    lifting: Lifting,
    node: Node,
    a: View,
    b: View,
    batch: list[tuple[Group, Group]],
    m: Group,
    n: Group,
    k_a: Group,
    k_b: Group,
    layout: Callable[[list[Group], Group, Group], tuple[Group, ...]],
) -> None:
    """A product of two activations: scores, or a context where the left one is attention."""
    if ax.size_of(k_a) != ax.size_of(k_b):
        raise Refused("the axes that are summed over have different sizes")
    first, second = lifting.maker.get(a.value), lifting.maker.get(b.value)
    if not k_a and not all(made is not None and made.op == "linear" for made in (first, second)):
        raise Refused("it is an outer product")  # but for heads of one column
    everything = ax.flat(a.dims), ax.flat(b.dims)
    for left, right in batch:
        if ax.size_of(left) != ax.size_of(right) or not ax.same(
            left, right, everything if left and right else ((), ())
        ):
            raise Refused("the batch axes of the two activations are not the same")
    lead: tuple[Group, ...] = tuple((axis,) for axis in ax.flat(group for group, _ in batch))
    if any(
        made is not None and made.op == "repeat_heads" for made in (first, second)
    ):  # several axes make up the heads
        lead = tuple(group for group in ax.settled(group for group, _ in batch) if group)
    out = node.outputs[0]
    made_m, made_n = ax.atoms(m), ax.atoms(n)
    if set(made_m) & set(made_n):  # tokens by tokens: neither is the other, and which one stays is seen later
        made_m, made_n = ax.clone(m), ax.clone(n)
    dims = (*lead, made_m, made_n)
    if first is not None and _is_attention(first, lifting.maker):
        attention = lifting.lay(a, (*lead, ax.atoms(m), ax.atoms(k_a)))
        lifting.emit("context", (attention, lifting.lay(b, (*lead, ax.atoms(k_b), ax.atoms(n)))), out, dims, node)
    else:
        plain_a, plain_b = View(a.value, a.dims), View(b.value, b.dims)
        query = lifting.lay(plain_a, (*lead, ax.atoms(m), ax.atoms(k_a)))
        key = lifting.lay(plain_b, (*lead, ax.atoms(n), ax.atoms(k_b)))
        lifting.emit("scores", (query, key), out, dims, node, scale=a.factor * b.factor)
    lifting.views[out] = View(out, layout([group for group, _ in batch], made_m, made_n))


def _joined(source: dict[str, Group], letters: list[str]) -> Group:
    return tuple(axis for letter in letters for axis in source[letter])


def _spelled(lifting: Lifting, node: Node, parts: list[str], result: str) -> tuple[list[str], str]:
    """An equation whose dots have become letters, where the first operand alone has dots."""
    view = lifting.view(node.inputs[0])
    if "..." not in parts[0] or "..." in "".join(parts[1:]) or view is None:
        return parts, result
    free = [letter for letter in "ABCDEFGHIJKLMNOP" if letter not in "".join(parts)]
    dots = "".join(free[: len(view.dims) - len(parts[0].replace("...", ""))])
    return [part.replace("...", dots) for part in parts], result.replace("...", dots)


def _first_free(parts: list[str], result: str) -> int:
    """Which operand's own letter comes first in the result."""
    for letter in result:
        if (letter in parts[0]) != (letter in parts[1]):
            return 0 if letter in parts[0] else 1
    return 0


def _is_attention(made: Node, maker: dict[str, Node]) -> bool:
    while made.op == "identity" and made.inputs[0] in maker:
        made = maker[made.inputs[0]]
    if made.op == "div" and made.inputs[0] in maker:  # a softmax that is written out
        return maker[made.inputs[0]].op == "exp"
    return made.op == "softmax"


def _plain_one_hot(lifting: Lifting, node: Node) -> bool:
    numbers = [lifting.scalar(name) for name in node.inputs[2:4]]
    return numbers in ([1.0, 0.0], [])


RULES = {"matmul": matmul, "einsum": einsum}
