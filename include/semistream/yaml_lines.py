"""The line numbers of settings in a YAML file."""

from __future__ import annotations

import re
from typing import Any


def line_of(text: str, parameter: str) -> int:
    """Return the line of a parameter such as ``dimensions.product.on`` in a YAML text, from 1 on.

    If the parameter is missing, return the line of the innermost enclosing mapping's key, or 1.
    Parts of the parameter's name that do not fit the text are skipped.
    """
    import yaml

    try:
        node: Any = yaml.compose(text, yaml.SafeLoader)
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
