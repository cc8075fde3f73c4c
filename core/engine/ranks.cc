#include "core/engine/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/model/cut.h"
#include "core/model/row_operations.h"
#include "core/sharding/intervals.h"

namespace tidepool::engine {
namespace {

constexpr const char* kKeptWord = "kept";
constexpr double kLeastSeconds = 0.1;  // 0 would be the group's deadline

template <typename T>
T Need(StatusOr<T> got) {
  if (!got.ok()) throw model::PeersFailed(got.status());
  return *std::move(got);
}

template <typename T>
void Put(std::string& to, std::span<const T> values) {
  const auto n = static_cast<uint32_t>(values.size());
  to.append(reinterpret_cast<const char*>(&n), sizeof n);
  to.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// Reads what Put wrote. The ranks run one program, so other bytes are a bug.
class Reader {
 public:
  explicit Reader(const std::string& from) : from_(from) {}
  template <typename T>
  void Take(std::vector<T>& to) {
    uint32_t n = 0;
    Copy(&n, sizeof n);
    TP_CHECK(n <= (from_.size() - at_) / sizeof(T)) << n << " of an order";
    to.resize(n);
    Copy(to.data(), n * sizeof(T));
  }
  [[nodiscard]] std::string Rest() const { return from_.substr(at_); }

 private:
  void Copy(void* to, size_t size) {
    TP_CHECK(at_ + size <= from_.size()) << "an order of " << from_.size() << " bytes";
    if (size > 0) std::memcpy(to, from_.data() + at_, size);
    at_ += size;
  }
  const std::string& from_;
  size_t at_ = 0;
};

}  // namespace

void Ranks::Tell(const Order& order, double patience_s) {
  (void)Need(
      group_.AllGather(std::string(1, static_cast<char>(order.kind)) + order.body, "order", patience_s));
}

std::optional<Order> Ranks::Next(std::chrono::milliseconds patience) {
  if (!Need(group_.Begun(0, patience))) return std::nullopt;
  std::string told = std::move(Need(group_.AllGather(std::string(), "order")).front());
  TP_CHECK(!told.empty()) << "the leader told nothing";
  const auto kind = static_cast<Order::Kind>(told.front());
  told.erase(0, 1);
  return Order{kind, std::move(told)};
}

std::vector<std::string> Ranks::Answers(const std::string& mine, double patience_s) {
  return Need(group_.AllGather(mine, "answer", patience_s));
}

bool Ranks::AllKept(bool mine, double patience_s) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  Tell({Order::kKept, ""}, patience_s);
  const std::chrono::duration<double> left = until - std::chrono::steady_clock::now();
  const std::vector<std::string> all = Answers(mine ? kKeptWord : "", std::max(kLeastSeconds, left.count()));
  return std::ranges::all_of(all, [](const std::string& one) { return one == kKeptWord; });
}

void Ranks::AnswerKept(bool mine, double patience_s) { (void)Answers(mine ? kKeptWord : "", patience_s); }

device::Array Ranks::Whole(device::Device& device, const model::ModelSpec& whole,
                           const device::View& logits) {
  const int64_t n = logits.rows, each = model::Bytes(logits.dtype);
  std::vector<sharding::Interval> of_rank;
  int64_t end = 0;
  for (int64_t rank = 0; rank < part().of; ++rank) {
    const auto [from, to] = model::VocabularyOf(whole, {rank, part().of});
    of_rank.push_back({end, end + n * (to - from) * each});
    end = of_rank.back().to;
  }
  std::vector<std::byte> all(static_cast<size_t>(end));
  const sharding::Interval mine = of_rank[static_cast<size_t>(part().rank)];
  TP_CHECK(mine.size() == logits.bytes()) << logits.bytes() << " bytes of logits";
  device.Download(all.data() + mine.from, logits.data, logits.bytes());
  peers_.Gather(std::span(all), of_rank, "logits");
  if (!leads()) return {};
  // Rank after rank to row after row.
  std::vector<std::byte> rows(static_cast<size_t>(end));
  int64_t at = 0;  // in a row
  for (const sharding::Interval& theirs : of_rank) {
    const int64_t width = n == 0 ? 0 : theirs.size() / n;
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(rows.data() + i * whole.vocab_size * each + at, all.data() + theirs.from + i * width,
                  static_cast<size_t>(width));
    at += width;
  }
  device::Array out = device.Take(n, whole.vocab_size, logits.dtype);
  device.Upload(static_cast<std::byte*>(out.view.data), std::span<const std::byte>(rows));
  return out;
}

std::string PackForward(std::span<const SlotCopy> copies, const model::RaggedBatch& batch) {
  std::string body;
  Put(body, copies);
  for (const auto values : {batch.ids, batch.positions, batch.slots, batch.first_run, batch.lengths})
    Put(body, values);
  Put(body, batch.runs);
  return body;
}

ForwardOrder UnpackForward(const std::string& body) {
  ForwardOrder order;
  Reader from(body);
  from.Take(order.copies);
  for (auto* to : {&order.ids, &order.positions, &order.slots, &order.first_run, &order.lengths})
    from.Take(*to);
  from.Take(order.runs);
  return order;
}

std::string PackHead(const HeadOrder& head) {
  std::string body;
  Put(body, std::span(head.rows));
  return body + head.states;
}

HeadOrder UnpackHead(const std::string& body) {
  HeadOrder head;
  Reader from(body);
  from.Take(head.rows);
  head.states = from.Rest();
  return head;
}

device::Array SelectHidden(device::Device& device, const device::Array& hidden, int64_t width,
                           model::DType dtype, const HeadOrder& head) {
  const auto n = static_cast<int64_t>(head.rows.size());
  bool all_in_order = head.states.empty() && n == hidden.view.rows;
  for (int64_t i = 0; all_in_order && i < n; ++i) all_in_order = head.rows[static_cast<size_t>(i)] == i;
  if (all_in_order) return hidden;  // a step that decodes
  const auto kept = static_cast<int64_t>(head.states.size()) / (width * model::Bytes(dtype));
  device::Array selected = device.Take(n + kept, width, dtype);
  if (n > 0) model::GatherRows(device, hidden.view, head.rows, selected.view.Rows(0, n));
  if (kept > 0)
    device.Upload(static_cast<std::byte*>(selected.view.Rows(n, kept).data),
                  std::as_bytes(std::span(head.states)));
  return selected;
}

}  // namespace tidepool::engine
