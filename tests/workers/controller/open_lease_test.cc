#include "workers/controller/open_lease.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

TEST(OpenLeaseTest, IsReadByTheMembersOfItsStepAlone) {
  OpenLease lease;
  EXPECT_EQ(lease.Read(7, {3}, {1}, 0).status().code(), StatusCode::kNotFound);
  const auto rows = [](size_t n) { return std::make_shared<const std::vector<BatchRow>>(n); };
  lease.Open(7, {3}, {{{4}, rows(2)}, {{5}, rows(3)}});
  ASSERT_TRUE(lease.Read(7, {3}, {5}, 1).ok());
  EXPECT_EQ((*lease.Read(7, {3}, {5}, 1))->size(), 3u);
  EXPECT_EQ((*lease.Read(7, {3}, {4}, 0))->size(), 2u);
  for (const int64_t rank : {-1, 0, 2}) {
    EXPECT_EQ(lease.Read(7, {3}, {5}, rank).status().code(), StatusCode::kPermissionDenied) << rank;
  }
  EXPECT_EQ(lease.Read(7, {3}, {2}, 0).status().code(), StatusCode::kPermissionDenied)
      << "an earlier process of a member's place";
  EXPECT_EQ(lease.Read(7, {2}, {4}, 0).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(lease.Read(6, {3}, {4}, 0).status().code(), StatusCode::kNotFound);
  lease.Drop();
  EXPECT_EQ(lease.Read(7, {3}, {4}, 0).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace tidepool::workers
