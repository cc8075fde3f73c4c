// Tests run with one thread unless they say otherwise: several test binaries run at a time, and OpenMP
// threads that wait for each other on a busy machine lose far more than they win on tiny models.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace {

class OneThread : public testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new OneThread);  // GoogleTest owns it

}  // namespace
