"""Finding the lookup in a text, and editing it. Pure text: no DeepSpeed is imported."""

import ast
import subprocess

import pytest
from guard_shapes import (
    GUARDED,
    LOOKUP_LINE,
    MAP,
    REDUCE_PASS,
    REDUCE_PASS_WITHOUT_SKIP,
    SHAPES,
    UNCONDITIONAL,
    UNGUARDED,
)

from dskit.guard import installed
from dskit.guard.codeobjects import function_code, same_code
from dskit.guard.source import (
    SHAPE_WANTED,
    edited_text,
    edited_tree,
    find_lookup,
    skips_none_grads,
    unified_diff,
)

LOOKUP = f"            grad_buffer = optimizer.{MAP}[p.ds_id]\n"
CONDITION = "        if use_opt:\n            grad"
FLAG = "    use_opt = not isinstance(optimizer, DeepSpeedZeRoOffload)\n"
EMPTY = "        grad_buffer = torch.Tensor()\n"
LOOP = "    for p in engine.module.parameters():\n"


def conditioned(condition):
    return CONDITION, CONDITION.replace("use_opt", condition)


# Each makes the source one that the guard does not know: what to replace, and with what.
UNKNOWN = {
    "edited_condition": conditioned("use_opt and p.ds_id < 3"),
    "edited_condition_wrapped": conditioned("bool(use_opt)"),
    "edited_condition_negated": conditioned("not use_opt"),
    "edited_condition_or": conditioned("use_opt or p.requires_grad"),
    "edited_condition_three_terms": conditioned("use_opt and p.requires_grad and p.ds_id"),
    "edited_condition_same_term_twice": conditioned("p.requires_grad and p.requires_grad"),
    "edited_condition_same_term_thrice": conditioned("use_opt and p.requires_grad and p.requires_grad"),
    "condition_on_requires_grad_alone": conditioned("p.requires_grad"),
    "condition_on_another_parameter": conditioned("use_opt and q.requires_grad"),
    "renamed_flag_in_condition_only": conditioned("has_opt"),
    "renamed_flag_in_binding_only": (FLAG, FLAG.replace("use_opt", "has_opt")),
    "renamed_optimizer_in_lookup_only": (LOOKUP, LOOKUP.replace("optimizer.", "opt.")),
    "renamed_parameter_in_lookup_only": (LOOKUP, LOOKUP.replace("p.ds_id", "q.ds_id")),
    "renamed_engine": (LOOP, LOOP.replace("engine", "self")),
    "renamed_map": (LOOKUP, LOOKUP.replace(MAP, "partitions")),
    "renamed_function": ("def init_z3(", "def init_z3_impl("),
    "second_lookup": (LOOKUP, LOOKUP + f"        other = optimizer.{MAP}[p.ds_id]\n"),
    "second_lookup_by_getattr": (FLAG, FLAG + f'    partitions = getattr(optimizer, "{MAP}")\n'),
    "second_lookup_by_alias": (FLAG, FLAG + f"    partitions = optimizer.{MAP}\n"),
    "second_lookup_under_another_test": (
        FLAG,
        FLAG + f"    first = optimizer.{MAP}[engine.ds_id] if optimizer.requires_grad else None\n",
    ),
    "lookup_by_get": (LOOKUP, LOOKUP.replace("[p.ds_id]", ".get(p.ds_id)")),
    "lookup_by_another_key": (LOOKUP, LOOKUP.replace("[p.ds_id]", "[p.ds_id + 1]")),
    "lookup_with_an_else": (LOOKUP, LOOKUP + "        else:\n            grad_buffer = None\n"),
    "lookup_beside_another_statement": (LOOKUP, LOOKUP + "            p.seen = True\n"),
    "lookup_into_two_names": (LOOKUP, LOOKUP.replace("grad_buffer =", "grad_buffer = first =")),
    "lookup_into_an_attribute": (LOOKUP, LOOKUP.replace("grad_buffer =", "p.grad_buffer =")),
    "flag_bound_to_something_else": (FLAG, "    use_opt = optimizer is not None\n"),
    "flag_bound_twice": (FLAG, FLAG + "    use_opt = True\n"),
    "flag_bound_after_the_loop_starts": (EMPTY, EMPTY + "        use_opt = True\n"),
    "loop_over_named_parameters": (LOOP, "    for p in engine.module.named_parameters():\n"),
    "loop_over_pairs": (LOOP, LOOP.replace("for p ", "for p, q ")),
    "loop_variable_rebound": (EMPTY, EMPTY + "        p = p.base\n"),
    "no_empty_buffer": (EMPTY, ""),
    "another_empty_buffer": (EMPTY, EMPTY.replace("torch.Tensor()", "None")),
    "decorated": ("def init_z3(", "@staticmethod\ndef init_z3("),
    "defined_twice": ("def init_z3(", "def init_z3():\n    pass\n\n\ndef init_z3("),
    "not_python": ("def init_z3(", "def init_z3<"),
    "null_byte": ("def init_z3(", "\0def init_z3("),
}


