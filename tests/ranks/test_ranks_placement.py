"""Where ranks are placed, and what is refused before any starts."""

import os

import pytest

from dskit.errors import DskitError
from dskit.ranks import checks, environ, placement


def gpus(monkeypatch, count, why=""):
    monkeypatch.setattr(placement, "visible_gpus", lambda: (count, why))


def nccl(monkeypatch, version):
    def installed(package):
        if version is None or package != "nvidia-nccl-cu13":
            raise placement.importlib.metadata.PackageNotFoundError(package)
        return version

    monkeypatch.setattr(placement.importlib.metadata, "version", installed)


def test_auto_gives_each_rank_a_gpu_where_there_are_enough(monkeypatch):
    gpus(monkeypatch, 4)
    chosen = placement.choose("auto", 2)
    assert chosen.device == chosen.accelerator == "cuda"
    assert "DS_ACCELERATOR" not in chosen.environment


def test_auto_shares_one_gpu_where_nccl_can(monkeypatch):
    gpus(monkeypatch, 1)
    nccl(monkeypatch, "2.30.7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    chosen = placement.choose("auto", 2)
    assert chosen.device == "cuda-shared" and chosen.accelerator == "cuda"
    assert chosen.environment == {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize(("version", "named"), [("2.28.9", "2.28.9"), (None, "no NCCL package")])
def test_auto_falls_back_to_cpu_where_nccl_cannot_share(monkeypatch, version, named):
    gpus(monkeypatch, 1)
    nccl(monkeypatch, version)
    chosen = placement.choose("auto", 2)
    assert chosen.device == "cpu" and named in chosen.reason


def test_auto_says_why_there_is_no_gpu(monkeypatch):
    gpus(monkeypatch, 0, "the installed torch is a CPU build")
    chosen = placement.choose("auto", 2)
    assert chosen.device == "cpu" and "CPU build" in chosen.reason
    assert chosen.environment["DS_ACCELERATOR"] == "cpu"


def test_cpu_is_given_even_where_there_are_gpus(monkeypatch):
    gpus(monkeypatch, 8)
    chosen = placement.choose("cpu", 2)
    assert chosen.device == "cpu" and chosen.environment["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("device", "ranks", "said"),
    [
        ("gpu", 2, "'gpu'"),
        ("", 2, "''"),
        ("cpu", 0, "0"),
        ("cpu", -1, "-1"),
        ("auto", True, "True"),
        ("auto", 2.0, "2.0"),
        ("cuda", 2, "1 GPU is visible"),
    ],
)
def test_bad_requests_name_the_value_and_a_way_out(monkeypatch, device, ranks, said):
    gpus(monkeypatch, 1)
    with pytest.raises(DskitError) as refused:
        placement.choose(device, ranks)
    assert said in refused.value.found and refused.value.todo


def test_a_gpu_is_not_shared_with_an_old_nccl(monkeypatch):
    gpus(monkeypatch, 1)
    nccl(monkeypatch, "2.29.1")
    with pytest.raises(DskitError, match=r"2\.29\.1"):
        placement.choose("cuda-shared", 2)


def test_e1_a_rank_gets_all_of_torchruns_variables():
    first, second = (environ.rank_environment(rank, 2) for rank in range(2))
    assert (first["RANK"], second["RANK"]) == ("0", "1")
    assert second["LOCAL_RANK"] == "1" and second["WORLD_SIZE"] == second["LOCAL_WORLD_SIZE"] == "2"
    assert environ.rank_environment(1, 2, shared_gpu=True)["LOCAL_RANK"] == "0"


def test_e6_a_missing_compiler_is_named_with_both_ways_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(DskitError) as refused:
        checks.check_compiler("inductor", "cpu")
    assert "g++" in str(refused.value) and "eager" in refused.value.todo
    checks.check_compiler("eager", "cpu")
    checks.check_compiler("inductor", "cuda")


def test_the_compiler_that_cxx_names_counts(monkeypatch, tmp_path):
    compiler = tmp_path / "my-c++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", f"{compiler.name} -std=c++17")
    assert checks.cxx_compiler() == os.fspath(compiler)


def test_e9_a_missing_scipy_is_named_before_step_5(monkeypatch):
    find_spec = checks.importlib.util.find_spec
    monkeypatch.setattr(
        checks.importlib.util, "find_spec", lambda name: None if name == "scipy" else find_spec(name)
    )
    with pytest.raises(DskitError) as refused:
        checks.check_packages()
    assert "scipy" in refused.value.found and "pip install scipy" in refused.value.todo
