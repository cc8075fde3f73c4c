#!/usr/bin/env python3
"""Plants one fault at a time in a kernel: is it found? python3 plants.py BUILD CXX [number ...]

Each fault is what a hurried edit could do: a barrier or a wait left out, a bound or an index off by one, a mask or a
factor forgotten. The kernel is compiled as the emulation's tests do, linked in the place of the right one, and the tests
have to fail. BUILD: a build folder with tests/cuda_kernels_test.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS = ROOT / "core/cuda/kernels"
# (file, what stands there, what is planted, which of several places)
PLANTS = [
    ("block.h", "  for (int w = 1; w < kThreads / 32; ++w) v += scratch[w];\n  __syncthreads();",
     "  for (int w = 1; w < kThreads / 32; ++w) v += scratch[w];", 0),
    ("prefill_attention.cu", "    __syncthreads();  // this tile is there, and the one before was used", "", 0),
    ("prefill_attention.cu", "CopyAsyncWait<0>();", "CopyAsyncWait<1>();", 0),
    ("prefill_attention.cu", ">= left_of[i / 2]", "> left_of[i / 2]", 0),
    ("prefill_attention.cu", "if (first >= most) break;", "if (first + kChunk > most) break;", 0),
    ("prefill_attention.cu", "if (first + kChunk > least)", "if (first + kChunk > most)", 0),
    ("prefill_attention.cu", "sum[s][h] *= factor[s][h];", "", 0),
    ("prefill_attention.cu", "slots[tile % 2 * kTileKeys + r] : 0", "slots[r] : 0", 0),
    ("decode_attention.cu", "      __syncwarp();  // each warp reads its own values alone", "", 0),
    ("decode_attention.cu", "    __syncthreads();\n    Strips<kD, 1> left;", "    Strips<kD, 1> left;", 0),
    ("decode_attention.cu", "CopyAsyncWait<1>();", "CopyAsyncWait<2>();", 0),
    ("decode_attention.cu", "acc[n][2 * h] * factor[h]", "acc[n][2 * h]", 0),
    ("decode_attention.cu", "key < key_count ? p[n][i] * scale : -INFINITY", "p[n][i] * scale", 0),
    ("attention_rows.h", "left.sum = left.sum * a + right.sum * b;", "left.sum = left.sum + right.sum * b;", 0),
    ("attention_rows.h", "  __syncthreads();  // q and scores are free again", "", 0),
    ("attention_backward.cu", "    __syncthreads();  // this step is there, and the one before was used", "", 0),
    ("attention_backward.cu", "    __syncthreads();  // this step is there, and the one before was used", "", 1),
    ("attention_backward.cu", "CopyAsyncWait<0>();", "CopyAsyncWait<1>();", 0),
    ("attention_backward.cu", "CopyAsyncWait<0>();", "CopyAsyncWait<1>();", 1),
    ("attention_backward.cu", "CopyAsyncWait<0>();", "CopyAsyncWait<1>();", 2),
    ("attention_backward.cu", "(n * 8 + 2 * t + i % 2) & 1U", "(n * 8 + 2 * t + 1 - i % 2) & 1U", 0),
    ("attention_backward.cu", "(ds[s][n][j] - out_dout[s][j / 2])", "ds[s][n][j]", 0),
    ("attention_backward.cu", "block.tile + m / kBackStep", "block.tile", 0),
    ("attention_backward.cu", "  __syncwarp();\n  float lse[kStrips][2]", "  float lse[kStrips][2]", 0),
    ("attention_backward.cu", "  __syncwarp();\n#pragma unroll\n  for (int r = lane / kLanes;", "#pragma unroll\n  for (int r = lane / kLanes;", 0),
    ("attention_backward.cu", "if (mask >= 0) ZeroUnmasked", "if (false) ZeroUnmasked", 1),
    ("attention_backward.cu", "const int64_t count = r.count < left ? r.count : left;", "const int64_t count = r.count;", 0),
    ("sampler.cu", "    __syncthreads();\n    for (int64_t i = threadIdx.x; i < vocab;", "    for (int64_t i = threadIdx.x; i < vocab;", 0),
    ("sampler.cu", "if (threadIdx.x < 32) ChooseDigit", "if (threadIdx.x < 31) ChooseDigit", 0),
    ("sampler.cu", "sums[threadIdx.x] > target", "sums[threadIdx.x] >= target", 0),
    ("sampler.cu", "  if (mass > 0.0F) {\n    with_mass", "  {\n    with_mass", 0),
    ("decode_attention.cu", "      __syncwarp();  // each warp has used its own keys", "", 0),
    ("decode_attention.cu", "if constexpr (kOneTile) load_tile(f.k, keys);", "", 0),
    ("sampler.cu", "const double before = in_group == 0 ? before_group : double{prefix[in_group - 1]};", "const double before = before_group;", 0),
    ("vocab_row.h", "__fsub_rn(z, max)", "z", 1),
    ("rotary.cu", "    __syncthreads();\n  }\n}", "  }\n}", 0),
    ("rotary_head.h", "x.b[i] = second * angles.cos[i] + first * angles.sin[i];", "x.b[i] = second * angles.cos[i] - first * angles.sin[i];", 0),
    ("product_chain.cu", "CopyAsyncWait<kDepth - 1>();", "CopyAsyncWait<kDepth>();", 0),
    ("product_chain.cu", "while (next < tile) put(0.0F, 0.0F);", "", 0),
    ("product_chain.cu", "      while (next < tile0 + tiles) put(0.0F, 0.0F);\n", "", 0),
    ("product_chain.cu", "for (; k_ >= k_end_; k_ -= k_end_) ++tile_;", "if (k_ >= k_end_) k_ -= k_end_, ++tile_;", 0),
    ("product_chain.cu", "half ^= 1", "half = 0", 0),
    ("product_chain.cu", "(block < l.more ? block : l.more)", "l.more", 0),
    ("product_chain.cu", "      WaitForKernelBefore();\n", "", 0),
    ("product_chain.cu", "v *= rstd, gated *= rstd;", "v *= rstd;", 0),
    ("product_chain.cu", "(tile_ & l.gate) != 0 ? l.n : 0", "0", 0),
    ("product_chain.cu", "there_ = row < share_.end;", "there_ = true;", 0),
    ("few_rows_multiply.cu", "if (part != 0) return;", "", 0),
    ("few_rows_multiply.cu", "for (int p = 1; p < split; ++p)", "for (int p = 2; p < split; ++p)", 0),
    ("vocab_parts.cu", "max = fmaxf(max, z[l]);", "max = z[l];", 0),
    ("embedding.cu", "found[place] = static_cast<int32_t>(i);\n    __syncthreads();", "found[place] = static_cast<int32_t>(i);", 0),
    ("embedding.cu", "__popc(here & ((1U << lane) - 1U))", "__popc(here & (2U << lane) - 1U)", 0),
    ("experts.cu", "other == best && other_id < best_id", "other == best && other_id > best_id", 0),
    ("experts.cu", "    __syncthreads();  // counts are free again", "", 0),
    ("experts.cu", "chosen[i] < e ? 1 : 0", "chosen[i] <= e ? 1 : 0", 0),
    ("experts.cu", "  __syncthreads();  // all have read what one writes", "", 0),
    ("experts.cu", "(dweights[i] - inner) / sum", "dweights[i] / sum", 0),
    ("decode_attention.cu", "View(work.row)[blockIdx.x]", "blockIdx.x", 0),
    ("experts.cu", "  __syncwarp();", "", 0),
    ("rows.cu", "x = sum;", "", 0),
    ("columns.h", "for (int w = 1; w < kColumnThreads / 32; ++w)", "for (int w = 1; w < kColumnThreads / 32 - 1; ++w)", 0),
    ("swiglu.cu", "if (c >= ff) return;", "", 0),
    ("grouped_multiply.cu", "    __syncthreads();  // the step after the next one may overwrite these", "", 0),
    ("grouped_multiply.cu", "CopyAsyncWait<1>();", "CopyAsyncWait<2>();", 0),
    ("grouped_multiply.cu", "const bool there = r < row_end && c < column_end;", "const bool there = c < column_end;", 0),
    # Kernels that start early: no wait, a wait too late.
    ("few_rows_multiply.cu", "  WaitForKernelBefore();\n", "", 0),
    ("few_rows_multiply.cu", "  WaitForKernelBefore();\n\n  const int x_stride", "  const uint32_t begin = View(a.x)[0].bits;\n"
     "  if (begin < 0x10000) WaitForKernelBefore();\n\n  const int x_stride", 0),
    ("decode_attention.cu", "    WaitForKernelBefore();\n    load_queries(0);", "    load_queries(0);\n    WaitForKernelBefore();", 0),
    ("decode_attention.cu", "  WaitForKernelBefore();\n  const int64_t row", "  const int64_t row", 0),
    ("rows.cu", "  WaitForKernelBefore();\n  const int64_t r = blockIdx.x, d = a.d, first = static_cast<int64_t>(threadIdx.x) * 8;\n"
     "  Global<const T> x = View(a.x) + r * d;",
     "  const int64_t r = blockIdx.x, d = a.d, first = static_cast<int64_t>(threadIdx.x) * 8;\n"
     "  Global<const T> x = View(a.x) + r * d;\n  const float begin = Get(x, 0);\n  if (begin == begin) WaitForKernelBefore();", 0),
    ("sampler.cu", "  WaitForKernelBefore();\n", "", 0),
    ("vocab_parts.cu", "  WaitForKernelBefore();\n", "", 1),
    ("adamw.cu", "(__float_as_uint(master) + 0x8000U) >> 16", "__float_as_uint(master) >> 16", 0),
    # A fault in each kernel that has none above.
    ("adamw.cu", "rest[j] = RestOf(low) | RestOf(high) << 16;", "rest[j] = RestOf(high) | RestOf(low) << 16;", 0),
    ("adamw.cu", "const int64_t end = n < begin + kSquareSumBlock ? n : begin + kSquareSumBlock;", "const int64_t end = n;", 0),
    ("adamw.cu", "i < n; i += kAdamThreads) sum += in[i];", "i < n - 1; i += kAdamThreads) sum += in[i];", 0),
    ("attention_backward.cu", "if (item >= items) return;", "", 0),
    ("attention_backward.cu", "    __syncthreads();\n  }\n#pragma unroll\n  for (int i = 0; i < kAttendDims; ++i) {\n    const int64_t d = threadIdx.x + kAttendThreads * i;\n"
     "    if (d < size) head_gradient[d] = dq[i];", "  }\n#pragma unroll\n  for (int i = 0; i < kAttendDims; ++i) {\n"
     "    const int64_t d = threadIdx.x + kAttendThreads * i;\n    if (d < size) head_gradient[d] = dq[i];", 0),
    ("attention_backward.cu", "if (__syncthreads_or(p != 0.0F ? 1 : 0) != 0) {", "if (p != 0.0F) {", 0),
    ("column_sum.cu", "r * a.n + c", "r * (a.n - 1) + c", 0),
    ("column_sum.cu", "in[r * a.experts + c]", "in[r * a.experts + c + 1]", 0),
    ("decode_attention.cu", "j < kPartitionKeys && j < left; j += kAttendThreads", "j < kPartitionKeys; j += kAttendThreads", 0),
    ("elementwise.cu", "if (c >= n) return;", "if (c > n) return;", 0),
    ("elementwise.cu", "const bool whole = wide && i + 8 <= n;", "const bool whole = wide;", 0),
    ("elementwise.cu", "if (i >= a.n) return;", "if (i > a.n) return;", 0),
    ("embedding.cu", "if (id >= 0) GetChunk", "GetChunk", 0),
    ("experts.cu", "if (e >= args.experts) return;", "", 0),
    ("experts.cu", "sum[j] += v[j] * w;", "sum[j] += v[j];", 0),
    ("experts.cu", "if (threadIdx.x == 0) View(a.dweights)[k] = dot;", "View(a.dweights)[k] = dot;", 0),
    ("experts.cu", "k < (r + 1) * a.k; ++k) {\n    GetChunk(View(a.x)", "k < (r + 1) * a.k - 1; ++k) {\n    GetChunk(View(a.x)", 0),
    ("grouped_multiply.cu", "    __syncthreads();\n  }\n  if (i >= part.i_end", "  }\n  if (i >= part.i_end", 0),
    ("prefill_attention.cu", "if (blockIdx.z >= static_cast<unsigned>(item.count)) return;", "", 0),
    ("rotary.cu", "if (item >= items) return;", "", 0),
    ("rotary.cu", "if (c < size) {", "if (c <= size) {", 0),
    ("rows.cu", "sum[j] += (w[j] * g[j] - v[j] * k) * rstd;", "sum[j] = (w[j] * g[j] - v[j] * k) * rstd;", 0),
    ("rows.cu", "Get(dout, r * a.d + c) * rstd[r]", "Get(dout, r * a.d + c) * rstd[0]", 0),
    ("salted_sums.cu", "if (end > a.words - begin) end = a.words - begin;", "", 0),
    ("salted_sums.cu", "in[blockIdx.x * pieces + i]", "in[i]", 0),
    ("swiglu.cu", "1.0F + g[j] * (1.0F - s)", "1.0F + g[j] * s", 0),
    ("token_logprob.cu", "  __syncthreads();  // all have read it\n", "", 0),
    ("token_logprob.cu", "d -= p > 0.0F ? p * (logp + ent) * h : 0.0F", "d -= p * (logp + ent) * h", 0),
]
# Kernels in whose body nothing can be planted, and why.
NOTHING_TO_PLANT = {"ProbeKernel": "does nothing"}


def replace(text, old, new, which):
    at = -1
    for _ in range(which + 1):
        at = text.find(old, at + 1)
        if at < 0:
            return None
    return text[:at] + new + text[at + len(old):]


def position(name, old, which):
    text = (KERNELS / name).read_text()
    at = -1
    for _ in range(which + 1):
        at = text.find(old, at + 1)
    return at


def unplanted():
    """Kernels with no fault in their own bodies."""
    names = []
    for source in sorted(KERNELS.glob("*.cu")):
        text = source.read_text()
        planted = [position(name, old, which) for name, old, _, which in PLANTS if name == source.name]
        for kernel in re.finditer(r"__global__ void\s+(?:__\w+__\([^)]*\)\s+)*(\w+)\([^{;]*\{", text):
            end = text.find("\n}", kernel.start())
            end = text.find("\n", kernel.start()) if end < 0 else end
            if kernel[1] not in NOTHING_TO_PLANT and not any(kernel.start() < at < end for at in planted):
                names.append(f"{source.name}: {kernel[1]}")
    return names


def includes(source, name):
    """Whether the kernel reads the header, be it through others."""
    headers = [h for h in KERNELS.glob("*.h") if f'"core/cuda/kernels/{h.name}"' in source.read_text()]
    return any(h.name == name or includes(h, name) for h in headers)


def run(number, build, cxx, folder):
    name, old, new, which = PLANTS[number]
    text = replace((KERNELS / name).read_text(), old, new, which)
    if text is None:
        return False, f"{name} no longer has {old!r}; bring the plant up to date"
    tree = folder / "core/cuda/kernels"
    tree.mkdir(parents=True, exist_ok=True)
    planted = tree / name
    planted.write_text(text)
    # The folder comes first among the includes, so a planted header takes the place of the right one.
    sources = [planted] if name.endswith(".cu") else sorted(p for p in KERNELS.glob("*.cu") if includes(p, name))
    objects = []
    for source in sources:
        objects.append(folder / (source.name + ".o"))
        subprocess.run([cxx, "-std=c++20", "-O1", "-ffp-contract=off", "-w", f"-I{folder}", f"-I{ROOT}",
                        '-DTIDEPOOL_CUDA_EMULATION="tests/core/cuda/emulation/cuda_emulation.h"', "-x", "c++", "-c",
                        str(source), "-o", str(objects[-1])], check=True)
    planted.unlink()
    test = folder / "test"
    tests = sorted((build / "tests/core/cuda/CMakeFiles/cuda_kernels_test.dir").rglob("*.o"))
    libraries = [build / "tests/core/cuda/libcuda_emulated.a", build / "core/cuda/libtidepool_cuda_plans.a",
                 build / "core/device/libtidepool_kernels.a", build / "core/device/libtidepool_kernel_plans.a",
                 build / "core/base/libtidepool_base.a"]
    subprocess.run([cxx, *map(str, tests), *map(str, objects), *map(str, libraries), "-lgtest", "-lgtest_main", "-ldl",
                    "-o", str(test)], check=True)
    done = subprocess.run([str(test), "--gtest_brief=1"], cwd=ROOT, capture_output=True, text=True)
    said = next((l for l in done.stdout.splitlines() if "kernel " in l and ": " in l), None)
    said = said or next((l for l in done.stdout.splitlines() if "the CPU has" in l or "Expected" in l or "expected" in l
                         or "Value of" in l), "crashed")
    return done.returncode != 0, said.strip()[:180]


def main():
    build, cxx = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    numbers = [int(n) for n in sys.argv[3:]] or range(len(PLANTS))
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for n in numbers:
            found, said = run(n, build, cxx, pathlib.Path(folder))
            missed += not found
            print(f"{n:3} {PLANTS[n][0]:22} {'found ' if found else 'MISSED'} {said}", flush=True)
    print(f"{len(list(numbers)) - missed} of {len(list(numbers))} found")
    for kernel in unplanted():
        missed += 1
        print(f"{kernel} has no fault here; plant one")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