def installed_unguarded():
    """The installed release's own text, without the condition."""
    return edited_text(installed.read().text, "off")


@pytest.mark.parametrize("base", [UNGUARDED, installed_unguarded()], ids=["small", "installed"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_g15_unknown_shape_is_named(name, base):
    old, new = UNKNOWN[name]
    assert base.count(old) == 1
    lookup = find_lookup(base.replace(old, new))
    assert (lookup.shape, bool(lookup.reason)) == ("unknown", True)
    for direction in ("on", "off"):
        with pytest.raises((ValueError, SyntaxError)):
            edited_text(base.replace(old, new), direction)


@pytest.mark.parametrize(
    "condition", ["use_opt and p.ds_id < 3", "bool(use_opt)", "use_opt or p.requires_grad"]
)
def test_g15_edited_condition_is_quoted(condition):
    assert find_lookup(UNGUARDED.replace(*conditioned(condition))).reason.endswith(f"`{condition}`")


def test_g15_flag_bound_only_after_the_loop_is_unknown():
    assert find_lookup(UNGUARDED.replace(FLAG, "").replace("    return backend\n", FLAG)).shape == "unknown"


def test_g15_empty_buffer_only_after_the_lookup_is_unknown():
    assert find_lookup(UNGUARDED.replace(EMPTY, "").replace(LOOKUP, LOOKUP + EMPTY)).shape == "unknown"


def test_g15_lookup_in_a_nested_function_is_unknown():
    head, loop = UNGUARDED.split(LOOP)
    body, tail = loop.split("    if use_opt:\n\n")
    nested = "    def register():\n" + "".join(f"    {line}\n" for line in (LOOP + body).splitlines())
    lookup = find_lookup(head + nested + "    register()\n    if use_opt:\n\n" + tail)
    assert (lookup.shape, lookup.reason) == ("unknown", "the lookup is in no loop of the function's own")


@pytest.mark.parametrize(
    ("text", "shape", "line"),
    [
        (UNGUARDED, "unguarded", LOOKUP_LINE),
        (GUARDED, "guarded", LOOKUP_LINE),
        (
            GUARDED.replace("use_opt and p.requires_grad", "p.requires_grad and use_opt"),
            "guarded",
            LOOKUP_LINE,
        ),
        (UNCONDITIONAL, "unconditional", LOOKUP_LINE - 1),
        ("", "unknown", 0),
    ],
    ids=["unguarded", "guarded", "guarded_other_order", "unconditional", "empty"],
)
def test_shape_and_line_are_found(text, shape, line):
    lookup = find_lookup(text)
    assert (lookup.shape, lookup.line) == (shape, line)
    assert shape == "unknown" or MAP in text.splitlines()[line - 1]


def test_names_bound_in_the_source_are_used():
    renamed = UNGUARDED.replace("use_opt", "has_opt").replace("for p in", "for weight in")
    renamed = renamed.replace("p.ds_id", "weight.ds_id")
    edited = edited_text(renamed, "on")
    assert "        if has_opt and weight.requires_grad:\n" in edited
    assert find_lookup(edited).shape == "guarded"


@pytest.mark.parametrize("direction", ["on", "off"])
@pytest.mark.parametrize("shape", SHAPES)
def test_text_edit_gives_the_wanted_shape_and_changes_one_line(shape, direction):
    edited = edited_text(SHAPES[shape], direction)
    assert edited == SHAPES[SHAPE_WANTED[direction]]
    assert find_lookup(edited).shape == SHAPE_WANTED[direction]


@pytest.mark.parametrize(
    ("condition", "direction", "wanted"),
    [
        ("if (use_opt):  # here", "on", "if (use_opt and p.requires_grad):  # here"),
        ("if  use_opt :", "on", "if  use_opt and p.requires_grad :"),
        ("if (use_opt\n                and p.requires_grad):", "off", "if (use_opt):"),
        ("if p.requires_grad and use_opt:", "off", "if use_opt:"),
    ],
)
def test_text_edit_keeps_formatting(condition, direction, wanted):
    lookup = "\n            grad"
    text = UNGUARDED.replace(CONDITION, f"        {condition}{lookup}")
    assert edited_text(text, direction) == UNGUARDED.replace(CONDITION, f"        {wanted}{lookup}")


def test_text_edit_counts_columns_as_python_does():
    text = UNGUARDED.replace("if use_opt:", "if use_öpt:", 1).replace(
        "    use_opt = not", "    use_öpt = not"
    )
    assert "        if use_öpt and p.requires_grad:\n" in edited_text(text, "on")


@pytest.mark.parametrize("edit", [edited_text, edited_tree])
def test_unknown_direction_is_named(edit):
    with pytest.raises(ValueError, match="'sideways'"):
        edit(UNGUARDED, "sideways")


@pytest.mark.parametrize("direction", ["on", "off"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tree_edit_keeps_every_line_number(shape, direction):
    edited = function_code(edited_tree(SHAPES[shape], direction), "init_z3.py")
    written = function_code(SHAPES[SHAPE_WANTED[direction]], "init_z3.py")
    assert same_code(edited, written)
    assert same_code(edited, function_code(SHAPES[shape], "init_z3.py")) == (shape == SHAPE_WANTED[direction])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return backend\n", "\n    return backend\n"),  # only a line moved
        ("optimizer.owned", "optimizer.other"),  # in a nested function
        ("schedule=None):\n", "schedule=None, *, more=1):\n"),
        ("    return backend\n", "    return backend or 0\n"),
    ],
)
def test_codes_that_differ_are_told_apart(old, new):
    assert old in UNGUARDED
    assert not same_code(function_code(UNGUARDED, "a"), function_code(UNGUARDED.replace(old, new), "a"))


@pytest.mark.parametrize("values", [("1", "True"), ("0.0", "-0.0"), ("(1, 2)", "(1, 2.0)"), ("1", "1.0")])
def test_constants_that_compare_equal_are_told_apart(values):
    one, other = (function_code(f"def init_z3():\n    return {value}\n", "a") for value in values)
    assert not same_code(one, other)
    assert same_code(one, function_code(f"def init_z3():\n    return {values[0]}\n", "b"))


@pytest.mark.parametrize(
    ("text", "skips"),
    [
        (REDUCE_PASS, True),
        (REDUCE_PASS_WITHOUT_SKIP, False),
        (REDUCE_PASS.replace("is None:\n            continue\n", "is not None:\n    "), True),
        (REDUCE_PASS.replace("continue", "pass"), False),
        (REDUCE_PASS.replace("continue\n        add_reduce", "add_reduce"), False),
        (REDUCE_PASS.replace("if param_name_to_grad", "if param_manager"), False),
        (REDUCE_PASS + "    add_reduce(graph_id, graph, param_name_to_grad[0], 0, 0)\n", False),
        (REDUCE_PASS.replace("add_reduce(", "reduce("), False),
        (REDUCE_PASS.replace("add_gather_and_reduce", "renamed"), False),
        ("def add_gather_and_reduce(:", False),
        ("", False),
    ],
)
def test_g14_none_grad_skip_is_seen(text, skips):
    assert skips_none_grads(text) is skips


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("tail", ["\n", ""], ids=["newline_at_end", "no_newline_at_end"])
@pytest.mark.parametrize("shape", SHAPES)
def test_diff_applies_and_goes_back(tmp_path, shape, tail, newline):
    # Cut right after the loop, so that the end of the file lies in the hunk.
    cut = "        backend.append((p.ds_id, grad_buffer))"
    text = (SHAPES[shape].split(cut)[0] + cut + tail).replace("\n", newline)
    direction = "off" if shape == "guarded" else "on"
    path = tmp_path / "deepspeed" / "compile" / "init_z3.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode())
    patch = unified_diff(text, edited_text(text, direction), "deepspeed/compile/init_z3.py")
    for arguments, wanted in ((["apply"], SHAPE_WANTED[direction]), (["apply", "-R"], shape)):
        subprocess.run(["git", *arguments, "-"], input=patch.encode(), cwd=tmp_path, check=True)
        assert find_lookup(path.read_bytes().decode()).shape == wanted
    assert path.read_bytes().decode() == text


def test_diff_of_equal_texts_is_empty():
    assert unified_diff(GUARDED, edited_text(GUARDED, "on"), "x") == ""


def test_installed_file_parses_and_compiles_to_its_own_code():
    found = installed.read()
    assert found.lookup.shape in SHAPE_WANTED.values()
    assert found.skips_none_grads
    assert ast.parse(found.text).body
