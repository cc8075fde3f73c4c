#!/bin/sh
# The same seeds give the same journals, whichever compiler built the scheduler.
#
#   other_compiler.sh SOURCE BUILD THIS_LOG_HASHES COMPILER     exit 77: COMPILER is not installed
#
# Builds only scheduler/, core/base and the modelled cluster (no LibTorch, no gRPC), into BUILD.
set -eu
source=$1 build=$2 ours=$3 compiler=$4
command -v "$compiler" > /dev/null || { echo "$compiler is not installed: nothing to compare with"; exit 77; }
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Compare -DCMAKE_CXX_FLAGS=-O1 \
      -DTIDEPOOL_ONLY=scheduler > "$build.log" 2>&1 || { cat "$build.log"; exit 1; }
ninja -C "$build" log_hashes >> "$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }
"$ours" > "$build.ours.txt"
"$build/bin/log_hashes" > "$build.theirs.txt"
diff "$build.ours.txt" "$build.theirs.txt" > "$build.diff.txt" || {
  echo "journals of $compiler differ from ours in $(grep -c '^<' "$build.diff.txt") of $(wc -l < "$build.ours.txt") runs:"
  head -n 20 "$build.diff.txt"
  exit 1
}
echo "$(wc -l < "$build.ours.txt") runs, the same journals by $compiler"
