#!/bin/sh
# The same seeds give the same journals, whichever compiler built the scheduler.
#
#   other_compiler.sh SOURCE BUILD THIS_LOG_HASHES COMPILER     exit 77: COMPILER is not installed
#
# Builds only scheduler/, core/base and the modelled cluster (no LibTorch, no gRPC), into BUILD. A whole library is one
# translation unit: most of a compiler's time goes into the headers, which 54 sources would read 54 times (40 processor
# seconds in place of 128). Names that clash then only (two anonymous namespaces with one name) cost that time and are
# printed; the comparison is the same.
set -eu
source=$1 build=$2 ours=$3 compiler=$4
for candidate in "$compiler" "$compiler-14" "$compiler-15" "$compiler-16" "$compiler-19"; do
  if command -v "$candidate" > /dev/null; then found=$candidate; break; fi
done
[ -n "${found:-}" ] || { echo "$compiler is not installed (scripts/setup --tests would): nothing to compare with"; exit 77; }
compiler=$found
log=$build.log
compile() {  # unity: ON or OFF
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Compare -DCMAKE_CXX_FLAGS=-O1 \
        -DTIDEPOOL_ONLY=scheduler -DCMAKE_UNITY_BUILD="$1" -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 > "$log" 2>&1 &&
    ninja -C "$build" log_hashes >> "$log" 2>&1
}
compile ON || {
  echo "as one translation unit it does not compile, so one by one:"
  grep -m 5 ' error: ' "$log" || tail -n 5 "$log"
  compile OFF || { tail -n 40 "$log"; exit 1; }
}
"$ours" > "$build.ours.txt"
"$build/bin/log_hashes" > "$build.theirs.txt"
diff "$build.ours.txt" "$build.theirs.txt" > "$build.diff.txt" || {
  echo "journals of $compiler differ from ours in $(grep -c '^<' "$build.diff.txt") of $(wc -l < "$build.ours.txt") runs:"
  head -n 20 "$build.diff.txt"
  exit 1
}
echo "$(wc -l < "$build.ours.txt") runs, the same journals by $compiler"
