"""Small TensorFlow graphs from lines of text, as files: for the tests of the pattern tools."""

from pathlib import Path

from fusebert.formats.tensorflow.messages import message
from fusebert.recipes.extract import extract_pattern
from fusebert.recipes.pattern import load, save

FLOAT = 1


def add(nodes, text):
    """A node per line: name, operation, inputs, and attributes as key=value."""
    for line in filter(None, map(str.strip, text.splitlines())):
        name, op, *rest = line.split()
        node = nodes.add(name=name, op=op)
        for word in rest:
            key, equals, value = word.partition("=")
            if not equals:
                node.input.append(word)
            elif key == "device":
                node.device = value
            elif key == "value":
                attribute = node.attr.add(key="value").value.tensor
                attribute.dtype = FLOAT
                attribute.tensor_shape.SetInParent()
                attribute.float_val.append(float(value))
                node.attr.add(key="dtype").value.type = FLOAT
            else:
                set_value(node.attr.add(key=key).value, value)


def set_value(attribute, value):
    if value in ("true", "false"):
        attribute.b = value == "true"
    elif value.startswith("DT_"):
        attribute.type = {"DT_FLOAT": 1, "DT_INT32": 3}[value]
    elif value.startswith("loc:"):
        attribute.list.s.append(value.encode())
    elif value.startswith("["):
        shape = attribute.list.shape.add()
        for size in value.strip("[]").split(","):
            shape.dim.add(size=int(size))
    elif value.lstrip("-").isdecimal():
        attribute.i = int(value)
    else:
        attribute.s = value.encode()


def frozen(path: Path, text: str) -> Path:
    graph = message("GraphDef")
    add(graph.node, text)
    path.write_bytes(graph.SerializeToString())
    return path


def saved(folder: Path, text: str = "", functions=(), outputs=(), inputs=()) -> Path:
    """A SavedModel; a function is (name, arguments, text, what it returns, its control outputs)."""
    model = message("SavedModel")
    model.saved_model_schema_version = 1
    meta = model.meta_graphs.add()
    meta.meta_info_def.tags.append("serve")
    add(meta.graph_def.node, text or "unused NoOp")
    for name, arguments, body, returned, *controls in functions:
        function = meta.graph_def.library.function.add()
        function.signature.name = name
        for argument in arguments.split():
            function.signature.input_arg.add(name=argument, type=FLOAT)
        add(function.node_def, body)
        for key, value in returned.items():
            function.signature.output_arg.add(name=key, type=FLOAT)
            function.ret.add(key=key, value=value)
        for key, value in (controls[0] if controls else {}).items():
            function.control_ret.add(key=key, value=value)
    if outputs:
        signature = meta.signature_def.add(key="serving_default").value
        for name in outputs:
            signature.outputs.add(key=name).value.name = f"{name}:0"
        for name in inputs:
            signature.inputs.add(key=name).value.name = f"{name}:0"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())
    return folder


def recipe(path: Path, model: Path, seeds, barriers=(), ops=(), function=None, target="", outputs=()) -> Path:
    """A recipe: the pattern from a model, and a node definition in one line."""
    seeds = seeds.split() if isinstance(seeds, str) else seeds
    barriers = barriers.split() if isinstance(barriers, str) else barriers
    ops = ops.split() if isinstance(ops, str) else ops
    extract_pattern(model, path.with_suffix(".pattern"), seeds, barriers, ops, function, overwrite=True)
    made = message("Recipe")
    made.source_pattern.CopyFrom(load(path.with_suffix(".pattern"), "Pattern"))
    graph = message("GraphDef")
    add(graph.node, target or f"fused Fused {' '.join(barriers)}")
    made.target_node.CopyFrom(graph.node[0])
    for seed, name, index, number in outputs:
        made.outputs.add(seed=seed, name=name, index=index, number=number)
    save(path, made, overwrite=True)
    return path


def graph_of(path: Path):
    """The nodes of a written frozen graph by name."""
    graph = message("GraphDef")
    graph.ParseFromString(path.read_bytes())
    return {node.name: node for node in graph.node}


def function_of(path: Path, name: str):
    """A function of a written SavedModel, and its nodes by name."""
    model = message("SavedModel")
    model.ParseFromString((path / "saved_model.pb" if path.is_dir() else path).read_bytes())
    for function in model.meta_graphs[0].graph_def.library.function:
        if function.signature.name == name:
            return function, {node.name: node for node in function.node_def}
    return None


def main_of(path: Path):
    """The nodes of the main graph of a written SavedModel by name."""
    model = message("SavedModel")
    model.ParseFromString((path / "saved_model.pb" if path.is_dir() else path).read_bytes())
    return {node.name: node for node in model.meta_graphs[0].graph_def.node}
