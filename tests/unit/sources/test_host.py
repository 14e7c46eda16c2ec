"""The host: its memory within the limits of its control groups, its processor, and what energy its packages used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudash.sources.host import BROKEN, NOT_ALLOWED, NOT_THERE, ControlGroup, HostReader, PackageEnergy
from gpudash.telemetry.records import Value

GIB = 1024**3
MIB = 1024**2
KIB = 1024

V2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"


class Tree:
    """A machine of files: 16 GiB of RAM, 6 GiB free, 10 GiB available."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.meminfo()
        self.write("proc/self/statm", "5000 1000 500 1 0 900 0\n")
        self.cpu(user=100, idle=900)
        self.groups("0::/\n", V2)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def meminfo(self, total: int = 16 * GIB, free: int = 6 * GIB, available: int = 10 * GIB) -> None:
        lines = {"MemTotal": total, "MemFree": free, "MemAvailable": available, "Buffers": 0}
        lines |= {"SwapTotal": 4 * GIB, "SwapFree": 3 * GIB}
        self.write("proc/meminfo", "".join(f"{key}: {size // KIB:>12} kB\n" for key, size in lines.items()))

    def cpu(self, user: int, idle: int) -> None:
        self.write("proc/stat", f"cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")

    def groups(self, cgroup: str, mountinfo: str) -> None:
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", mountinfo)

    def limit(self, folder: str, limit: int | None, usage: int, cache: int = 0, version: int = 2) -> None:
        if version == 2:
            names = "memory.max", "memory.current"
            stat = f"anon 5\ninactive_file {cache // 2}\nactive_file {cache - cache // 2}\nslab_reclaimable 0\n"
        else:
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
            stat = f"cache 7\ninactive_file 1\ntotal_inactive_file {cache}\ntotal_active_file 0\n"
        self.write(f"sys/fs/cgroup/{folder}/{names[0]}", f"{'max' if limit is None else limit}\n")
        self.write(f"sys/fs/cgroup/{folder}/{names[1]}", f"{usage}\n")
        self.write(f"sys/fs/cgroup/{folder}/memory.stat", stat)

    def read(self) -> tuple[Mapping[str, Value], str]:
        reader = HostReader(self.root, use_proc=True)
        try:
            return reader.read(0.0)[0].values, reader.capacity_source
        finally:
            reader.close()


