#!/bin/sh
# plant.sh ROOT OUT: a copy of ROOT/scheduler in OUT with every patch of this folder applied. A patch that does
# not apply any more fails the build; files that stay as they were keep their time.
set -eu
root=$1 out=$2
fresh=$out.fresh
rm -rf "$fresh"
mkdir -p "$fresh" "$out"
cp -r "$root/scheduler" "$fresh/"
for patch in "$root"/tests/scheduler/plants/*.patch; do
  patch -p1 -F0 -s -d "$fresh" < "$patch" || { echo "plant.sh: $patch does not apply; write it anew" >&2; exit 1; }
done
(cd "$fresh" && find scheduler -type f) | while read -r file; do
  mkdir -p "$out/$(dirname "$file")"
  cmp -s "$fresh/$file" "$out/$file" || cp "$fresh/$file" "$out/$file"
done
rm -rf "$fresh"
