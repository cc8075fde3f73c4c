#include "core/device/batch_invariance.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace tidepool::device {
namespace {

constexpr int64_t kRows = 200;
struct Part {
  int64_t first, rows;
};
// A decoded row, a few, tiles of tensor cores and what goes over their edges.
constexpr Part kParts[] = {{0, 1}, {77, 1}, {199, 1}, {3, 7}, {64, 16}, {33, 65}, {1, 128}};

// Numbers of both signs from 2^-8 to 2: sums of them round.
template <typename T>
std::vector<T> Noise(int64_t n, uint64_t seed) {
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    const uint64_t bits = seed ^ (seed >> 29);
    const auto real = std::bit_cast<uint32_t>(
        std::bit_cast<float>(static_cast<uint32_t>((bits & 0x807FFFFF) | ((119 + (bits >> 32) % 9) << 23))));
    if constexpr (sizeof(T) == sizeof(BF16)) {
      value.bits = static_cast<uint16_t>(real >> 16);
    } else {
      value = std::bit_cast<float>(real);
    }
  }
  return values;
}

template <typename T>
StatusOr<bool> SameBits(Device& device, const ProductShape& shape) {
  const auto bytes = [](int64_t n) { return n * static_cast<int64_t>(sizeof(T)); };
  const int64_t all = shape.n * shape.k, made = std::min<int64_t>(all, int64_t{1} << 20);
  TP_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> w, device.Allocate(bytes(all)));
  TP_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> x, device.Allocate(bytes(kRows * shape.k)));
  TP_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> y, device.Allocate(bytes(kRows * shape.n)));
  auto* matrix = static_cast<T*>(w->data());
  device.Upload(matrix, std::span<const T>(Noise<T>(made, 1)));
  for (int64_t n = made; n < all; n *= 2) device.Copy(matrix + n, matrix, bytes(std::min(n, all - n)));
  auto* rows = static_cast<T*>(x->data());
  device.Upload(rows, std::span<const T>(Noise<T>(kRows * shape.k, 2)));
  auto* out = static_cast<T*>(y->data());
  const auto product = [&](const Part& part) {
    device.Multiply(MultiplyArgs<T>{.rows = part.rows,
                                    .n = shape.n,
                                    .k = shape.k,
                                    .x = rows + part.first * shape.k,
                                    .w = matrix,
                                    .y = out});
    return device.Read<T>(out, part.rows * shape.n);
  };
  const std::vector<T> want = product({0, kRows});
  for (const Part& part : kParts) {
    const std::vector<T> got = product(part);
    if (std::memcmp(got.data(), want.data() + part.first * shape.n, got.size() * sizeof(T)) != 0)
      return false;
  }
  return true;
}

}  // namespace

Status TryBatchInvariance(Device& device, std::span<const ProductShape> products, DType dtype) {
  std::string bad;
  for (const ProductShape& shape : products) {
    TP_ASSIGN_OR_RETURN(const bool same, dtype == DType::kFloat32 ? SameBits<float>(device, shape)
                                                                  : SameBits<BF16>(device, shape));
    if (!same)
      bad += (bad.empty() ? "" : ", ") + std::string(shape.name) + " [" + std::to_string(shape.n) + ", " +
             std::to_string(shape.k) + "]";
  }
  if (bad.empty()) return OkStatus();
  return FailedPrecondition("products in " + std::string(Name(dtype)) + " on " + device.name() +
                            " give a row other bits in another batch: " + bad +
                            "; set deterministic: false, or write cluster.device: cpu");
}

}  // namespace tidepool::device
