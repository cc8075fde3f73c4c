// What went wrong with a launch, in CUDA's words.
#include "core/cuda/device_code.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {

std::string ErrorText(int code) { return LaunchError(code); }

}  // namespace tidepool::cuda