def a_node(tree: Tree, number: int, total: int, free: int, cpus: str = "") -> None:
    """A NUMA node, with 1 GiB of files in its memory."""
    lines = {"MemTotal": total, "MemFree": free, "Active(file)": GIB, "Inactive(file)": 0}
    text = "".join(f"Node {number} {key}:  {size // KIB} kB\n" for key, size in lines.items())
    tree.write(f"sys/devices/system/node/node{number}/meminfo", text)
    tree.write(f"sys/devices/system/node/node{number}/cpulist", f"{cpus}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_memory_of_a_gpu_that_the_kernel_counts_as_ram_is_not_the_hosts(tree: Tree) -> None:
    tree.meminfo(total=24 * GIB, free=10 * GIB, available=15 * GIB)
    a_node(tree, 0, 16 * GIB, 6 * GIB, cpus="0-71")
    a_node(tree, 1, 8 * GIB, 4 * GIB)
    assert tree.read()[0]["total_bytes"] == 24 * GIB  # a node without processors may be memory behind CXL
    for gpu, node in (("0009:01:00.0", 1), ("0019:01:00.0", 0), ("0029:01:00.0", 9)):
        tree.write(f"proc/driver/nvidia/gpus/{gpu}/numa_status", f"Node:      {node}\nStatus:    online\n")
    values, source = tree.read()
    assert source == "RAM" and values["total_bytes"] == 16 * GIB
    assert values["free_bytes"] == 6 * GIB and values["available_bytes"] == 10 * GIB


def test_without_limits_capacity_is_ram_and_file_cache_is_not_used(tree: Tree) -> None:
    values, source = tree.read()
    assert source == "RAM"
    assert values["total_bytes"] == 16 * GIB
    assert values["available_bytes"] == 10 * GIB
    assert values["used_bytes"] == 6 * GIB
    assert values["free_bytes"] == 6 * GIB
    assert values["file_cache_bytes"] == 4 * GIB
    assert values["swap_used_bytes"] == GIB and values["swap_total_bytes"] == 4 * GIB


def test_a_limit_below_ram_is_the_capacity_and_its_file_cache_is_not_used(tree: Tree) -> None:
    tree.groups("0::/system.slice/x\n", V2)
    tree.limit("system.slice/x", 4 * GIB, usage=3 * GIB, cache=2 * GIB)
    values, source = tree.read()
    assert source == "cgroup limit of /system.slice/x"
    assert values["total_bytes"] == 4 * GIB
    assert values["available_bytes"] == 3 * GIB
    assert values["used_bytes"] == GIB
    assert values["free_bytes"] == GIB
    assert values["file_cache_bytes"] == 2 * GIB


def test_a_limit_further_up_counts_when_it_is_smaller_than_ours(tree: Tree) -> None:
    tree.groups("0::/a/b/c\n", V2)
    tree.limit("a/b/c", 8 * GIB, usage=GIB)
    tree.limit("a/b", None, usage=2 * GIB)
    tree.limit("a", 3 * GIB, usage=2 * GIB)
    values, source = tree.read()
    assert source == "cgroup limit of /a"
    assert values["total_bytes"] == 3 * GIB and values["available_bytes"] == GIB


def test_the_fullest_group_decides_what_is_available(tree: Tree) -> None:
    tree.groups("0::/a/b\n", V2)
    tree.limit("a/b", 4 * GIB, usage=GIB)
    tree.limit("a", 6 * GIB, usage=5 * GIB + 512 * MIB)
    values, source = tree.read()
    assert source == "cgroup limit of /a/b" and values["total_bytes"] == 4 * GIB
    assert values["available_bytes"] == 512 * MIB and values["used_bytes"] == 3 * GIB + 512 * MIB


def test_a_group_never_offers_more_than_the_machine_has(tree: Tree) -> None:
    tree.meminfo(free=GIB, available=GIB)
    tree.groups("0::/a\n", V2)
    tree.limit("a", 8 * GIB, usage=0)
    values, _ = tree.read()
    assert values["total_bytes"] == 8 * GIB and values["available_bytes"] == GIB


def test_a_limit_above_ram_is_no_limit(tree: Tree) -> None:
    tree.groups("0::/a\n", V2)
    tree.limit("a", 2**63 - 4096, usage=GIB)
    assert tree.read()[1] == "RAM"


def test_in_a_container_with_its_own_namespace_the_mount_is_our_group(tree: Tree) -> None:
    tree.groups("0::/\n", V2)
    tree.limit("", 2 * GIB, usage=GIB)
    values, source = tree.read()
    assert values["total_bytes"] == 2 * GIB and source == "cgroup limit of /"


def test_a_version_1_hierarchy_mounted_from_our_group_is_found(tree: Tree) -> None:
    mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    tree.groups("4:memory:/docker/abc\n3:cpu:/\n0::/\n", mount)
    tree.limit("memory", 2 * GIB, usage=GIB, cache=512 * MIB, version=1)
    values, source = tree.read()
    assert source == "cgroup limit of /docker/abc"
    assert values["total_bytes"] == 2 * GIB
    assert values["used_bytes"] == 512 * MIB


def test_a_version_1_path_that_a_namespace_hides_is_read_at_the_mount(tree: Tree) -> None:
    mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    tree.groups("4:memory:/\n", mount)
    tree.limit("memory", 2 * GIB, usage=GIB, version=1)
    assert tree.read()[0]["total_bytes"] == 2 * GIB


def test_a_limit_that_changes_is_seen_at_the_next_reading(tree: Tree) -> None:
    tree.groups("0::/a\n", V2)
    tree.limit("a", 4 * GIB, usage=GIB)
    reader = HostReader(tree.root, use_proc=True)
    assert reader.capacity_bytes == 4 * GIB
    tree.limit("a", None, usage=GIB)
    assert reader.read(0.0)[0].values["total_bytes"] == 16 * GIB
    assert reader.capacity_source == "RAM"
    reader.close()


def test_a_limit_where_there_was_none_is_seen_within_half_a_second(tree: Tree) -> None:
    tree.groups("0::/a\n", V2)
    tree.limit("a", None, usage=GIB)
    reader = HostReader(tree.root, use_proc=True)
    assert reader.read(0.0)[0].values["total_bytes"] == 16 * GIB
    tree.limit("a", 4 * GIB, usage=GIB)
    assert reader.read(0.5)[0].values["total_bytes"] == 4 * GIB
    tree.limit("a", 3 * GIB, usage=GIB)
    assert reader.read(0.55)[0].values["total_bytes"] == 3 * GIB
    reader.close()


def test_a_group_without_a_limit_is_not_asked_again_at_every_reading(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.groups("0::/a\n", V2)
    tree.limit("a", None, usage=GIB)
    reader = HostReader(tree.root, use_proc=True)
    asked: list[str] = []
    read = ControlGroup.read
    monkeypatch.setattr(ControlGroup, "read", lambda group, below: (asked.append(group.name), read(group, below))[1])
    for tick in range(20):
        reader.read(tick * 0.05)
    assert asked == ["/a", "/a"]
    reader.close()


def test_cpu_utilisation_has_no_value_before_there_are_two_readings(tree: Tree) -> None:
    reader = HostReader(tree.root, use_proc=True)
    first = reader.read(0.0)[0].values
    assert "cpu_utilisation" not in first and "process_cpu_utilisation" not in first
    tree.cpu(user=175, idle=925)
    assert "cpu_utilisation" not in reader.read(0.1)[0].values
    later = reader.read(0.6)[0].values
    assert later["cpu_utilisation"] == 0.75
    assert isinstance(later["process_cpu_utilisation"], float)
    reader.close()


def test_an_idle_processor_reads_zero(tree: Tree) -> None:
    reader = HostReader(tree.root, use_proc=True)
    reader.read(0.0)
    tree.cpu(user=100, idle=990)
    assert reader.read(1.0)[0].values["cpu_utilisation"] == 0
    reader.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    machine=st.lists(st.integers(0, 2**24), min_size=3, max_size=3),
    groups=st.lists(st.tuples(st.integers(0, 2**34), st.integers(0, 2**34), st.integers(0, 2**34)), max_size=3),
)
def test_free_file_cache_and_used_always_add_up_to_capacity(
    tree: Tree, machine: list[int], groups: list[tuple[int, int, int]]
) -> None:
    total, free, available = sorted((size * KIB for size in machine), reverse=True)
    tree.meminfo(total, available, free)  # the kernel may call less available than free
    tree.groups("0::/" + "/".join("abc"[: len(groups)]) + "\n", V2)
    for depth, (limit, usage, cache) in enumerate(groups):
        tree.limit("/".join("abc"[: depth + 1]), limit, usage, cache)
    values, _ = tree.read()
    sizes = {name: values[name] for name in ("free_bytes", "file_cache_bytes", "used_bytes", "total_bytes")}
    assert all(isinstance(size, int) and size >= 0 for size in sizes.values())
    assert values["free_bytes"] + values["file_cache_bytes"] + values["used_bytes"] == values["total_bytes"]  # type: ignore[operator]
    assert values["total_bytes"] == min([total, *(limit for limit, _, _ in groups)])


def test_both_ways_of_reading_agree_on_this_machine() -> None:
    ours, psutils = HostReader(), HostReader(use_proc=False)
    fast, slow = ours.read(0.0)[0].values, psutils.read(0.0)[0].values
    assert set(fast) == set(slow)
    assert slow["total_bytes"] == psutil.virtual_memory().total
    if ours.capacity_source == "RAM":
        assert fast["total_bytes"] == slow["total_bytes"]
    assert fast["process_bytes"] == pytest.approx(slow["process_bytes"], rel=0.2)
    assert psutils.capacity_source == "RAM"
    ours.close()
    psutils.close()


def zone(root: Path, name: str, kind: str, energy: int, wraps: int = 10_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    for file, text in (("name", kind), ("energy_uj", str(energy)), ("max_energy_range_uj", str(wraps))):
        (folder / file).write_text(text + "\n")
    return folder


def test_the_packages_are_added_up_and_their_parts_are_not_counted_twice(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "intel-rapl:0", "package-0", 100), zone(tmp_path, "intel-rapl:1", "package-1", 0)
    part = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    energy = PackageEnergy(tmp_path)
    assert energy.joules() == 0.0
    for folder, value in ((first, 1_000_100), (second, 500_000), (part, 900_000)):
        (folder / "energy_uj").write_text(str(value))
    assert energy.joules() == pytest.approx(1.5)


def test_a_counter_that_begins_anew_goes_on_where_it_was(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    energy = PackageEnergy(tmp_path)
    energy.joules()
    (package / "energy_uj").write_text("1000000")
    assert energy.joules() == pytest.approx(2.0)


def test_a_system_without_counters_says_so(tmp_path: Path) -> None:
    assert PackageEnergy(tmp_path).joules() == NOT_THERE
    assert PackageEnergy(tmp_path / "missing").joules() == NOT_THERE


def test_a_counter_that_cannot_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (package / "energy_uj").write_text("no number")
    assert PackageEnergy(tmp_path).joules() == BROKEN
    read = Path.read_text

    def refused(path: Path, *args: object, **more: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", refused)
    assert PackageEnergy(tmp_path).joules() == NOT_ALLOWED
