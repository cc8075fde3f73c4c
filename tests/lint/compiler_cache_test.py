"""The compiler cache never gives one checkout the precompiled header of another. Skips (77) without ccache."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

LAUNCHER = pathlib.Path(__file__).resolve().parents[2] / "cmake" / "compiler_cache"


def run(folder, environment, *command):
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


def compiled(folder, environment, compiler):
    """Makes the precompiled header and a program that prints what it says, as CMake's rules do."""
    cached = (str(LAUNCHER), str(folder), compiler)
    pch = folder / "pch.hxx"
    run(folder, environment, *cached, "-x", "c++-header", "-include", str(pch), "-o", f"{pch}.gch", "-c", f"{pch}.cxx")
    run(folder, environment, *cached, "-Winvalid-pch", "-include", str(pch), "-o", "main.o", "-c", "main.cc")
    run(folder, environment, compiler, "main.o", "-o", "main")
    return run(folder, environment, "./main")


def main():
    compiler = shutil.which("c++")
    if shutil.which("ccache") is None or compiler is None:
        print("ccache or a compiler is not installed")
        return 77
    with tempfile.TemporaryDirectory() as top:
        environment = {**os.environ, "CCACHE_DIR": f"{top}/cache"}
        environment.pop("CCACHE_DISABLE", None)
        checkouts = [pathlib.Path(top) / name for name in ("one", "two")]
        for folder in checkouts:
            folder.mkdir()
            (folder / "pch.hxx").write_text('#include "text.h"\n')
            (folder / "pch.hxx.cxx").write_text("")
            (folder / "main.cc").write_text('#include <cstdio>\nint main() { std::puts(kText); }\n')
        for text in ("as it began", "{0} edited", "{0} edited again"):
            for folder in checkouts:
                want = text.format(folder.name)
                (folder / "text.h").write_text(f'#pragma once\ninline constexpr const char* kText = "{want}";\n')
                found = compiled(folder, environment, compiler).strip()
                if found != want:
                    print(f"{folder.name}: the program says '{found}', its header '{want}'")
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
