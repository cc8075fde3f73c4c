#include "core/engine/follower.h"

#include <c10/util/Exception.h>

#include <utility>

#include "core/base/check.h"
#include "core/device/cpu/cpu_device.h"
#include "core/engine/engine_impl.h"

namespace tidepool::engine {

struct Follower::Impl {
  Impl(const model::Weights& weights, const EngineOptions& options)
      : ranks(*options.ranks),
        device(options.device),
        decoder(weights, device, ranks.part()),
        whole(weights.spec()),
        dtype(weights.dtype()),
        arena(decoder.spec(), dtype, options.kv_cache_tokens / options.block_tokens * options.block_tokens,
              *device) {
    decoder.UsePeers(&ranks.peers());
  }

  Ranks& ranks;
  const std::shared_ptr<device::Device> device;
  model::Decoder decoder;
  const model::ModelSpec whole;
  const model::DType dtype;
  KvArena arena;
  device::Array hidden;  // of the last forward
};

Follower::Follower() = default;
Follower::~Follower() = default;

StatusOr<std::unique_ptr<Follower>> Follower::Create(const model::Weights& weights, EngineOptions options) {
  TP_CHECK(options.ranks != nullptr && !options.ranks->leads()) << "nobody is followed";
  if (options.device == nullptr) options.device = std::make_shared<device::CpuDevice>();
  std::unique_ptr<Follower> follower(new Follower());  // the constructor is private
  try {
    follower->impl_ = std::make_unique<Impl>(weights, options);
  } catch (const c10::OutOfMemoryError&) {  // the process's door, which knows the plan
    throw;
  } catch (const std::exception& e) {
    return Internal("engine: the decoder could not be set up: " + FirstLine(e));
  }
  TP_RETURN_IF_ERROR(follower->impl_->arena.Allocate());
  return follower;
}

void Follower::Do(const Order& order) {
  Impl& im = *impl_;
  if (order.kind == Order::kForward) {
    const ForwardOrder forward = UnpackForward(order.body);
    for (const SlotCopy& c : forward.copies) im.arena.Copy(c.from, c.to, c.count);
    im.hidden = device::Array();
    im.hidden = im.decoder.Forward(forward.batch(), im.arena.memory());
    return;
  }
  TP_CHECK(order.kind == Order::kHead) << "an order of kind " << static_cast<char>(order.kind);
  const device::Array rows =
      SelectHidden(*im.device, im.hidden, im.whole.hidden_size, im.dtype, UnpackHead(order.body));
  (void)im.ranks.Whole(*im.device, im.whole, im.decoder.Logits(rows.view).view);
}

void Follower::WeightsChanged() { impl_->decoder.WeightsChanged(); }

int64_t Follower::ReleaseMemory() {
  const int64_t held = this->held().total();
  impl_->hidden = device::Array();
  impl_->arena.Free();
  impl_->decoder.ReleaseScratch();
  return held;
}

Status Follower::AcquireMemory() { return impl_->arena.Allocate(); }

model::MemoryUse Follower::held() const {
  return {.workspace = impl_->decoder.held_bytes() + impl_->device->scratch_bytes(),
          .kv = impl_->arena.allocated() ? impl_->arena.bytes() : 0};
}

}  // namespace tidepool::engine
