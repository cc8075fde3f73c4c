#include "core/train/part_ranks.h"

#include <algorithm>
#include <cstring>

namespace tidepool::train {
namespace {

void Need(const Status& done) {
  if (!done.ok()) throw model::PeersFailed(done);
}

template <typename V>
void Reduce(comm::Collective& group, device::Device& device, void* data, int64_t n, const char* what) {
  auto* values = static_cast<V*>(data);
  if (device.host_memory())
    return Need(group.AllReduceSum(std::span<V>(values, static_cast<size_t>(n)), what));
  std::vector<V> here = device.Read(values, n);
  Need(group.AllReduceSum(std::span<V>(here), what));
  device.Upload(values, std::span<const V>(here));
}

}  // namespace

void PartRanks::AddUp(device::Device& device, const device::View& x, const char* what) {
  x.dtype == DType::kFloat32 ? Reduce<float>(group_, device, x.data, x.elements(), what)
                             : Reduce<uint16_t>(group_, device, x.data, x.elements(), what);
}

void PartRanks::AddUpNodes(device::Device& device, const device::View& mine,
                           std::span<const std::vector<sharding::SumNode>> nodes, const device::View& out,
                           const char* what) {
  const auto run = [&]<typename V>(V* data) {
    const auto n = static_cast<size_t>(out.elements()), all = static_cast<size_t>(mine.elements());
    if (device.host_memory())
      return Need(group_.AllReduceTree({nodes, {mine.As<float>(), all}}, std::span<V>(data, n), what));
    const std::vector<float> here = device.Read(mine.As<float>(), mine.elements());
    std::vector<V> sum(n);
    Need(group_.AllReduceTree({nodes, here}, std::span<V>(sum), what));
    device.Upload(data, std::span<const V>(sum));
  };
  out.dtype == DType::kFloat32 ? run(static_cast<float*>(out.data)) : run(static_cast<uint16_t*>(out.data));
}

std::vector<float> PartRanks::Gather(std::span<const float> mine, const char* what) {
  const auto bytes = std::as_bytes(mine);
  const auto all =
      group_.AllGather(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), what);
  Need(all.status());
  std::vector<float> numbers(mine.size() * all->size());
  for (size_t rank = 0; rank < all->size(); ++rank) {
    const std::string& theirs = (*all)[rank];
    if (theirs.size() != bytes.size())
      Need(Internal(std::string(what) + ": rank " + std::to_string(rank) + " has " +
                    std::to_string(theirs.size()) + " bytes, this one " + std::to_string(bytes.size())));
    std::memcpy(numbers.data() + rank * mine.size(), theirs.data(), theirs.size());
  }
  return numbers;
}

void PartRanks::Gather(std::span<std::byte> bytes, std::span<const sharding::Interval> of_rank,
                       const char* what) {
  Need(group_.AllGather(bytes, of_rank, what));
}

void PartRanks::Exchange(device::Device& device, const device::View& out,
                         std::span<const sharding::Interval> to, const device::View& in,
                         std::span<const sharding::Interval> from, const char* what) {
  const auto bytes = [](std::span<const sharding::Interval> rows, const device::View& of) {
    const int64_t each = of.cols * model::Bytes(of.dtype);
    std::vector<sharding::Interval> all;
    for (const sharding::Interval& i : rows) all.push_back({i.from * each, i.to * each});
    return all;
  };
  const std::vector<sharding::Interval> to_bytes = bytes(to, out), from_bytes = bytes(from, in);
  const auto send = [&](std::span<const std::byte> what_goes, std::span<std::byte> what_comes) {
    Need(group_.AllToAll({.out = what_goes, .to = to_bytes, .in = what_comes, .from = from_bytes}, what));
  };
  const auto out_bytes = static_cast<size_t>(out.bytes()), in_bytes = static_cast<size_t>(in.bytes());
  if (device.host_memory())
    return send({static_cast<const std::byte*>(out.data), out_bytes},
                {static_cast<std::byte*>(in.data), in_bytes});
  std::vector<std::byte> goes(out_bytes), comes(in_bytes);
  if (out_bytes > 0) device.Download(goes.data(), out.data, out.bytes());
  send(goes, comes);
  if (in_bytes > 0) device.Upload(static_cast<std::byte*>(in.data), std::span<const std::byte>(comes));
}

bool PartRanks::Agree(bool yes) {
  const auto all = group_.AllGather(uint64_t{yes}, "go_on");
  Need(all.status());
  return std::ranges::all_of(*all, [](uint64_t one) { return one == 1; });
}

}  // namespace tidepool::train
