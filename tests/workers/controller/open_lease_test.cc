#include "workers/controller/open_lease.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

TEST(OpenLeaseTest, IsReadByTheMembersOfItsStepAlone) {
  OpenLease lease;
  EXPECT_EQ(lease.Read(7, {3}, {1}).status().code(), StatusCode::kNotFound);
  lease.Open(7, {3}, std::make_shared<const std::vector<BatchRow>>(2), {{4}, {5}});
  ASSERT_TRUE(lease.Read(7, {3}, {5}).ok());
  EXPECT_EQ((*lease.Read(7, {3}, {4}))->size(), 2u);
  EXPECT_EQ(lease.Read(7, {3}, {2}).status().code(), StatusCode::kPermissionDenied)
      << "an earlier process of a member's place";
  EXPECT_EQ(lease.Read(7, {2}, {4}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(lease.Read(6, {3}, {4}).status().code(), StatusCode::kNotFound);
  lease.Drop();
  EXPECT_EQ(lease.Read(7, {3}, {4}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace tidepool::workers
