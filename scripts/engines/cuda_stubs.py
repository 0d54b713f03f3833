"""cuda_stubs.py SITE_PACKAGES: lets PyPI's torch load on a machine without GPU and without NVIDIA's wheels.

The shared objects of that torch are linked against some 3 GB of CUDA libraries that nothing on a CPU ever calls.
For each of them that is missing, this puts a library of the same name beside torch's own, which defines every
symbol that is asked of it, under the same symbol version, as a function that fails. libcudart is needed for real
(the lock file holds its wheel) and libcuda is only ever opened by hand.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

LIB = pathlib.Path(sys.argv[1]) / "torch" / "lib"
KEEP = ("libcudart.so", "libcuda.so")
# Where symbols carry no version, their names tell whose they are.
UNVERSIONED = {"libnccl.so.2": "nccl", "libcusparseLt.so.0": "cusparseLt", "libcufile.so.0": "cuFile", "libcurand.so.10": "curand"}


def readelf(*args):
    return subprocess.run(["readelf", *args], capture_output=True, text=True, check=True).stdout


def scan(path, symbols, versions):
    needed = set(re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)[^\]]*)\]", readelf("-dW", path)))
    needed = {n for n in needed if not n.startswith(KEEP)}
    for name in needed:
        symbols.setdefault(name, set())
    owner = {}  # symbol version -> library
    current = None
    for line in readelf("-VW", path).splitlines():
        if m := re.search(r"\bFile: (\S+)", line):
            current = m[1]
        elif (m := re.search(r"\bName: (\S+)\s+Flags", line)) and current in needed:
            owner[m[1]] = current
            versions[current] = m[1]
    for line in readelf("--dyn-syms", "-W", path).splitlines():
        cells = line.split()
        if len(cells) < 8 or cells[6] != "UND":
            continue
        symbol, _, version = cells[7].partition("@")
        version = version.strip("@")
        if version:
            if version in owner:
                symbols[owner[version]].add(symbol)
            continue
        for name, prefix in UNVERSIONED.items():
            if name in needed and symbol.startswith(prefix):
                symbols[name].add(symbol)


def build(name, symbols, version):
    with tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp) / "stub.c"
        source.write_text("".join(f"int {s}(void) {{ return 999; }}\n" for s in sorted(symbols)) or "int nothing_(void) { return 0; }\n")
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{name}", "-o", str(LIB / name), str(source)]
        if version:
            script = pathlib.Path(tmp) / "version"
            script.write_text(f"{version} {{ global: *; }};\n")
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main():
    symbols, versions = {}, {}
    for path in sorted(LIB.glob("lib*.so*")):
        scan(str(path), symbols, versions)
    for name in sorted(symbols):
        if not (LIB / name).exists():
            build(name, symbols[name], versions.get(name))
            print(f"{name}: {len(symbols[name])} symbols")


main()
