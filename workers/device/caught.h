#pragma once
// Libraries throw (no memory, a shape that does not fit); their exceptions stop here and become a Status that
// begins with `what`. A device without memory for a computation, or that has failed, goes on to the door of
// the process, whose work is torn (device_worker.cc).

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "core/base/status.h"
#include "core/device/device.h"

namespace tidepool::workers {

template <typename F>
auto Caught(const char* what, F&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const device::DeviceFailed&) {
    throw;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(
        std::string(what) +
        ": out of memory; lower train.micro_batch_tokens, rollout.max_concurrent or rollout.kv_cache_tokens");
  } catch (const std::exception& e) {
    return Internal(std::string(what) + ": " + e.what());
  }
}

}  // namespace tidepool::workers
