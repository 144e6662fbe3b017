"""Operator schemas read from C++: a file written by hand, and the installed release's own."""

import re

import pytest

from dskit.cpu import operators
from dskit.cpu.handle import CpuHandle
from dskit.cpu.schemas import handle_calls, native_source, operator_schemas
from dskit.errors import DskitError

SOURCE = """
#include "z3.h"

TORCH_LIBRARY(dc, m)
{
    m.def("gather(Tensor a, int graph_id, ScalarType? dtype = None) -> Tensor");
    m.def(
        "prefetch(int graph_id, Tensor[] params,"
        "         ScalarType[]? dtypes = None)"
        " -> ()");
    if (debug) {
        m.def("inner(Tensor a) -> ()");
    }
}

TORCH_LIBRARY_IMPL(dc, CPU, m)
{
    m.impl("not_an_operator", &dc::gather);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("reset", &dc::reset, "Reset the state");
    m.def("cleanup",
          &dc::cleanup,
          "Clean up");
    m.def("cleanup", &dc::cleanup, "Again");
}
"""

# What DeepCompile's default ZeRO-3 schedule calls.
NEEDED = {
    "dc::allgather_param", "dc::prefetch_params_fused", "dc::wait_allgather", "dc::release_param",
    "dc::reduce_grad", "dc::free_tensors", "dc::end_backward",
    "init", "register_z3_param", "register_graph_z3", "set_persistent", "start_backward", "start_forward",
    "end_forward", "enable_profiling", "is_profiling", "invalidate_gathered_param",
    "clear_all_gathered_params", "reset", "cleanup",
}  # fmt: skip


@pytest.fixture
def release(tmp_path):
    """A function that writes ``init.cpp`` below the folder of a release, and returns that folder."""

    def write(text):
        path = native_source(tmp_path)
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


def declared(root):
    """Names that the file declares, by another way: its lines, read one after the other."""
    block, names = "", set()
    lines = native_source(root).read_text().splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if start := re.match(r"(TORCH_LIBRARY|PYBIND11_MODULE)\(", line):
            block = start[1]
        elif line == "}":
            block = ""
        elif "m.def(" in line and block:
            name = re.search(r'"(\w+)', line + following)[1]
            names.add(name if block == "PYBIND11_MODULE" else f"dc::{name}")
    return names


def test_schemas_come_in_the_order_of_declaration_and_on_one_line(release):
    schemas = operator_schemas(release(SOURCE))
    assert list(schemas) == ["gather", "prefetch", "inner"]
    assert schemas["gather"] == "gather(Tensor a, int graph_id, ScalarType? dtype = None) -> Tensor"


def test_a_literal_split_over_lines_becomes_one_schema(release):
    expected = "prefetch(int graph_id, Tensor[] params, ScalarType[]? dtypes = None) -> ()"
    assert operator_schemas(release(SOURCE))["prefetch"] == expected


def test_calls_are_names_without_their_descriptions_once_each(release):
    assert handle_calls(release(SOURCE)) == ["cleanup", "reset"]


def test_a_missing_file_is_named_with_its_path(tmp_path):
    with pytest.raises(DskitError, match="could not be read") as caught:
        operator_schemas(tmp_path)
    assert str(native_source(tmp_path)) in caught.value.found
    assert "No such file" in caught.value.found and "0.18.0" in caught.value.todo


@pytest.mark.parametrize(
    "text", ["", "TORCH_LIBRARY(dc, m)\n{\n}\n", SOURCE.replace("(dc, m)", "(other, m)")]
)
def test_a_file_without_operators_is_refused(release, text):
    with pytest.raises(DskitError, match="declares none in the form that dskit knows"):
        operator_schemas(release(text))


def test_a_file_without_a_python_module_is_refused(release):
    with pytest.raises(DskitError, match="declares none"):
        handle_calls(release(SOURCE.replace("PYBIND11_MODULE", "SOMETHING_ELSE")))


def test_the_installed_releases_schemas_parse_in_pytorch(deepspeed_root):
    from torch._C import parse_schema

    schemas = operator_schemas(deepspeed_root)
    for name, schema in schemas.items():
        assert parse_schema(schema).name == name


def test_every_operator_and_call_of_the_installed_release_is_found(deepspeed_root):
    found = {f"dc::{name}" for name in operator_schemas(deepspeed_root)} | set(handle_calls(deepspeed_root))
    assert found == declared(deepspeed_root)
    assert found >= NEEDED


def test_every_operator_and_call_is_served_or_listed_as_unserved(deepspeed_root):
    handle, served = CpuHandle(), set()
    for name in declared(deepspeed_root) - {"dc::test_call"}:
        attribute = name.replace("dc::", "op_")
        if hasattr(handle, attribute):
            served.add(name)
            assert "op_" not in attribute or hasattr(handle, attribute.replace("op_", "meta_")), attribute
    unserved = set(operators.unserved(handle, deepspeed_root))
    assert served >= NEEDED
    assert served | unserved == declared(deepspeed_root) - {"dc::test_call"}
    assert not served & unserved
