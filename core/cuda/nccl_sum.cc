// Sums of a GPU's memory by c10d's NCCL backend, made inside the module so that no other file needs
// libtorch_cuda or nccl.h. It has not run between GPUs yet.
//
// A rank that ends after it has met the others, before NCCL has made its communicator, holds them:
// ncclCommInitRank, which LibTorch calls, has no deadline. The controller has one for the forming of a group
// (cluster.start_timeout_s) and replaces workers that pass it.
//
// The wheel leaves nccl.h out, and ProcessGroupNCCL::Options holds an ncclConfig_t by value: a header of
// another NCCL than the one that LibTorch was built with would give the class another layout. So the
// header's version is compared with LibTorch's before anything is made.

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/env.h>
#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "core/comm/c10d_store.h"
#include "core/comm/collective.h"
#include "core/cuda/module_error.h"

namespace tidepool::cuda {
namespace {

class NcclSum final : public comm::DeviceSum {
 public:
  NcclSum(c10::Device device, std::chrono::milliseconds timeout,
          c10::intrusive_ptr<c10d::ProcessGroupNCCL> group)
      : device_(device), timeout_(timeout), group_(std::move(group)) {}
  ~NcclSum() override { Abort(); }

  Status AllReduceSum(float* values, int64_t n, const std::string& tag) override {
    return Sum(at::for_blob(values, {n})
                   .options(at::TensorOptions().dtype(at::kFloat).device(device_))
                   .target_device(device_)
                   .make_tensor(),
               tag);
  }

  // Proof of life: a sum of ranks.
  Status Try(int rank, int size) {
    const at::Tensor x = at::empty({3}, at::TensorOptions().dtype(at::kFloat).device(device_));
    x.fill_(rank + 1);
    TP_RETURN_IF_ERROR(Sum(x, "self_test"));
    const double found = x[2].item<double>(), expected = size * (size + 1) / 2.0;
    if (found == expected) return OkStatus();
    return Internal("a sum of ranks gave " + std::to_string(found) + ", expected " +
                    std::to_string(expected));
  }

 private:
  void Abort() {
    try {
      group_->abort();                 // the others may be gone: nothing is waited for
    } catch (const std::exception&) {  // the group is given up in any case
    }
  }

  // LibTorch throws; this is the door. Its own wait() lets the stream wait, not the host, which would learn
  // of a lost rank nowhere; so the host looks until the sum is there.
  Status Sum(const at::Tensor& values, const std::string& tag) {
    const auto until = std::chrono::steady_clock::now() + timeout_;
    try {
      const c10::DeviceGuard guard(device_);
      std::vector<at::Tensor> tensors = {values};
      const c10::intrusive_ptr<c10d::Work> work = group_->allreduce(tensors);
      while (!work->isCompleted()) {
        if (std::chrono::steady_clock::now() > until) {
          Abort();
          return DeadlineExceeded("NCCL all_reduce tag=" + tag + ": a rank did not come");
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      // It counts as completed where it has failed, and synchronize() throws nothing then.
      if (const std::exception_ptr failed = work->exception()) std::rethrow_exception(failed);
      work->synchronize();  // what is enqueued next comes after it
      return OkStatus();
    } catch (const std::exception& e) {
      Abort();
      return Unavailable("NCCL all_reduce tag=" + tag + ": " + e.what());
    }
  }

  const c10::Device device_;
  const std::chrono::milliseconds timeout_;
  const c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int tidepool_cuda_nccl_sum(int index,
                                                                             const void* rendezvous, int rank,
                                                                             int size, int64_t timeout_ms,
                                                                             void* sum, char* error,
                                                                             int64_t error_bytes) {
  try {
    const uint64_t packed = torch::cuda::nccl::version();  // major << 32 | minor << 16 | patch
    const uint64_t major = packed >> 32;
    const uint64_t minor = (packed >> 16) & 0xFFFF;
    if (major != NCCL_MAJOR || minor != NCCL_MINOR) {
      return Fail("LibTorch uses NCCL " + std::to_string(major) + "." + std::to_string(minor) +
                      ", but libtidepool_cuda.so was compiled with the nccl.h of " +
                      std::to_string(NCCL_MAJOR) + "." + std::to_string(NCCL_MINOR) +
                      "; rebuild it with the matching header",
                  error, error_bytes);
    }
    const auto timeout = std::chrono::milliseconds(timeout_ms);
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    const c10::DeviceGuard guard(device);
    auto meeting = c10::make_intrusive<comm::C10dStore>(
        *static_cast<const std::shared_ptr<comm::Rendezvous>*>(rendezvous), "nccl/", timeout);
    // Else a thread of LibTorch's watches the group, and ends the process some time after a sum that did not
    // come in time. Sum() waits for itself, and who asks for it decides what follows.
    c10::utils::set_env("TORCH_NCCL_BLOCKING_WAIT", "1");
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    auto made = std::make_unique<NcclSum>(
        device, timeout, c10::make_intrusive<c10d::ProcessGroupNCCL>(meeting, rank, size, options));
    if (const Status tried = made->Try(rank, size); !tried.ok())
      return Fail(tried.message(), error, error_bytes);
    *static_cast<std::unique_ptr<comm::DeviceSum>*>(sum) = std::move(made);
    return 0;
  } catch (const std::exception& e) {
    return Fail(e.what(), error, error_bytes);
  }
}

}  // namespace tidepool::cuda
