#include "workers/data/host_base.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/hash.h"
#include "core/model/memory_use.h"
#include "core/observe/log.h"
#include "workers/data/shared_arena.h"

namespace tidepool::workers {
namespace {

// The turn to read it, which ends with the process.
class Turn {
 public:
  static StatusOr<std::unique_ptr<Turn>> Ask(const std::string& folder) {
    std::unique_ptr<Turn> turn(new Turn());
    const std::string path = folder + "/" + kBaseBlock + "-turn";
    turn->fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (turn->fd_ < 0) return Unavailable(path + ": cannot be opened (" + std::strerror(errno) + ")");
    return turn;
  }
  ~Turn() {
    if (fd_ >= 0) close(fd_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool Take() { return flock(fd_, LOCK_EX | LOCK_NB) == 0; }

 private:
  Turn() = default;
  int fd_ = -1;
};

// Over an arena that was read; without one: reads it.
StatusOr<std::unique_ptr<model::Weights>> Make(const BaseModel& model, std::span<std::byte> arena) {
  if (model.blocks)
    return model::Weights::CreateInBlocks(model.spec, model.dtype, *model.blocks, arena,
                                          arena.empty() ? model.read : nullptr);
  TP_ASSIGN_OR_RETURN(auto weights, model::Weights::Create(model.spec, model.dtype, arena));
  if (arena.empty()) TP_RETURN_IF_ERROR(model.read(weights->bytes()));
  return weights;
}

struct Mapped {
  std::shared_ptr<const SharedBlock::View> view;
  std::unique_ptr<model::Weights> weights;
};

}  // namespace

StatusOr<std::shared_ptr<const model::Weights>> MapBase(const std::string& folder, const BaseModel& model,
                                                        device::Device* lays_out,
                                                        std::chrono::nanoseconds patience) {
  using Clock = std::chrono::steady_clock;
  const int64_t bytes = model.blocks ? model.blocks->bytes : model::WeightBytes(model.spec, model.dtype);
  if (model.blocks) lays_out = nullptr;
  // What is laid out is read by processes that lay out alike, and is of one type.
  uint64_t identity = Hash64(Name(model.dtype), model.identity);
  if (lays_out != nullptr) identity = Hash64(lays_out->name(), identity);
  const BlockTag tag{.number = static_cast<int64_t>(identity >> 1), .bytes = bytes};
  TP_RETURN_IF_ERROR(SharedBlock::MakeFolderOf(folder));
  SharedBlock block(folder, kBaseBlock);
  const auto there = [&]() -> StatusOr<std::shared_ptr<const model::Weights>> {
    TP_ASSIGN_OR_RETURN(auto view, block.Open(tag.number, tag.lineage));
    if (view->tag().bytes != bytes) return NotFound("the frozen model is there for another device");
    auto mapped = std::make_shared<Mapped>();
    auto* base = const_cast<std::byte*>(view->bytes().data());  // mapped to be read; so are const weights
    TP_ASSIGN_OR_RETURN(mapped->weights, Make(model, {base, static_cast<size_t>(bytes)}));
    if (lays_out != nullptr) mapped->weights->TakeLaidOut(*lays_out, model.identity);
    mapped->view = std::move(view);
    const model::Weights* weights = mapped->weights.get();
    return std::shared_ptr<const model::Weights>(std::move(mapped), weights);
  };
  TP_ASSIGN_OR_RETURN(const auto turn, Turn::Ask(folder));
  const auto deadline = Clock::now() + patience;
  while (!turn->Take()) {
    if (auto found = there(); found.ok()) return found;
    if (Clock::now() >= deadline)
      return DeadlineExceeded("another worker of this host was reading the model into " + folder +
                              " and has not ended");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (auto found = there(); found.ok()) return found;
  {
    auto filling = block.Begin(tag);
    // No room, or both of its places are mapped by workers that have models of before.
    if (filling.status().code() == StatusCode::kResourceExhausted ||
        filling.status().code() == StatusCode::kUnavailable) {
      observe::Log(LogLevel::kWarn, "base_alone",
                   {{"bytes", std::to_string(bytes)},
                    {"text",
                     "this worker has the frozen model for itself, which the plan of the memory does "
                     "not count: " +
                         filling.status().message()}});
      TP_ASSIGN_OR_RETURN(auto alone, Make(model, {}));
      if (lays_out != nullptr) alone->LayOutFor(*lays_out, model.identity);
      return std::shared_ptr<const model::Weights>(std::move(alone));
    }
    TP_RETURN_IF_ERROR(filling.status());
    TP_RETURN_IF_ERROR(model.read(filling->bytes()));
    if (lays_out != nullptr) {
      TP_ASSIGN_OR_RETURN(const auto weights, Make(model, filling->bytes()));
      weights->LayOutFor(*lays_out, model.identity);
    }
    filling->Complete();
  }
  return there();
}

}  // namespace tidepool::workers
