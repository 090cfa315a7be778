"""The loader of YAML texts, and the line numbers of settings in them."""

from __future__ import annotations

import re
from typing import Any, ClassVar


def loader() -> type[Any]:
    """Return the class with which PyYAML reads a text. Its booleans are only true and false, as in
    YAML 1.2, because ``on:`` is a job's key and must not become True. A mapping that has a key
    twice is an error."""
    import yaml  # takes a while, and many commands read none

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar = {  # type: ignore[misc]
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        # when the text's own keys are known: a mapping may override those that it merges
        def compose_mapping_node(self, anchor: Any) -> Any:
            node, lines = super().compose_mapping_node(anchor), dict[tuple[str, str], int]()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if (name := (key.tag, key.value)) in lines:
                    raise yaml.composer.ComposerError(
                        problem=f"{key.value} is given twice, first in line {lines[name]}",
                        problem_mark=key.start_mark,
                    )
                lines[name] = key.start_mark.line + 1
            return node

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
    )
    return Loader


def line_of(text: str, parameter: str) -> int:
    """Return the line of a parameter such as ``dimensions.product.on`` in a YAML text, from 1 on.

    If the parameter is missing, return the line of the innermost enclosing mapping's key, or 1.
    Parts of the parameter's name that do not fit the text are skipped.
    """
    import yaml

    try:
        node: Any = yaml.compose(text, loader())
    except yaml.MarkedYAMLError as e:
        return e.problem_mark.line + 1 if e.problem_mark else 1
    line = 1
    for part in re.split(r"[. ,]+", parameter):
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == part), None)
            if found is not None:
                line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
    return line
